"""Plain values over a pipe between the two sides of the sandbox.

Runs inside the sandbox, so it imports the standard library alone. A frame is four bytes of length (big endian) and
JSON. What has no plain form crosses as a numbered reference to an object that stays on the other side.
"""

from __future__ import annotations

import collections
import fractions
import json
import os
import select
import struct
import time
from collections.abc import Callable
from typing import Any

MAX_FRAME = 4 * 2**20  # bytes
MAX_DEPTH = 60


class Gone(Exception):
    """The other side closed its pipe, or sent what is no frame."""


class Late(Exception):
    """No complete frame arrived in time."""


def send(fd: int, message: dict[str, Any]) -> None:
    """Write one frame. ValueError when it is larger than MAX_FRAME, Gone when nobody reads any more."""
    body = json.dumps(message).encode()
    if len(body) > MAX_FRAME:
        raise ValueError(f"a message of {len(body)} bytes is larger than {MAX_FRAME}")
    view = memoryview(struct.pack(">I", len(body)) + body)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError as error:
        raise Gone from error


def receive(fd: int, seconds: float | None = None) -> dict[str, Any]:
    """Read one frame, waiting `seconds` of wall time at most (None: for ever). Raises Gone or Late."""
    deadline = None if seconds is None else time.monotonic() + seconds
    (length,) = struct.unpack(">I", _read(fd, 4, deadline))
    if length > MAX_FRAME:
        raise Gone
    try:
        message = json.loads(_read(fd, length, deadline))
    except (ValueError, RecursionError) as error:
        raise Gone from error
    if not isinstance(message, dict):
        raise Gone
    return message


def _read(fd: int, count: int, deadline: float | None) -> bytes:
    parts: list[bytes] = []
    waiting = select.poll()  # unlike select, it takes file numbers above 1023
    waiting.register(fd, select.POLLIN)
    while count:
        wait = None if deadline is None else 1000 * max(0.0, deadline - time.monotonic())
        if not waiting.poll(wait):
            raise Late
        part = os.read(fd, min(count, 65536))
        if not part:
            raise Gone
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def encode(value: Any, refer: Callable[[Any], dict[str, Any]], depth: int = 0) -> Any:
    """JSON form of a value; `refer` supplies it for whatever has no plain form.

    Subclasses of the plain types are sent as the plain type: what arrives is data without behaviour of its own.
    """
    if value is None or value is True or value is False:
        return value
    if depth > MAX_DEPTH:
        return refer(value)
    for kind, name in _NUMBERS:
        if isinstance(value, kind):
            return {name: _number(name, value)}
    if isinstance(value, str):
        return {"str": str.__str__(value)}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    for sequence, name in _SEQUENCES:
        if isinstance(value, sequence):
            return {name: [encode(item, refer, depth + 1) for item in sequence.__iter__(value)]}
    if isinstance(value, dict):
        pairs = dict.items(value)
        return {"dict": [[encode(k, refer, depth + 1), encode(v, refer, depth + 1)] for k, v in pairs]}
    if isinstance(value, range):
        return {"range": [encode(n, refer, depth + 1) for n in (value.start, value.stop, value.step)]}
    return refer(value)


_NUMBERS: tuple[tuple[type, str], ...] = (
    (int, "int"),
    (float, "float"),
    (complex, "complex"),
    (fractions.Fraction, "fraction"),
)
_SEQUENCES: tuple[tuple[Any, str], ...] = (
    (list, "list"),
    (tuple, "tuple"),
    (set, "set"),
    (frozenset, "frozenset"),
    (collections.deque, "deque"),
)


def _number(name: str, value: Any) -> Any:
    if name == "int":
        return format(int.__index__(value), "x")  # hexadecimal: no limit on the digits, and no quadratic time
    if name == "float":
        return float.hex(value)
    if name == "complex":
        return [float.hex(value.real), float.hex(value.imag)]
    return [format(int(value.numerator), "x"), format(int(value.denominator), "x")]


def decode(form: Any, refer: Callable[[dict[str, Any]], Any]) -> Any:
    """The value of a JSON form. ValueError or TypeError when it is none."""
    if form is None or form is True or form is False:
        return form
    if not isinstance(form, dict) or len(form) != 1:
        raise ValueError("not a value")
    ((name, content),) = form.items()
    if name == "ref":
        return refer(content)
    if name == "dict":
        return {decode(k, refer): decode(v, refer) for k, v in content}
    if name in _BUILD:
        return _BUILD[name]([decode(item, refer) for item in content])
    return _SCALARS[name](content)


_BUILD: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": collections.deque,
    "range": lambda numbers: range(*numbers),
}
_SCALARS: dict[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "float": float.fromhex,
    "complex": lambda parts: complex(float.fromhex(parts[0]), float.fromhex(parts[1])),
    "fraction": lambda parts: fractions.Fraction(int(parts[0], 16), int(parts[1], 16)),
    "str": str,
    "bytes": bytes.fromhex,
}
