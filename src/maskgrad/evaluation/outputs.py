"""Sampled completions on disk, one JSON line each, so that an interrupted evaluation samples nothing twice."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from maskgrad.errors import UserError
from maskgrad.tasks.base import Example

Key = tuple[str, int, str]  # settings, seed, id

_BEGINNING = b'{"settings": '


@dataclass(frozen=True)
class Finished:
    """A completion of an example: its text up to the first stop token, and the whole canvas as token ids."""

    id: str
    seed: int
    prompt: Any
    columns: dict[str, Any]
    completion: str
    tokens: list[int]


class Outputs:
    """The completions of one evaluation, in memory only. `OutputsFile.part` gives one that is also on disk."""

    def __init__(self, settings: str = "", file: OutputsFile | None = None) -> None:
        self._settings, self._file = settings, file
        self._found: dict[tuple[int, str], Finished] = {}

    def get(self, seed: int, example: Example) -> Finished | None:
        """The completion sampled for this example, unless its prompt was another one."""
        found = self._found.get((seed, example.id))
        return found if found is not None and found.prompt == example.prompt else None

    def finished(self, seed: int, example: Example) -> Finished:
        found = self.get(seed, example)
        assert found is not None
        return found

    def put(self, found: Finished) -> None:
        self._found[found.seed, found.id] = found

    def add(self, sampled: Sequence[Finished]) -> None:
        """Keep a batch; on disk too, before the next one is sampled."""
        for found in sampled:
            self.put(found)
        if self._file is not None:
            self._file.append(self._settings, sampled)


class OutputsFile:
    """The cells of one model in a grid's file. A line torn by a crash is dropped; what belongs to no cell is refused.

    `settings` names this model's cells; lines of the other `models` of the grid are left as they are.
    """

    def __init__(self, path: str | Path, model: str, settings: Collection[str], models: Collection[str]) -> None:
        self.path, self.model = Path(path), model
        self._others = set(models) - {model}
        self._parts = {name: Outputs(name, self) for name in settings}
        self._lines: dict[Key, dict[str, Any]] = {}
        if self.path.exists():
            whole = self.path.read_bytes().rpartition(b"\n")
            for number, line in enumerate(whole[0].split(b"\n") if whole[1] else [], start=1):
                self._take(number, line)
            if whole[2]:
                self._require_torn(whole[2])
                os.truncate(self.path, len(whole[0]) + len(whole[1]))

    def _take(self, number: int, line: bytes) -> None:
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not {"settings", "model", "seed", "id", "completion", "tokens"} <= row.keys():
            raise UserError(f"{self.path}, line {number} is no output of eval: name another file for --outputs")
        self._lines[row["settings"], row["seed"], row["id"]] = row
        if row["settings"] not in self._parts and row["model"] in self._others:
            return
        if row["settings"] not in self._parts:
            raise UserError(
                f"{self.path}, line {number} was sampled with other settings (model, sampler, task or split): "
                "name another file for --outputs, or give the settings it was made with"
            )
        columns = row.get("columns", row.get("prompt_fields")) or {}
        self._parts[row["settings"]].put(
            Finished(row["id"], row["seed"], row["prompt"], columns, row["completion"], row["tokens"])
        )

    def _require_torn(self, tail: bytes) -> None:
        """A last line without its end is dropped only if `append` began it."""
        if not tail.startswith(_BEGINNING) and not _BEGINNING.startswith(tail):
            raise UserError(f"{self.path} ends with a line that is no output of eval: name another file for --outputs")

    def part(self, settings: str) -> Outputs:
        return self._parts[settings]

    def append(self, settings: str, sampled: Iterable[Finished]) -> None:
        """Write whole lines and return once they have left the process."""
        about = {"settings": settings, "model": self.model}
        rows = [{**about, **asdict(found)} for found in sampled]
        for row in rows:  # the name it has in a graded row, which `score` reads
            row["prompt_fields"] = row.pop("columns")
        with self.path.open("ab") as file:
            file.write(b"".join(map(_line, rows)))

    def finish(self, settings: str, graded: Iterable[dict[str, Any]]) -> None:
        """Put the graded rows of one cell in place of the sampled ones; the file is replaced as a whole."""
        for row in graded:
            key = (settings, row["seed"], row["id"])
            self._lines.pop(key, None)
            self._lines[key] = {**row, "model": self.model, "settings": settings}
        temporary = self.path.with_name(f".{self.path.name}.partial")
        temporary.write_bytes(b"".join(map(_line, self._lines.values())))
        os.replace(temporary, self.path)


def _line(row: dict[str, Any]) -> bytes:
    return (json.dumps(row, ensure_ascii=False, default=str) + "\n").encode("utf-8", "backslashreplace")
