"""The run journal: append-only JSON lines, the single source of truth about a run."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from io import FileIO
from numbers import Integral, Real
from pathlib import Path
from types import TracebackType
from typing import Any

Record = dict[str, Any]
FILE_NAME = "journal.jsonl"


class Journal:
    """Appends one record per line. Everything that depends on the clock lives under the record's `time` key.

    `wall` is seconds since the epoch; `session` is seconds since this object was opened, on a clock that never
    jumps. Opening a file whose last line was torn by a crash drops that line.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fsync: bool = False,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = Path(path)
        self._fsync, self._wall, self._steady = fsync, wall, steady
        self._opened = steady()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = FileIO(self.path, "a+")
        self._cut(self.size())

    def write(self, event: str, step: int | None = None, **fields: Any) -> Record:
        """Append one record and return it exactly as `read` will give it back.

        `time`, when passed, is a mapping of further clock-dependent values (seconds, rates).
        """
        clock = self.clock()
        extra = fields.pop("time", {})
        if not isinstance(extra, Mapping) or clock.keys() & extra.keys():
            raise ValueError(f"time={extra!r} must be a mapping without the keys {sorted(clock)}")
        record = plain({"event": event, "step": step, **fields, "time": {**clock, **extra}})
        line = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"
        left = memoryview(line.encode("utf-8", "backslashreplace"))
        while left:  # an unbuffered write may take only a part
            left = left[self._file.write(left) :]
        if self._fsync:
            self.sync()
        return record

    def clock(self) -> dict[str, float]:
        """What the `time` key of a record written now begins with; for records that are shown and not written."""
        return {"wall": round(self._wall(), 3), "session": round(self._steady() - self._opened, 3)}

    def size(self) -> int:
        """Length of the file in bytes: the offset a checkpoint stores and `truncate` takes."""
        return os.fstat(self._file.fileno()).st_size

    def truncate(self, size: int) -> None:
        """Drop what was written after a checkpoint that recorded `size`, and a line torn by that cut."""
        if not 0 <= size <= self.size():
            raise ValueError(f"cannot cut {self.path} to {size} bytes: it has {self.size()}; is it another run's?")
        self._cut(size)

    def sync(self) -> None:
        """Return once the records are on disk; a checkpoint calls this before it stores `size()`."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _cut(self, size: int) -> None:
        self._file.truncate(_last_line_end(self._file.fileno(), size))


def _last_line_end(descriptor: int, size: int, block: int = 1 << 16) -> int:
    """Offset just behind the last newline in the first `size` bytes, 0 without one."""
    end = size
    while end > 0:
        start = max(0, end - block)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def plain(value: Any) -> Any:
    """Strict-JSON form: non-finite numbers become "nan", "inf", "-inf"; tuples lists; paths strings."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else str(number)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"journal keys must be strings, got {wrong[0]!r}")
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    raise TypeError(f"cannot journal {value!r} of type {type(value).__name__}: pass a number, text, list or mapping")


def read(path: str | os.PathLike[str]) -> list[Record]:
    """All records of a journal file. A last line without its newline was torn and is ignored."""
    lines = Path(path).read_bytes().split(b"\n")[:-1]
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is not a journal record: {error}") from error
    return records


def without_time(records: Iterable[Record]) -> list[Record]:
    """The records without their `time` key: two runs that did the same compare equal."""
    return [{key: value for key, value in record.items() if key != "time"} for record in records]
