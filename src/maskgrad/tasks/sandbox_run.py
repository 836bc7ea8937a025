"""Running a program against its tests: the program in one sandbox, the tests in another, this process between them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from maskgrad.errors import UserError
from maskgrad.tasks.sandbox import Limits, check_sandbox, start

Outcome = Literal["ok", "wrong", "timeout", "crash", "infra"]

START_SECONDS = 20.0  # wall time in which both interpreters must be up; later means the machine is at fault
END_SECONDS = 20.0  # wall time in which a killed namespace must be gone
REPORT_BYTES = 2**24
FORBIDDEN_CODES = (-signal.SIGSYS, 128 + signal.SIGSYS)
CPU_LIMIT_CODES = (-signal.SIGXCPU, 128 + signal.SIGXCPU)


@dataclass(frozen=True, kw_only=True)
class ProgramTests:
    """Tests of a program, as code that calls it by name.

    names: the functions wanted of the program. setup: code run before the program's names are known to the tests
    (helper functions the tests and the program share). tests_setup: code run after (definitions of the tests).
    tests: one piece of code per test; it passes unless it raises.
    """

    names: tuple[str, ...]
    tests: tuple[str, ...]
    setup: str = ""
    tests_setup: str = ""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Outcome of a program. `results` has an outcome per test, none when nothing could be run."""

    outcome: Outcome
    results: tuple[Outcome, ...] = ()
    detail: str = ""

    @property
    def passed(self) -> float:
        """Share of the tests that passed."""
        return sum(r == "ok" for r in self.results) / len(self.results) if self.results else 0.0


def run_program(program: str, tests: ProgramTests, kind: str = "bwrap", limits: Limits | None = None) -> Verdict:
    """Run `program` and judge it by `tests`. Every process started here has ended when this returns.

    "ok" needs a report of the judge that carries a secret it alone was given, with every test passed.
    """
    limits = limits or Limits()
    if not tests.tests:
        raise UserError("a program cannot be judged without tests: give at least one")
    check_sandbox(kind)
    marker = secrets.token_hex(16)
    spec = {
        "program": program,
        "names": list(tests.names),
        "setup": tests.setup,
        "tests_setup": tests.tests_setup,
        "tests": list(tests.tests),
        "cpu": limits.test_seconds,
        "wall": limits.patience * limits.test_seconds,
        "start": START_SECONDS,
        "marker": marker,
    }
    try:
        work = json.dumps(spec).encode()
        program.encode()
    except UnicodeEncodeError:
        return _all_wrong(len(tests.tests), "the program is not valid text")
    with _pair(kind, limits) as (guest, judge):
        report, printed = _listen(guest, judge, work, limits)
        with contextlib.suppress(subprocess.TimeoutExpired):
            guest.wait(0.2 if b'"crash"' in report else 0.0)
        ending = guest.returncode
    verdict = _verdict(report, printed, marker, len(tests.tests), limits)
    if verdict.outcome == "crash" and ending in FORBIDDEN_CODES:
        return replace(verdict, detail="the program tried to make a process, thread or socket, or to signal another")
    if verdict.outcome == "crash" and ending in CPU_LIMIT_CODES:
        late: tuple[Outcome, ...] = tuple("timeout" if r == "crash" else r for r in verdict.results)
        return Verdict(outcome="timeout", results=late, detail="the program used up its CPU time")
    return verdict


@contextlib.contextmanager
def _pair(kind: str, limits: Limits) -> Iterator[tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]]:
    """The two processes, joined by pipes and with a folder each. At the end they are killed and the folders removed."""
    request_read, request_write = os.pipe()
    answer_read, answer_write = os.pipe()
    folder = tempfile.mkdtemp(prefix="maskgrad-sandbox-")
    started: list[subprocess.Popen[bytes]] = []
    try:
        try:
            judge = start(kind, "sandbox_judge", (request_write, answer_read), limits, judge=True, folder=folder)
            started.append(judge)
            guest = start(kind, "sandbox_guest", (request_read, answer_write), limits, judge=False, folder=folder)
            started.append(guest)
        finally:
            for fd in (request_read, request_write, answer_read, answer_write):
                os.close(fd)
        yield guest, judge
    finally:
        for process in started:
            _end(process)
        shutil.rmtree(folder, ignore_errors=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process with all that is in its session or namespace, and reap it.

    bubblewrap's child is the first process of the namespace: the kernel lets it go only when all others have gone, and
    bubblewrap waits for it. Killing bubblewrap itself would leave nobody to wait.
    """
    for child in _children(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.0 if process.args[0] != "bwrap" else END_SECONDS)  # type: ignore[index]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as listed:
        return [int(child) for child in listed.read().split()]
    return []


def _listen(
    guest: subprocess.Popen[bytes], judge: subprocess.Popen[bytes], work: bytes, limits: Limits
) -> tuple[bytes, int]:
    """Feed the judge and read both until the judge has finished or time is up: its report, and bytes printed."""
    deadline = time.monotonic() + START_SECONDS + limits.wall
    report, printed, left = b"", 0, memoryview(work)
    assert judge.stdin and judge.stdout and guest.stdout
    with selectors.DefaultSelector() as waiting:
        for end, events in ((judge.stdin, 2), (judge.stdout, 1), (guest.stdout, 1)):
            os.set_blocking(end.fileno(), False)
            waiting.register(end, events)
        while judge.stdout in {key.fileobj for key in waiting.get_map().values()} and time.monotonic() < deadline:
            for key, _ in waiting.select(max(0.0, deadline - time.monotonic())):
                stream: Any = key.fileobj
                if stream is judge.stdin:
                    left = left[_write(key.fd, left) :]
                    done = not left
                    if done:
                        waiting.unregister(stream)
                        judge.stdin.close()
                    continue
                part = os.read(key.fd, 65536)
                if not part:
                    waiting.unregister(stream)
                elif stream is judge.stdout:
                    report += part
                    if len(report) > REPORT_BYTES:
                        return b"", printed
                else:
                    printed += len(part)
                    if printed > limits.output:
                        return b"", printed
    return report, printed + _printed_before_the_end(guest.stdout.fileno(), limits.output)


def _printed_before_the_end(fd: int, most: int) -> int:
    """Bytes that the program printed and nobody has read yet; a little more than `most` at most."""
    count = 0
    with contextlib.suppress(BlockingIOError):
        while count <= most and (part := os.read(fd, 65536)):
            count += len(part)
    return count


def _write(fd: int, data: memoryview) -> int:
    """Bytes written; all of them when nobody reads any more, which the report will show."""
    try:
        return os.write(fd, data)
    except BrokenPipeError:
        return len(data)


def _all_wrong(count: int, detail: str) -> Verdict:
    results: list[Outcome] = ["wrong"] * count
    return Verdict(outcome="wrong", results=tuple(results), detail=detail)


def _verdict(report: bytes, printed: int, marker: str, count: int, limits: Limits) -> Verdict:
    if printed > limits.output:
        return _all_wrong(count, f"printed more than {limits.output} bytes")
    try:
        content: Any = json.loads(report)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.get("marker") != marker:
        return Verdict(outcome="infra", detail="the judge gave no report")
    if not content["started"]:
        return Verdict(outcome="infra", detail="the program's interpreter did not start")
    results: Sequence[list[str]] = content["results"]
    outcomes: tuple[Any, ...] = tuple(outcome for outcome, _ in results)
    if len(outcomes) != count:
        return Verdict(outcome="infra", detail="the judge's report is incomplete")
    for outcome in ("timeout", "crash", "wrong"):
        if outcome in outcomes:
            detail = next(text for found, text in results if found == outcome)
            return Verdict(outcome=outcome, results=outcomes, detail=detail)  # type: ignore[arg-type]
    return Verdict(outcome="ok", results=outcomes)
