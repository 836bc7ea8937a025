"""The grading service: a pool of worker processes that judge completions, each within its own time.

A completion that takes too long costs its worker, which is killed and replaced, and is a `timeout`; one that kills two
workers is a `crash`; one that no worker could be started for is `infra`. Order is kept. Any thread may call.
"""

from __future__ import annotations

import collections
import os
import selectors
import threading
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maskgrad.errors import UserError
from maskgrad.tasks.base import Example, Grade
from maskgrad.tasks.grading_process import Gone, Late, WorkerProcess

Item = tuple[Example, str]

POLL_SECONDS = 0.05
CHUNK = 64
FRAME_SECONDS = 10.0  # wall time for the rest of an answer whose first bytes have come
CALL_SECONDS = 120.0  # wall time of making an example
MOST_ATTEMPTS = 2
MOST_FAILED_STARTS = 2


@dataclass(frozen=True, kw_only=True)
class GradingSettings:
    """workers: processes. seconds: CPU time of one completion; its wall time is `patience` times that.
    memory: bytes of address space of a worker, 0 for no limit."""

    workers: int = 2
    seconds: float = 5.0
    patience: float = 3.0
    memory: int = 8 * 2**30


class GradingService:
    """Workers for one task, started when first needed."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        grading: GradingSettings | None = None,
        *,
        item_seconds: float | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """item_seconds: a task's own limit, CPU and wall alike, for the general one. prefix: see WorkerProcess."""
        self.settings = dict(settings)
        self.grading = grading or GradingSettings()
        self.cpu = item_seconds or self.grading.seconds
        self.wall = item_seconds or self.grading.seconds * self.grading.patience
        self._prefix = tuple(prefix)
        self._lock = threading.Lock()
        self._workers: list[WorkerProcess] = []
        self._told: set[str] = set()
        self._owner = os.getpid()
        self._checked = 0.0
        self._finalizer = weakref.finalize(self, _stop_own, self._workers, self._owner)

    def close(self) -> None:
        """End all workers; the next call starts new ones."""
        with self._lock:
            _stop(self._workers)

    def grade(self, items: Sequence[Item]) -> list[Grade]:
        """One grade per item, in order."""
        with self._lock:
            self._leave_to_owner()
            batch = _Batch(items, max(1, min(CHUNK, -(-len(items) // (4 * self.grading.workers)))))
            try:
                self._work_off(batch)
            except BaseException:  # an interruption leaves workers in the middle of something: none is used again
                _stop(self._workers)
                raise
            return batch.grades()

    def _work_off(self, batch: _Batch) -> None:
        failed_starts = 0
        while not batch.finished():
            failed_starts += self._staff(batch)
            if failed_starts >= MOST_FAILED_STARTS:
                batch.give_up("no grading worker could be started")
                _stop(self._workers)
                return
            self._listen(batch)

    def call(self, method: str, *arguments: Any) -> Any:
        """Result of a method of the task, run in a worker; UserError and RuntimeError carry the worker's reason."""
        with self._lock:
            self._leave_to_owner()
            for _ in range(MOST_ATTEMPTS):
                try:
                    if not self._workers:
                        self._workers.append(self._start())
                    worker = self._workers[0]
                    worker.ask(("call", method, arguments))
                    answer = worker.answer(CALL_SECONDS)
                except (Gone, Late):
                    _stop(self._workers)
                    continue
                except BaseException:  # as in `grade`
                    _stop(self._workers)
                    raise
                if "value" in answer:
                    return answer["value"]
                if "refused" in answer:
                    raise UserError(str(answer["refused"]))
                raise RuntimeError(f"{method} failed in a grading worker:\n{answer.get('failed')}")
        raise RuntimeError(
            f"{method} ended {MOST_ATTEMPTS} grading workers, or took more than {CALL_SECONDS:g} s in each"
        )

    def _leave_to_owner(self) -> None:
        """In a forked process: the workers belong to the process that started them, and this one starts its own."""
        if os.getpid() != self._owner:
            self._finalizer.detach()
            self._workers, self._owner = [], os.getpid()
            self._finalizer = weakref.finalize(self, _stop_own, self._workers, self._owner)

    def _start(self) -> WorkerProcess:
        return WorkerProcess(self.settings, self.grading.memory, self._prefix)

    def _staff(self, batch: _Batch) -> int:
        """Start missing workers and give idle ones work; number of starts that failed."""
        failed = 0
        wanted = min(self.grading.workers, batch.chunks_left() + len(batch.busy))
        while len(self._workers) < wanted and not failed:
            try:
                self._workers.append(self._start())
            except (Gone, Late, OSError):
                failed += 1
        for worker in list(self._workers):
            if worker not in batch.busy and batch.waiting:
                chunk = batch.take()
                try:
                    worker.ask(("grade", [batch.items[i] for i in chunk]))
                    batch.busy[worker] = chunk
                except Gone:
                    batch.waiting.extendleft(reversed(chunk))
                    self._drop(worker)
        return failed

    def _listen(self, batch: _Batch) -> None:
        """Wait a moment for answers, then look for late workers."""
        with selectors.DefaultSelector() as ready:
            for worker in batch.busy:
                ready.register(worker.answers, selectors.EVENT_READ, worker)
            events = ready.select(POLL_SECONDS)
        for key, _ in events:
            self._take_answer(batch, key.data)
        if time.monotonic() - self._checked < POLL_SECONDS:
            return
        self._checked = time.monotonic()
        heard = {key.data for key, _ in events}
        for worker in list(batch.busy):  # one that was heard of may have more answers waiting here
            if worker not in heard and worker.late(self.cpu, self.wall):
                detail = f"took more than {self.cpu:g} s"
                batch.lose(worker, Grade(reward=0.0, correct=False, status="timeout", detail=detail))
                self._drop(worker)

    def _take_answer(self, batch: _Batch, worker: WorkerProcess) -> None:
        try:
            answer = worker.answer(FRAME_SECONDS)
            grade = Grade(**answer["grade"])
        except (Gone, Late, KeyError, TypeError):
            died = Grade(reward=0.0, correct=False, status="crash", detail="ended its grading worker")
            batch.retry(worker, died)
            self._drop(worker)
            return
        batch.settle(worker, grade)
        if "traceback" in answer:
            self._tell(grade.detail.partition(":")[0], str(answer["traceback"]))

    def _drop(self, worker: WorkerProcess) -> None:
        self._workers.remove(worker)
        worker.kill()

    def _tell(self, kind: str, trace: str) -> None:
        """Report the first exception of each kind."""
        if kind not in self._told:
            self._told.add(kind)
            warnings.warn(f"grading {self.settings.get('name')} raised {kind} (reported once):\n{trace}", stacklevel=4)


class _Batch:
    """Items under way: which wait, which a worker has, which are settled."""

    def __init__(self, items: Sequence[Item], chunk: int) -> None:
        self.items, self.chunk = list(items), chunk
        self.waiting = collections.deque(range(len(items)))
        self.busy: dict[WorkerProcess, list[int]] = {}
        self._settled: dict[int, Grade] = {}
        self._attempts: collections.Counter[int] = collections.Counter()

    def finished(self) -> bool:
        return len(self._settled) == len(self.items)

    def chunks_left(self) -> int:
        return -(-len(self.waiting) // self.chunk)

    def take(self) -> list[int]:
        return [self.waiting.popleft() for _ in range(min(self.chunk, len(self.waiting)))]

    def settle(self, worker: WorkerProcess, grade: Grade) -> None:
        """The worker's present item is judged; it turns to the next of its chunk."""
        chunk = self.busy[worker]
        self._settled[chunk.pop(0)] = grade
        if not chunk:
            del self.busy[worker]

    def lose(self, worker: WorkerProcess, grade: Grade) -> None:
        """The worker is gone: its present item gets `grade`, the others of its chunk wait again."""
        first, *rest = self.busy.pop(worker)
        self._settled[first] = grade
        self.waiting.extendleft(reversed(rest))

    def retry(self, worker: WorkerProcess, grade: Grade) -> None:
        """As `lose`, but the present item gets another attempt before it gets `grade`."""
        first = self.busy[worker][0]
        self._attempts[first] += 1
        if self._attempts[first] >= MOST_ATTEMPTS:
            self.lose(worker, grade)
        else:
            self.waiting.extendleft(reversed(self.busy.pop(worker)))

    def give_up(self, reason: str) -> None:
        for index in range(len(self.items)):
            if index not in self._settled:
                self._settled[index] = Grade(reward=None, correct=None, status="infra", detail=reason)

    def grades(self) -> list[Grade]:
        return [self._settled[index] for index in range(len(self.items))]


def _stop_own(workers: list[WorkerProcess], owner: int) -> None:
    """At the end of a process; one forked from the owner leaves the workers alone."""
    if os.getpid() == owner:
        _stop(workers)


def _stop(workers: list[WorkerProcess]) -> None:
    while workers:
        workers.pop().kill()
