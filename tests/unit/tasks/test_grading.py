"""The grading service: order, limits, crashes, threads."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from maskgrad.errors import UserError
from maskgrad.tasks import CountdownTask
from maskgrad.tasks.base import Example, Grade
from maskgrad.tasks.countdown import CountdownSettings
from maskgrad.tasks.grading import GradingService, GradingSettings, _Batch
from maskgrad.tasks.grading_process import cpu_seconds, process_tree
from maskgrad.tasks.grading_task import ServedTask

#: Loaded by every worker's interpreter at start: completions beginning with ! misbehave in the grader.
MISBEHAVE = """
import os, signal, sys, time
from maskgrad.tasks.countdown import CountdownTask
plain = CountdownTask.grade
def grade(self, example, text):
    if text == "!loop":
        while True: pass
    if text == "!busy":
        end = time.process_time() + 0.3
        while time.process_time() < end: pass
    if text == "!sleep": time.sleep(1000)
    if text == "!die": os._exit(3)
    if text == "!once" and not os.path.exists(os.environ["MASKGRAD_ONCE"]):
        open(os.environ["MASKGRAD_ONCE"], "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    if text == "!raise": raise KeyError("odd")
    if text == "!memory": raise MemoryError
    if text == "!print": print("x" * 100000)
    return plain(self, example, text)
CountdownTask.grade = grade
if "MASKGRAD_BROKEN" in os.environ: CountdownTask.warm_up = lambda self: os._exit(1)
"""


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GradingService]:
    (tmp_path / "sitecustomize.py").write_text(MISBEHAVE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MASKGRAD_ONCE", str(tmp_path / "once"))
    limits = GradingSettings(workers=2, seconds=0.5, patience=3.0)
    made = GradingService({"name": "countdown"}, limits)
    yield made
    made.close()


TASK = CountdownTask(CountdownSettings())


def items(*texts: str) -> list[tuple[Example, str]]:
    """The n-th text for the n-th example; "gold" stands for its solution."""
    examples = [TASK.example("train", index) for index in range(len(texts))]
    return [(e, TASK.target(e) if text == "gold" else text) for e, text in zip(examples, texts, strict=True)]


def test_grades_equal_those_of_the_task_and_keep_their_order(service: GradingService) -> None:
    batch = items(*(["gold", "1+1", "", "gold"] * 50))
    assert service.grade(batch) == [TASK.grade(*item) for item in batch]
    assert service.grade([]) == []


def test_every_outcome_is_of_its_own_kind_and_costs_only_itself(service: GradingService) -> None:
    texts = ["gold", "!loop", "gold", "!die", "", "!sleep", "gold", "!memory", "1+1", "!once", "!print", "gold"]
    grades = service.grade(items(*texts))
    assert [g.status for g in grades] == [
        "ok", "timeout", "ok", "crash", "no_answer", "timeout", "ok", "crash", "wrong", "wrong", "wrong", "ok",
    ]  # fmt: skip
    assert all(g.reward == 0.0 and g.correct is False for g in grades if g.status in ("timeout", "crash"))


def test_an_exception_of_the_grader_is_no_reward_and_is_told_once(service: GradingService) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        grades = service.grade(items("!raise", "gold", "!raise"))
    assert [(g.status, g.reward) for g in grades] == [("crash", None), ("ok", 1.0), ("crash", None)]
    messages = [str(w.message) for w in told]
    assert len(messages) == 1 and "KeyError" in messages[0] and "Traceback" in messages[0]


def test_own_time_excludes_waiting_for_a_worker(service: GradingService) -> None:
    service.grading, service.wall = GradingSettings(workers=1), 60.0
    texts = ["!loop", "gold", "!loop", "gold", "gold"]
    assert [g.status for g in service.grade(items(*texts))] == ["timeout", "ok", "timeout", "ok", "ok"]
    # Four busy answers need more than one answer's time, and the worker was idle for longer than that before.
    service.grade(items("gold"))
    service._workers[0].progress -= 100.0
    assert [g.status for g in service.grade(items(*["!busy"] * 4))] == ["wrong"] * 4


def test_from_several_threads(service: GradingService) -> None:
    found: dict[int, list[Grade]] = {}

    def work(number: int) -> None:
        found[number] = service.grade(items(*["gold"] * (number + 1)))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n: [g.status for g in grades] for n, grades in found.items()} == {n: ["ok"] * (n + 1) for n in range(3)}


def test_workers_that_cannot_start_are_infra_and_never_a_zero(
    service: GradingService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASKGRAD_BROKEN", "1")
    grades = service.grade(items("gold", ""))
    assert [(g.status, g.reward, g.correct) for g in grades] == [("infra", None, None)] * 2
    monkeypatch.delenv("MASKGRAD_BROKEN")
    assert [g.status for g in service.grade(items("gold"))] == ["ok"]


def test_bad_settings_are_the_users_mistake() -> None:
    with pytest.raises(UserError, match="count must be"):
        GradingService({"name": "countdown", "count": 99}).grade(items("gold"))


def test_a_killed_worker_is_replaced_and_closing_ends_all(service: GradingService) -> None:
    service.grade(items("gold"))
    worker = service._workers[0]
    os.kill(worker.process.pid, signal.SIGKILL)
    worker.process.wait()
    assert [g.status for g in service.grade(items("gold", "gold"))] == ["ok", "ok"]
    pids = [w.process.pid for w in service._workers]
    service.close()
    assert pids and not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_an_interruption_leaves_no_half_answered_worker(
    service: GradingService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(batch: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(service, "_listen", interrupt)
        with pytest.raises(KeyboardInterrupt):
            service.grade(items("gold", "gold"))
    assert service._workers == []
    assert [g.status for g in service.grade(items("", "gold"))] == ["no_answer", "ok"]


def test_a_served_task_stands_for_the_task() -> None:
    served = ServedTask(TASK, {"name": "countdown"})
    example = served.example("train", 0)
    assert served.grade(example, served.target(example)) == TASK.grade(example, TASK.target(example))
    assert (served.hash(), served.name, served.size("train"), served.columns) == (
        TASK.hash(), "countdown", None, ("numbers", "target"),
    )  # fmt: skip
    assert served.settings is TASK.settings
    with pytest.raises(UserError, match="1 completions for 2 examples"):
        served.grade_batch([example, example], ["x"])
    served.service.close()


def test_time_of_a_process_is_read_from_the_system() -> None:
    before = cpu_seconds(os.getpid())
    started = time.process_time()
    while time.process_time() - started < 0.1:
        pass
    assert cpu_seconds(os.getpid()) - before >= 0.05
    assert process_tree(os.getpid())[0] == os.getpid()


def test_workers_import_no_tensor_library() -> None:
    import subprocess
    import sys

    code = "import sys, maskgrad.tasks.grading_worker; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Watched:
    """A worker that has something to say, or is late."""

    def __init__(self, *, speaks: bool) -> None:
        self.answers, write = os.pipe()
        self.speaks, self.killed = speaks, False
        if speaks:
            os.write(write, b"x")
        os.close(write) if speaks else setattr(self, "held", write)

    def late(self, cpu: float, wall: float) -> bool:
        return True

    def kill(self) -> None:
        self.killed = True


def test_a_worker_that_hangs_is_noticed_while_others_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    service, batch = GradingService({"name": "countdown"}), _Batch(items("", ""), 1)
    speaking, silent = Watched(speaks=True), Watched(speaks=False)
    service._workers, batch.busy = [speaking, silent], {speaking: [0], silent: [1]}  # type: ignore[list-item, dict-item]
    monkeypatch.setattr(service, "_take_answer", lambda batch, worker: None)
    service._listen(batch)
    assert (speaking.killed, silent.killed) == (False, True), "only the one that said nothing"
    service._workers = []


def test_a_forked_process_leaves_the_workers_to_their_owner(service: GradingService) -> None:
    service.grade(items("gold"))
    before = [worker.process.pid for worker in service._workers]
    child = os.fork()
    if child == 0:
        grades = service.grade(items("gold"))
        own = [worker.process.pid for worker in service._workers]
        service.close()
        os._exit(0 if grades[0].status == "ok" and not set(own) & set(before) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert [worker.process.pid for worker in service._workers] == before
    assert [g.status for g in service.grade(items("gold"))] == ["ok"]


def test_file_numbers_above_1023_are_served(service: GradingService) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip("this machine allows few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1200, hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1050)]
    try:
        assert [g.status for g in service.grade(items("gold", ""))] == ["ok", "no_answer"]
        assert service._workers[0].answers > 1023
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
