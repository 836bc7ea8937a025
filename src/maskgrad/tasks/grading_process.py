"""One grading worker as seen from outside: started, watched by the clock, killed and replaced."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from maskgrad.errors import UserError
from maskgrad.tasks.sandbox_wire import Gone, Late, receive

START_SECONDS = 120.0  # wall time in which a worker must have imported and built its task
_TICKS = os.sysconf("SC_CLK_TCK")


class WorkerProcess:
    """A worker that is ready. `Gone` or `Late` when it did not come up, UserError when it refuses the settings."""

    def __init__(self, settings: dict[str, Any], memory: int, prefix: Sequence[str]) -> None:
        """prefix: command that starts the interpreter inside a sandbox, or nothing."""
        environment = {
            **({"PATH": "/usr/bin:/bin"} if prefix else os.environ),  # a sandboxed worker learns nothing of ours
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",  # some generators walk through sets: every worker must see the same order
        }
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "maskgrad.tasks.grading_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        assert self.process.stdin and self.process.stdout
        self.requests, self.answers = self.process.stdin.fileno(), self.process.stdout.fileno()
        self.progress = time.monotonic()
        self._cpu_base: float | None = None
        try:
            self.ask({"settings": settings, "memory": memory})
            first = receive(self.answers, START_SECONDS)
        except BaseException:
            self.kill()
            raise
        if "ready" not in first:
            self.kill()
            if "refused" in first:
                raise UserError(str(first["refused"]))
            raise RuntimeError(f"a grading worker could not be built:\n{first.get('failed')}")

    def ask(self, request: Any) -> None:
        """Send a request; its own time starts now. Gone when the worker has ended."""
        body = pickle.dumps(request)
        view = memoryview(struct.pack(">I", len(body)) + body)
        try:
            while view:
                view = view[os.write(self.requests, view) :]
        except OSError as error:
            raise Gone from error
        self.progressed()

    def answer(self, seconds: float) -> dict[str, Any]:
        """The next answer. Gone or Late when there is none."""
        message = receive(self.answers, seconds)
        self.progressed()
        return message

    def progressed(self) -> None:
        """The worker turns to its next completion."""
        self.progress, self._cpu_base = time.monotonic(), None

    def late(self, cpu: float, wall: float) -> bool:
        """Whether the present completion has used more than `cpu` seconds of CPU time, or `wall` seconds of any."""
        if time.monotonic() - self.progress > wall:
            return True
        used = cpu_seconds(self.process.pid)
        if self._cpu_base is None:
            self._cpu_base = used
        return used - self._cpu_base > cpu

    def kill(self) -> None:
        """End the worker and all it started."""
        for pid in reversed(process_tree(self.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def process_tree(pid: int) -> list[int]:
    """A process and all its descendants, parents first."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError), open(f"/proc/{parent}/task/{parent}/children") as listed:
            found += [int(child) for child in listed.read().split()]
    return found


def cpu_seconds(pid: int) -> float:
    """CPU time a process and its descendants have used so far."""
    total = 0
    for member in process_tree(pid):
        with contextlib.suppress(OSError), open(f"/proc/{member}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))  # user and system time, its own and that of ended children
    return total / _TICKS


__all__ = ["Gone", "Late", "WorkerProcess", "cpu_seconds", "process_tree"]
