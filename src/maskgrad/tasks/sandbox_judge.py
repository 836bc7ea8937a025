"""The side of the sandbox that runs the tests. The program is reached through proxies and returns plain values only.

Runs inside a sandbox of its own, so it imports the standard library alone. The program cannot see this process: it
lives in another one, and answers over a pipe.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import json
import os
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

from maskgrad.tasks.sandbox_wire import Gone, Late, decode, encode, receive, send

MODULE = "solution"


class Failed(BaseException):
    """A test that failed for a reason the test itself cannot catch away. `outcome` is wrong, timeout or crash."""

    last: Failed | None = None  # remembered, in case a test catches everything

    def __init__(self, outcome: str, detail: str) -> None:
        super().__init__(detail)
        self.outcome, self.detail = outcome, detail
        Failed.last = self


class Raised(Exception):
    """The program raised an exception that is not a built-in one."""


class Line:
    """The connection to the program, with what is left of the present test's time."""

    def __init__(self, requests: int, answers: int, cpu: float, wall: float) -> None:
        self.requests, self.answers = requests, answers
        self.cpu, self.wall = cpu, wall
        self.dead: Failed | None = None
        self.deadline = 0.0

    def begin(self) -> None:
        """A new test begins: its time is full."""
        self.deadline = time.monotonic() + self.wall

    def ask(self, op: str, **fields: Any) -> Any:
        """One request. The program's exception is raised here; its death or silence fails this and later tests."""
        if self.dead is not None:
            raise Failed(self.dead.outcome, self.dead.detail)
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise Failed("timeout", "a test ran out of time")
        try:
            send(self.requests, {"op": op, "cpu": self.cpu, "wall": left, **fields})
            answer = receive(self.answers, left + 0.5)
        except Late:
            self.dead = Failed("timeout", "the program did not come back in time")
            raise self.dead from None
        except Gone:
            self.dead = Failed("crash", "the program ended or sent no plain answer")
            raise self.dead from None
        return self._value(answer)

    def _value(self, answer: dict[str, Any]) -> Any:
        if answer.get("late"):
            raise Failed("timeout", "a call ran out of time")
        if "raised" in answer:
            raise _exception(answer)
        try:
            return decode(answer.get("value"), self._refer)
        except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError, MemoryError) as error:
            raise Failed("wrong", f"the program's answer is no plain value ({type(error).__name__})") from None

    def _refer(self, reference: dict[str, Any]) -> Remote:
        return Remote(self, {"id": int(reference["id"])}, str(reference.get("type")))


def _exception(answer: dict[str, Any]) -> Exception:
    names = [name for name in answer["raised"] if isinstance(name, str)]
    text = str(answer.get("text", ""))
    for name in names:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception) and kind is not Exception:
            with contextlib.suppress(TypeError):  # UnicodeDecodeError and the like want more arguments
                return kind(text)
    return Raised(f"{names[0] if names else 'an exception'}: {text}")


class Remote:
    """A name or object of the program. It can be called and read; it equals nothing and has no truth of its own."""

    def __init__(self, line: Line, reference: dict[str, Any], kind: str) -> None:
        self.__dict__.update(_line=line, _reference=reference, _kind=kind)

    def _ask(self, op: str, args: tuple[Any, ...] = (), named: dict[str, Any] | None = None) -> Any:
        forms = {"args": encode(list(args), _own_reference), "named": encode(named or {}, _own_reference)}
        return self._line.ask(op, on=self._reference, **forms)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._ask("call", args, named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask("attribute", (name,))

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", (key,))

    def __len__(self) -> int:
        length = self._ask("length")
        return length if isinstance(length, int) else self._refuse()

    def __iter__(self) -> Iterator[Any]:
        items = self._ask("items")
        return iter(items) if isinstance(items, list) else self._refuse()

    def _refuse(self, *_: Any) -> Any:
        raise Failed("wrong", f"the answer is a {self._kind[:80]}, not a plain value")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __contains__ = _refuse
    __hash__ = None  # type: ignore[assignment]


def _own_reference(value: Any) -> dict[str, Any]:
    if isinstance(value, Remote):
        return {"ref": value._reference}
    raise Failed("wrong", f"a test passes a {type(value).__name__}, which cannot be sent to the program")


def _space(spec: dict[str, Any], line: Line) -> dict[str, Any]:
    """The namespace of the tests: the set-up code, then the program's functions under their names."""
    module = types.ModuleType(MODULE)
    module.__getattr__ = lambda name: _lookup(line, name)  # type: ignore[method-assign]
    sys.modules[MODULE] = module
    space: dict[str, Any] = {"__name__": "tests"}
    exec(compile(spec["setup"], "<setup>", "exec", dont_inherit=True), space)
    for name in map(str, line.ask("names")):
        if name in spec["names"] or not (name in space or _reserved(name)):
            space[name] = Remote(line, {"name": name}, name)
        elif name in sys.stdlib_module_names and name not in space:
            space[name] = importlib.import_module(name)  # the real one: the program's may be doctored
    exec(compile(spec["tests_setup"], "<tests>", "exec", dont_inherit=True), space)
    return space


def _reserved(name: str) -> bool:
    """Names a test may rely on, which a program must not be able to replace."""
    return name.startswith("__") or hasattr(builtins, name) or name in sys.stdlib_module_names


def _lookup(line: Line, name: str) -> Remote:
    if name.startswith("__"):
        raise AttributeError(name)
    return Remote(line, {"name": name}, name)


def _one(line: Line, code: str, space: dict[str, Any]) -> list[str]:
    line.begin()
    Failed.last = None
    try:
        exec(compile(code, "<test>", "exec", dont_inherit=True), space)
    except Failed as failure:
        Failed.last = failure
    except BaseException as error:  # whatever a test raises is its failure
        if Failed.last is None:
            return ["wrong", f"{type(error).__name__}: {error}"[:200]]
    last: Failed | None = Failed.last
    return ["ok", ""] if last is None else [last.outcome, last.detail]


def judge(spec: dict[str, Any], line: Line) -> list[list[str]]:
    """Outcome and detail of every test, in order. A program that cannot be loaded fails them all."""
    line.begin()
    try:
        line.ask("load", program=spec["program"])
        line.begin()
        space = _space(spec, line)
    except Failed as failure:
        return [[failure.outcome, failure.detail]] * len(spec["tests"])
    except BaseException as error:  # the program's own exception at load
        detail = f"while loading: {type(error).__name__}: {error}"[:200]
        return [["wrong", detail]] * len(spec["tests"])
    return [_one(line, code, space) for code in spec["tests"]]


def main(requests: int, answers: int) -> None:
    report = os.dup(1)
    os.dup2(2, 1)  # what the tests print is nobody's evidence; standard error leads nowhere
    with open(0, "rb", closefd=False) as source:
        spec = json.loads(source.read())
    line = Line(requests, answers, spec["cpu"], spec["wall"])
    started = False
    results: list[list[str]] = []
    with contextlib.suppress(Gone, Late):
        started = bool(receive(answers, spec["start"]).get("ready"))
    if started:
        results = judge(spec, line)
    os.write(report, json.dumps({"marker": spec["marker"], "started": started, "results": results}).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
