"""Tables, and the numbers of a run directory behind them."""

import io
from pathlib import Path

import pytest

from maskgrad.errors import UserError
from maskgrad.reporting.journal import Journal
from maskgrad.reporting.summary import summarize, training_seconds
from maskgrad.reporting.tables import COLUMNS, SEVERAL_SEEDS, before_after, main, results_table, rich_table

INTERVALS = {0.1: [0.05, 0.2], 0.4: [0.3, 0.5], 0.6: [0.5, 0.7]}


def write_run(
    folder: Path,
    *,
    algorithm: str = "egspo_sa",
    seed: int | None = 0,
    after: float = 0.4,
    reason: str | None = "completed",
) -> Path:
    """A run of two updates, each taking 2 s after a rollout of 1 s; evaluations take 10 s."""
    now = [0.0]
    with Journal(folder / "journal.jsonl", wall=lambda: now[0], steady=lambda: now[0]) as journal:

        def write(seconds: float, event: str, **fields: object) -> None:
            now[0] += seconds
            journal.write(event, **fields)  # type: ignore[arg-type]

        write(5, "run", recipe="quickstart", algorithm=algorithm, task="sums", model="tiny", seed=seed)
        write(10, "eval", step=0, split="held-out", n=100, accuracy=0.1, interval=INTERVALS[0.1])
        for step in (1, 2):
            write(1, "rollout", step=step, reward=0.5)
            write(2, "update", step=step, total_steps=2)
        write(10, "eval", step=2, split="held-out", n=100, accuracy=after, interval=INTERVALS[after])
        if reason is not None:
            write(0, "end", step=2, reason=reason)
    return folder


def test_markdown_table_is_aligned_and_escapes_bars() -> None:
    table = results_table([{"task": "a|b", "n": 5}, {"task": "sums\nand more"}], ["task", "n"])
    assert table.splitlines() == [
        "| task          |   n |",
        "| ------------- | --: |",
        "| a\\|b          |   5 |",
        "| sums and more |   - |",
    ]
    assert results_table([], ["task"]).count("\n") == 1


def test_rich_table_has_the_same_cells() -> None:
    from rich.console import Console

    stream = io.StringIO()
    Console(file=stream, width=80).print(rich_table([{"task": "[bold]x", "n": 5}], ["task", "n"], title="results"))
    assert "results" in stream.getvalue() and "[bold]x" in stream.getvalue()


def test_rich_table_cuts_no_number_on_a_narrow_terminal(tmp_path: Path) -> None:
    from rich.console import Console

    rows = before_after([write_run(tmp_path / "a-run-with-a-long-name")])
    stream = io.StringIO()
    Console(file=stream, width=80).print(rich_table(rows, COLUMNS))
    assert all(number in stream.getvalue() for number in ("+30.0", "[30.0,", "50.0]", " 10.0 ", " 6 ")), (
        stream.getvalue()
    )
    assert "…" not in stream.getvalue()


def test_one_run(tmp_path: Path) -> None:
    (row,) = before_after([write_run(tmp_path / "a")])
    assert row == {
        "run": "a",
        "task": "sums",
        "algorithm": "egspo_sa",
        "split": "held-out",
        "n": "100",
        "step": "2",
        "before (%)": "10.0",
        "after (%)": "40.0",
        "gain": "+30.0",
        "95 % interval": "[30.0, 50.0]",
        "training (s)": "6",
    }
    assert tuple(row) == COLUMNS


def test_seeds_of_one_setting_share_a_row_and_algorithms_do_not(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "a", seed=0, after=0.4), write_run(tmp_path / "b", seed=1, after=0.6)]
    both, other = before_after([*runs, write_run(tmp_path / "c", algorithm="stabledrl")])
    assert both["run"] == "2 seeds" and other["run"] == "c"
    assert both["after (%)"] == "50.0 (40.0..60.0)" and both["gain"] == "+40.0 (+30.0..+50.0)"
    assert both["95 % interval"] == "[30.0, 70.0]" and both["training (s)"] == "6 (6..6)"


@pytest.mark.parametrize("seed", [3, None])
def test_runs_that_are_not_distinct_seeds_stay_apart(tmp_path: Path, seed: int | None) -> None:
    rows = before_after([write_run(tmp_path / "a", seed=seed), write_run(tmp_path / "b", seed=seed)])
    assert [row["run"] for row in rows] == ["a", "b"]


def test_runs_that_ended_early_say_so(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "a", reason=None), write_run(tmp_path / "b", seed=1, reason="interrupted")]
    assert before_after(runs)[0]["run"] == "2 seeds (unfinished, interrupted)"
    assert before_after(runs[:1])[0]["run"] == "a (unfinished)"


def test_without_a_later_evaluation_there_is_no_gain(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.write("run", algorithm="wd1", task="sums")
        journal.write("eval", step=0, split="held-out", n=10, accuracy=0.5, interval=[0.2, 0.8])
    (row,) = before_after([tmp_path])
    assert row["before (%)"] == "50.0" and row["after (%)"] == row["gain"] == row["95 % interval"] == "-"


def test_each_split_has_its_own_summary(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.write("run", algorithm="wd1", task="sums")
        for step, held_out, train in ((0, 0.1, 0.2), (5, 0.3, 0.9)):
            journal.write("eval", step=step, split="held-out", n=10, accuracy=held_out)
            journal.write("eval", step=step, split="train", n=20, accuracy=train)
    held_out, train = summarize(tmp_path)
    assert (held_out.split, held_out.before, held_out.after, held_out.n) == ("held-out", 0.1, 0.3, 10)
    assert (train.split, train.before, train.after, train.n) == ("train", 0.2, 0.9, 20)


def test_training_seconds_leave_out_the_pause_before_a_resumption() -> None:
    times = [("run", 0, 0), ("update", 4, 4), ("rollout", 1000, 1), ("update", 1003, 4), ("eval", 1050, 51)]
    records = [{"event": event, "time": {"wall": wall, "session": session}} for event, wall, session in times]
    assert training_seconds(records) == 4 + 1 + 3


def test_folders_that_are_no_runs_are_the_users_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="not a run directory"):
        summarize(tmp_path)
    with Journal(tmp_path / "journal.jsonl") as journal:
        with pytest.raises(UserError, match="'run' record"):
            summarize(tmp_path)
        journal.write("run", task="sums")
    with pytest.raises(UserError, match="no evaluation"):
        summarize(tmp_path)
    assert main([str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_main_draws_on_a_terminal_with_shared_columns_in_the_title(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", algorithm="stabledrl", after=0.6)]
    assert main([str(run) for run in runs]) == 0
    text = capsys.readouterr().out
    assert "task sums, split held-out, n 100, step 2" in text and "[50.0, 70.0]" in text and "stabledrl" in text


def test_main_prints_markdown_and_explains_spreads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(write_run(tmp_path / "a", seed=0)), str(write_run(tmp_path / "b", seed=1))]
    assert main(runs[:1]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("| run")
    assert main(runs) == 0
    assert capsys.readouterr().out.splitlines()[-1] == SEVERAL_SEEDS
