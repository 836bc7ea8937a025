"""The journal: what is written is what is read, and a crash costs at most the line it tore."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from maskgrad.reporting.journal import Journal, plain, read, without_time


def ticking(start: float = 100.0):
    ticks = iter(range(10_000))
    return lambda: start + next(ticks)


def test_read_gives_back_what_write_returned(tmp_path: Path) -> None:
    with Journal(tmp_path / "run" / "journal.jsonl", fsync=True) as journal:
        written = [
            journal.write("run", recipe="quickstart", out=Path("runs/a"), shape=(2, 3)),
            journal.write("update", step=1, loss=np.float32(0.5), count=np.int64(3), text="α | \n\u2028 \udc80"),
        ]
    assert read(journal.path) == written
    assert written[0]["step"] is None and written[0]["shape"] == [2, 3] and written[0]["out"] == "runs/a"
    assert list(written[1]) == ["event", "step", "loss", "count", "text", "time"]


def test_non_finite_numbers_are_written_as_text_in_strict_json(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.write("update", step=1, loss=math.nan, norms=[math.inf, {"low": -math.inf}], time={"rate": math.inf})

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    record = json.loads((tmp_path / "j").read_text(), parse_constant=refuse)
    assert record["loss"] == "nan" and record["norms"] == ["inf", {"low": "-inf"}] and record["time"]["rate"] == "inf"


def test_the_clock_touches_only_the_time_key(tmp_path: Path) -> None:
    for name, start in (("a", 0.0), ("b", 5e8)):
        with Journal(tmp_path / name, wall=ticking(start), steady=ticking(start)) as journal:
            journal.write("update", step=1, loss=0.25, time={"seconds": start})
    first, second = read(tmp_path / "a"), read(tmp_path / "b")
    assert first != second
    assert without_time(first) == without_time(second) == [{"event": "update", "step": 1, "loss": 0.25}]
    assert first[0]["time"] == {"wall": 0.0, "session": 1.0, "seconds": 0.0}


@pytest.mark.parametrize("time", [3.0, {"wall": 1.0}])
def test_time_must_be_a_mapping_that_leaves_the_journals_own_clock(tmp_path: Path, time: object) -> None:
    with Journal(tmp_path / "j") as journal, pytest.raises(ValueError, match="time="):
        journal.write("update", time=time)


def test_truncate_returns_to_the_checkpoint_and_writing_goes_on(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        kept = journal.write("update", step=1)
        size = journal.size()
        journal.write("update", step=2, loss=9.0)
    with Journal(tmp_path / "j") as journal:
        journal.truncate(size)
        assert journal.size() == size
        again = journal.write("update", step=2, loss=1.0)
    assert read(tmp_path / "j") == [kept, again]


def test_truncate_inside_a_line_drops_the_whole_line(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        kept = journal.write("update", step=1)
        size = journal.size()
        journal.write("update", step=2)
        journal.truncate(size + 5)
        assert journal.size() == size and read(tmp_path / "j") == [kept]


def test_truncate_refuses_a_size_the_file_never_had(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.write("run")
        with pytest.raises(ValueError, match="another run"):
            journal.truncate(journal.size() + 1)
        assert len(read(tmp_path / "j")) == 1


def test_a_torn_last_line_is_ignored_by_read_and_dropped_on_opening(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        kept = journal.write("run", note="x" * 200_000)  # the torn tail spans several blocks of the search
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-1])
    assert read(path) == [kept]
    with Journal(path) as journal:
        assert journal.size() == len(whole)
        more = journal.write("end")
    assert read(path) == [kept, more]


def test_a_file_that_is_one_torn_line_becomes_empty(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b'{"event"')
    assert read(tmp_path / "j") == []
    with Journal(tmp_path / "j") as journal:
        assert journal.size() == 0


def test_damage_before_the_last_line_is_an_error_with_its_line_number(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b'{"event":"run"}\n{"eve\n{"event":"end"}\n')
    with pytest.raises(ValueError, match="line 2"):
        read(tmp_path / "j")


@pytest.mark.parametrize("value", [object(), {1: 2}, {1, 2}, b"bytes"])
def test_what_json_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        plain(value)
