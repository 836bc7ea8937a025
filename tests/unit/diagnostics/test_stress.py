"""Arms of the stress test: equal settings, what makes each arm, and refusals before any work."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from maskgrad.cli import main
from maskgrad.config import dump
from maskgrad.diagnostics import stress
from maskgrad.diagnostics.arms import ABOUT, ARMS, SETTINGS, arm_config
from maskgrad.diagnostics.digest import digest, summary, table_rows
from maskgrad.errors import UserError
from maskgrad.records import RolloutBatch

INFLATE = {"fraction": 0.2, "factor": 1000.0, "only_negative": False}


def arm(name: str, setting: Any = "noisy", seed: int = 0, **over: Any) -> Any:
    return arm_config("quickstart", name, setting, seed, INFLATE, over)


@pytest.mark.parametrize("setting", SETTINGS)
def test_arms_share_everything_but_the_method(setting: Any) -> None:
    configs = {name: arm(name, setting) for name in ARMS}
    rest = {name: c.model_dump(exclude={"algorithm"}) for name, c in configs.items()}
    assert all(values == rest["grpo"] for values in rest.values())
    algorithms = {name: c.algorithm for name, c in configs.items()}
    updates = 2
    assert {a.updates_per_batch for a in algorithms.values()} == {updates}
    bounds = [a for a in algorithms.values() if a.name in ("grpo_elbo", "stabledrl", "spg")]
    for key in ("draws", "block", "p_context"):
        assert len({getattr(a, key) for a in bounds}) == 1, key
    ratios = [a for a in algorithms.values() if a.name in ("grpo_elbo", "stabledrl")]
    scale, masks = {"noisy": ("sequence", "fresh"), "inflate": ("token", "shared")}[setting]
    assert {(a.ratio_scale, a.masks) for a in ratios} == {(scale, masks)}
    espo = algorithms["espo"]
    assert espo.coupled and 2 * espo.draws == algorithms["grpo"].draws, "as many forward passes"
    assert (configs["grpo"].train.inflate is None) == (setting == "noisy")
    assert configs["grpo"].optim.max_grad_norm == 1


def test_what_makes_an_arm() -> None:
    assert set(ABOUT) == set(ARMS)
    clip, norm, full = (arm(n).algorithm for n in ("clip_only", "selfnorm_only", "stabledrl"))
    assert (clip.clip, clip.self_normalise) == (True, False)
    assert (norm.clip, norm.self_normalise) == (False, True)
    assert (full.clip, full.self_normalise, full.clip_high) == (True, True, 6.0)
    for name, own in {"clip_only": "self_normalise", "selfnorm_only": "clip", "stabledrl_positives": "score"}.items():
        other = arm(name).algorithm.model_dump(exclude={own})
        assert other == full.model_dump(exclude={own}), "an ablation changes one setting"
    assert arm("grpo_positives").algorithm.model_dump(exclude={"positives_only"}) == arm("grpo").algorithm.model_dump(
        exclude={"positives_only"}
    )


def test_the_control_drops_negatives() -> None:
    reward = torch.tensor([1.0, 0.0, 0.0, 0.0])
    batch = RolloutBatch(
        tokens=torch.zeros(4, 3, dtype=torch.int64),
        attend=torch.ones(4, 3, dtype=torch.bool),
        live=torch.ones(4, 2, dtype=torch.bool),
        group=torch.zeros(4, dtype=torch.int64),
        sample=torch.arange(4),
        reward=reward,
    )
    assert arm("grpo").algorithm.advantage(batch)[:, 0].tolist() == [0.75, -0.25, -0.25, -0.25]
    assert arm("grpo_positives").algorithm.advantage(batch)[:, 0].tolist() == [0.75, 0, 0, 0]
    algorithm = arm("stabledrl_positives").algorithm
    views = algorithm.views(batch, arm("grpo").rollout.sampler, 0, 0)
    units = algorithm.units(torch.full(views.scored.shape, -1.0), views, batch)
    assert units.upper.abs().max() == 0 and units.lower.max() < 0


def test_settings_of_the_recipe_and_of_the_user() -> None:
    config = arm("stabledrl", optim={"lr": 1e-5}, train={"max_updates": 3}, algorithm={"clip_high": 5.0})
    assert config.optim.lr == 1e-5 and config.train.max_updates == config.train.max_skipped_in_row == 3
    assert config.algorithm.clip_high == 5.0 and config.algorithm.draws == arm("grpo").algorithm.draws
    assert config.model.path == "maskgrad:base_sudoku_tiny" and config.rollout == arm("grpo").rollout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--inflate", "0.2"], ["'0.2'", "FRACTION:FACTOR", "0.2:1000"]),
        (["--inflate", "a:b"], ["'a:b'", "FRACTION:FACTOR"]),
        (["--inflate", ":"], ["':'", "FRACTION:FACTOR"]),
        (["--inflate", "0:10"], ["fraction 0", "above 0"]),
        (["--inflate", "1.5:10"], ["fraction 1.5", "at most"]),
        (["--inflate", "nan:10"], ["fraction nan"]),
        (["--inflate", "0.2:1"], ["factor 1", "above 1"]),
        (["--inflate", "0.2:inf"], ["factor inf", "finite"]),
        (["--inflate", "0.2:10", "--setting", "noisy"], ["--inflate", "setting inflate"]),
        (["--negative-only", "--setting", "noisy"], ["--negative-only"]),
        (["--setting", "nosy"], ["'nosy'", "did you mean 'noisy'"]),
        (["--algorithms", "grpo,stabledrll"], ["'stabledrll'", "did you mean 'stabledrl'"]),
        (["--algorithms", ","], ["names no arm", "clip_only"]),
        (["--seeds", "0,x"], ["'0,x'", "0,1,2"]),
        (["--jobs", "0"], ["--jobs", "'0'"]),
        (["--seed", "3"], ["--seeds"]),
        (["--algorithm", "grpo"], ["--algorithms a,b,c"]),
        (["--algorithm.drawz", "2"], ["algorithm.drawz", "did you mean 'draws'"]),
        (["--algorithm.clip", "false"], ["algorithm.clip", "selfnorm_only"]),
        (["--optim.lrr", "1"], ["'optim.lrr'", "did you mean 'lr'"]),
        (["--json", "/nowhere/x.json"], ["/nowhere/x.json"]),
    ],
    ids=str,
)
def test_refusals(
    arguments: list[str],
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stress, "run_cell", lambda *_: pytest.fail("work was begun"))
    assert main(["stress", "quickstart", "--out", str(tmp_path / "out"), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert all(word in captured.err for word in words), captured.err
    assert not (tmp_path / "out").exists()


def test_folders_of_something_else(tmp_path: Path) -> None:
    cells = stress.plan("quickstart", ["grpo"], ["noisy"], [0], INFLATE)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("")
    with pytest.raises(UserError, match="no stress test"):
        stress.claim(foreign, cells)
    with pytest.raises(UserError, match="is a file"):
        stress.claim(foreign / "thesis.tex", cells)
    mine = tmp_path / "mine"
    (mine / cells[0].name).mkdir(parents=True)
    (mine / stress.RESULT).write_text("{}")
    (mine / cells[0].name / "config.yaml").write_text(dump(cells[0].config))
    stress.claim(mine, cells)
    other = stress.plan("quickstart", ["grpo"], ["noisy"], [0], INFLATE, {"optim": {"lr": 1}})
    with pytest.raises(UserError, match="noisy-grpo-seed0 was made with other settings"):
        stress.claim(mine, other)
    stress.claim(tmp_path / "new" / "deep", cells)


def journal(norms: list[Any], accuracy: tuple[float, float]) -> list[dict[str, Any]]:
    time = {"wall": 0.0, "session": 0.0}
    start, end = ({"event": "eval", "step": s, "accuracy": a, "n": 200, "time": time} for s, a in enumerate(accuracy))
    updates = [
        {"event": "update", "step": i + 1, "grad_norm": n, "skipped": isinstance(n, str), "time": time}
        for i, n in enumerate(norms)
    ]
    return [start, *updates, end]


def test_digest_and_summary_by_hand() -> None:
    runs = [
        digest("noisy", "grpo", 0, "a", journal([1.0, 500.0, "nan"], (0.4, 0.05))),
        digest("noisy", "grpo", 1, "b", journal([2.0, 90.0], (0.4, 0.01))),
        digest("noisy", "stabledrl", 0, "c", journal([0.25, 0.5], (0.4, 0.5))),
        digest("noisy", "stabledrl", 1, "d", journal([0.1, 0.3], (0.4, 0.6))),
    ]
    first = runs[0]
    assert (first["start"], first["end"], first["best"], first["skipped"]) == (0.4, 0.05, 0.4, 1)
    assert (first["grad_norm_max"], first["grad_norm_median"]) == (500.0, 250.5)
    assert first["curve"]["grad_norm"] == [[1, 1.0], [2, 500.0]]
    grpo, calm = summary(runs)
    assert grpo["seeds"] == [0, 1] and grpo["end"] == {"mean": pytest.approx(0.03), "min": 0.01, "max": 0.05}
    assert grpo["grad_norm_over_stabledrl_min"] == pytest.approx(min(500 / 0.5, 90 / 0.3))
    assert calm["grad_norm_over_stabledrl_min"] == 1 and not math.isnan(grpo["grad_norm_median"])
    rows = table_rows({"summary": [grpo, calm]})
    assert rows[0]["end (%)"] == "3.0 (1.0..5.0)" and rows[1]["max grad norm"] == "0.5" and rows[0]["min ESS"] == "-"
