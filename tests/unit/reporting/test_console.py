"""The console shows the journal's records, drawn on a terminal and plain elsewhere."""

import io
import subprocess
import sys

import pytest

from maskgrad.reporting.console import Console
from maskgrad.reporting.progress import duration, percent


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at(wall: float, event: str, step: int | None = None, **fields: object) -> dict[str, object]:
    clock = {"wall": wall, **fields.pop("time", {})}  # type: ignore[dict-item]
    return {"event": event, "step": step, **fields, "time": clock}


def a_run() -> list[dict[str, object]]:
    return [
        at(1000, "run", recipe="quickstart", algorithm="stabledrl", model="tiny", params=1_200_000, total_steps=40),
        at(1001, "eval", 0, split="held-out", n=256, accuracy=0.125, interval=[0.09, 0.17], metrics={"length": 7.5}),
        at(1002, "rollout", 1, reward=0.25, time={"tokens_per_second": 812.4}),
        at(1003, "update", 1, total_steps=40, loss=0.1, grad_norm=1.0, reward=0.25),
        at(1004, "checkpoint", 1),
        at(1005, "update", 2, total_steps=40, loss=0.1, grad_norm=1.0, reward=0.3),
        at(1020, "update", 20, total_steps=40, loss=0.1, grad_norm=1.0, reward=0.5),
        at(1021, "warning", 20, message="loss \x1b[31mnot finite\x1b[0m [bold]here[/bold]"),
        at(1030, "eval", 20, split="held-out", n=256, accuracy=0.5, interval=[0.44, 0.56]),
        at(1031, "end", 20, reason="interrupted"),
    ]


def shown(stream: io.StringIO, **options: object) -> str:
    with Console(stream=stream, **options) as console:  # type: ignore[arg-type]
        for record in a_run():
            console.show(record)
    return stream.getvalue()


def test_without_a_terminal_lines_are_plain_and_rare() -> None:
    text = shown(io.StringIO())
    assert text.splitlines() == [
        "run: recipe quickstart, algorithm stabledrl, model tiny, params 1,200,000",
        "eval (held-out, step 0): accuracy 12.5 % [9.0 %, 17.0 %], n 256, length 7.5",
        "step 1/40 (2 %), reward 0.25, held-out 12.5 %, tokens/s 812, elapsed 0:03, left 1:57",
        "step 20/40 (50 %), reward 0.5, held-out 12.5 %, tokens/s 812, elapsed 0:20, left 0:20",
        "warning: loss  [31mnot finite [0m [bold]here[/bold]",
        "step 20/40 (50 %), reward 0.5, held-out 50.0 %, tokens/s 812, elapsed 0:30, left 0:30",
        "eval (held-out, step 20): accuracy 50.0 % [44.0 %, 56.0 %], n 256",
        "step 20/40 (50 %), reward 0.5, held-out 50.0 %, tokens/s 812, elapsed 0:31, left 0:31",
        "end: interrupted",
    ]
    assert all(letter.isprintable() or letter == "\n" for letter in text)


def test_quiet_leaves_only_warnings() -> None:
    for stream in (io.StringIO(), Terminal()):
        assert shown(stream, quiet=True).splitlines() == ["warning: loss  [31mnot finite [0m [bold]here[/bold]"]


def test_on_a_terminal_progress_moves_and_text_in_brackets_is_not_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    text = shown(Terminal())
    assert "\x1b[?25l" in text and "\x1b[?25h" in text  # the cursor is hidden, and given back
    assert "step 20/40 (50 %)" in text and "[bold]here[/bold]" in text and "[9.0 %, 17.0 %]" in text
    assert "\x1b[31m" not in text


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in shown(Terminal())


def test_a_resumed_run_estimates_from_its_resumption() -> None:
    stream = io.StringIO()
    console = Console(stream=stream)
    console.show(at(5000, "run", 100, recipe="r", total_steps=200))
    console.show(at(5010, "update", 110, total_steps=200))
    assert stream.getvalue().splitlines()[-1] == "step 110/200 (55 %), elapsed 0:10, left 1:30"


def test_a_run_record_without_a_clock_starts_none() -> None:
    stream = io.StringIO()
    console = Console(stream=stream)
    console.show({"event": "run", "step": 100, "recipe": "r", "total_steps": 200})
    console.show(at(1_700_000_000, "update", 110, total_steps=200))
    console.show(at(1_700_000_020, "update", 130, total_steps=200))
    lines = stream.getvalue().splitlines()
    assert lines[1] == "step 110/200 (55 %), elapsed 0:00, left 0:00"
    assert lines[2].startswith("step 130/200 (65 %), elapsed 0:20")


def test_non_finite_numbers_and_missing_fields_are_shown() -> None:
    stream = io.StringIO()
    console = Console(stream=stream)
    console.show(at(1, "update", 1, reward="nan"))
    console.show(at(2, "eval", 1, n=4, accuracy="nan"))
    console.show(at(3, "end"))
    assert stream.getvalue().splitlines()[0] == "step 1, reward nan, elapsed 0:00"
    assert "eval (held-out, step 1): accuracy nan %, n 4" in stream.getvalue()


def test_a_stream_that_speaks_ascii_does_not_stop_the_run() -> None:
    raw = io.BytesIO()
    Console(stream=io.TextIOWrapper(raw, encoding="ascii")).show(at(1, "warning", message="answer π"))
    assert raw.getvalue() == b"warning: answer \\u03c0\n"


def test_forms_of_numbers() -> None:
    assert [duration(s) for s in (-1, 0, 59.6, 3723)] == ["0:00", "0:00", "1:00", "1:02:03"]
    assert [percent(x) for x in (0.12345, "nan", "inf")] == ["12.3 %", "nan %", "inf %"]


def test_plain_output_loads_neither_rich_nor_torch() -> None:
    code = (
        "import sys; from maskgrad.reporting.console import Console; import maskgrad.reporting.tables;"
        "Console().show({'event': 'warning', 'step': None, 'message': 'x', 'time': {}});"
        "print(sorted({'rich', 'torch'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["warning: x", "[]"]
