"""The side of the sandbox that runs the program. Knows neither the tests nor the end marker.

Runs inside the sandbox, so it imports the standard library alone. It defines the program's names when told to, calls
them with plain values, and returns plain values; other objects stay here under a number.
"""

from __future__ import annotations

import builtins
import itertools
import os
import signal
import sys
import types
from typing import Any

from maskgrad.tasks.sandbox_wire import Gone, decode, encode, receive, send

MAX_ITEMS = 1_000_000
MODULE = "solution"


class OutOfTime(BaseException):
    """Raised inside the program by the timers of one call."""


def serve(requests: int, answers: int) -> None:
    """Answer requests until the judge hangs up."""
    guest = Guest()
    signal.signal(signal.SIGPROF, _out_of_time)
    signal.signal(signal.SIGALRM, _out_of_time)
    send(answers, {"ready": True})
    while True:
        try:
            request = receive(requests)
        except Gone:
            os._exit(0)
        send(answers, _bounded(guest, request))


def _out_of_time(number: int, frame: Any) -> None:
    raise OutOfTime


def _bounded(guest: Guest, request: dict[str, Any]) -> dict[str, Any]:
    """One request under its own timers: CPU time and wall time. Whatever the program raises is an answer."""
    try:
        try:
            signal.setitimer(signal.ITIMER_PROF, request["cpu"])
            signal.setitimer(signal.ITIMER_REAL, request["wall"])
            return {"value": encode(guest.do(request), guest.refer)}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
    except OutOfTime:
        return {"late": True}
    except BaseException as error:  # the program is foreign: all it raises, SystemExit included, is reported
        return {"raised": _base(type(error)), "text": _text(error)}


def _base(kind: type[BaseException]) -> list[str]:
    """Names of the exception's class and its built-in bases, the nearest first."""
    return [k.__name__ for k in type.mro(kind) if getattr(builtins, k.__name__, None) is k or k is kind]


def _text(error: BaseException) -> str:
    try:
        return str(error)[:300]
    except BaseException:  # a message whose conversion fails
        return ""


class Guest:
    """The program's namespace and the objects that the judge knows by number."""

    def __init__(self) -> None:
        self.objects: list[Any] = []
        self.space: dict[str, Any] = {}

    def refer(self, value: Any) -> dict[str, Any]:
        self.objects.append(value)
        return {"ref": {"id": len(self.objects) - 1, "type": type(value).__name__}}

    def find(self, reference: dict[str, Any]) -> Any:
        if "name" in reference:
            return self.space[reference["name"]]
        return self.objects[reference["id"]]

    def do(self, request: dict[str, Any]) -> Any:
        if request["op"] == "load":
            return self.load(request["program"])
        if request["op"] == "names":
            return sorted(name for name in self.space if isinstance(name, str) and not name.startswith("__"))
        target = self.find(request["on"])
        arguments = decode(request["args"], self.find)
        if request["op"] == "call":
            return target(*arguments, **decode(request["named"], self.find))
        if request["op"] == "attribute":
            return getattr(target, *arguments)
        if request["op"] == "item":
            return target[arguments[0]]
        if request["op"] == "length":
            return len(target)
        return list(itertools.islice(iter(target), MAX_ITEMS))

    def load(self, program: str) -> None:
        """Run the program as a module that is not the main one."""
        module = types.ModuleType(MODULE)
        sys.modules[MODULE] = module
        self.space = module.__dict__
        exec(compile(program, f"<{MODULE}>", "exec", dont_inherit=True), self.space)


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
