"""Rows of the user's own data from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from maskgrad.errors import UserError
from maskgrad.tasks.row_files import load_rows

ROWS = [{"prompt": "1+1", "answer": "2"}, {"prompt": "1+2", "answer": "3"}]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("r.jsonl", '{"prompt": "1+1", "answer": "2"}\n\n{"prompt": "1+2", "answer": "3"}'),
        ("r.json", '[{"prompt": "1+1", "answer": "2"}, {"prompt": "1+2", "answer": "3"}]'),
        ("r.csv", "prompt,answer\n1+1,2\n1+2,3\n"),
        ("bom.csv", "\ufeffprompt,answer\r\n1+1,2\r\n1+2,3\r\n"),
    ],
)
def test_the_formats_give_the_same_rows(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert load_rows(tmp_path / name) == ROWS


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("r.jsonl", '{"prompt": "a"}\n{"question": "b"}', "line 2: column 'prompt' is missing; found question"),
        ("r.jsonl", '{"prompt": null}', "line 1: column 'prompt' is missing"),
        ("r.jsonl", '{"prompt": "a"}\n[1]', "line 2: list instead of an object"),
        ("r.jsonl", '{"prompt": "a"}\n{', "line 2: not JSON"),
        ("r.jsonl", "\n \n", "holds no rows"),
        ("r.json", '{"prompt": "a"}', "no list of objects"),
        ("r.json", "[1]", "no list of objects"),
        ("r.json", '[{"prompt": "a"}, {}]', "row 2: column 'prompt' is missing; found none"),
        ("r.csv", "prompt,answer\na,b,c\n", "line 2: more fields than the 2 columns"),
        ("r.csv", 'prompt\n"a', "unexpected end of data"),
        ("r.csv", "question\na\n", "line 2: column 'prompt' is missing; found question"),
        ("r.csv", "prompt,answer\na\n", "line 2: column 'answer' is missing"),
        ("r.txt", "a", r"give one of \.jsonl, \.json, \.csv"),
    ],
)
def test_bad_files(name: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=words) as caught:
        load_rows(tmp_path / name, ("prompt", "answer") if "answer" in words else ("prompt",))
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*none\.jsonl"):
        load_rows(tmp_path / "none.jsonl")
    (tmp_path / "r.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not UTF-8 text"):
        load_rows(tmp_path / "r.jsonl")


def test_rows_whose_gold_cannot_be_read_are_dropped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("prompt,answer\na,1\nb,one\nc,3\nd,\n")
    with pytest.warns(UserWarning, match=r"2 of 4 rows dropped, .*first .*r\.csv, line 3"):
        rows = load_rows(tmp_path / "r.csv", readable=lambda row: row["answer"].isdecimal())
    assert [row["prompt"] for row in rows] == ["a", "c"]
    with pytest.raises(UserError, match="none of the 4 gold answers can be read"):
        load_rows(tmp_path / "r.csv", readable=lambda row: False)
