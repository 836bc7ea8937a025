"""Supervised masked-diffusion training: what is hidden, what is scored, and that the objectives estimate the ELBO."""

from __future__ import annotations

import io
import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from maskgrad.cli import main
from maskgrad.config import SftConfig, merge, sft_config
from maskgrad.errors import UserError
from maskgrad.models.policy import Policy
from maskgrad.models.tokenizer import encode_prompt, left_pad
from maskgrad.reporting.console import Console
from maskgrad.reporting.journal import read
from maskgrad.training import sft
from maskgrad.training.loop import TrainingStopped
from maskgrad.training.sft import SupervisedRun, answer_rows, draw_masks, maskable, masked_loss

TINY: dict[str, Any] = {
    "model": {"architecture": {"d_model": 16, "n_layers": 1, "mlp_hidden_size": 24}},
    "stages": [{"updates": 3, "lr": 0.003, "warmup_updates": 2}, {"updates": 2, "lr": 0.001, "wrong_share": 0.5}],
    "batch": 6,
    "threads": 1,
    "eval": {"count": 2},
}


def tiny(**settings: Any) -> SftConfig:
    return sft_config("base_sudoku_tiny", merge(TINY, settings))


def answers(policy: Policy, *texts: str, length: int = 6) -> Tensor:
    return answer_rows(policy, list(texts), length)


# --- answers and padding ---------------------------------------------------------------------------------------------


def test_answers_are_padded_with_end_of_text(policy: Policy) -> None:
    eos = policy.special.eos
    rows = answers(policy, "12", "123412", "")
    assert rows.shape == (3, 6)
    assert rows[0].tolist() == [6, 7, eos, eos, eos, eos] and eos not in rows[1].tolist()
    assert rows[2].tolist() == [eos] * 6


def test_an_answer_longer_than_the_canvas_is_refused(policy: Policy) -> None:
    with pytest.raises(UserError, match=r"answer '1234123' has 7 tokens but sampler.gen_length is 6: raise it"):
        answers(policy, "12", "1234123")


def test_padding_policies(policy: Policy) -> None:
    rows = answers(policy, "12", "123412")
    assert bool(maskable(rows, policy.special.stops, "score").all())
    for policy_name in ("first_eos",):
        allowed = maskable(rows, policy.special.stops, policy_name)
        assert allowed.tolist() == [[True, True, True, False, False, False], [True] * 6]


# --- draws -----------------------------------------------------------------------------------------------------------

SAMPLES = torch.arange(4000)


def test_count_hides_exactly_its_count_uniformly() -> None:
    allowed = torch.ones(4000, 5, dtype=torch.bool)
    allowed[::2, 3:] = False
    hidden, weight = draw_masks("count", allowed, SAMPLES, 0)
    count = hidden.sum(1)
    assert not bool((hidden & ~allowed).any())
    torch.testing.assert_close(weight[:, 0], 1.0 / count)
    for rows, n in ((slice(0, None, 2), 3), (slice(1, None, 2), 5)):
        share = torch.bincount(count[rows], minlength=n + 1)[1:].double() / 2000
        assert bool(((share - 1 / n).abs() < 5 * math.sqrt(1 / n / 2000)).all()), "l ~ U{1..n}"
        rate = hidden[rows, :n].double().mean(0)
        assert bool(((rate - (n + 1) / (2 * n)).abs() < 5 * math.sqrt(0.25 / 2000)).all()), "no position is preferred"


def test_time_hides_each_position_with_probability_t() -> None:
    allowed = torch.ones(4000, 5, dtype=torch.bool)
    hidden, weight = draw_masks("time", allowed, SAMPLES, 0)
    t = 1 / (weight[:, 0].double() * 5)
    assert float(t.min()) > 0 and float(t.max()) < 1 and abs(float(t.mean()) - 0.5) < 0.03
    for low in (0.0, 0.25, 0.5, 0.75):
        inside = (t >= low) & (t < low + 0.25)
        expected = float(t[inside].mean())
        assert abs(float(hidden[inside].double().mean()) - expected) < 5 * math.sqrt(0.25 / (5 * int(inside.sum())))
    pair = hidden[:, 0] & hidden[:, 1]
    assert abs(float(pair.double().mean()) - 1 / 3) < 0.04, "independent given t: E t^2"


@pytest.mark.parametrize("objective", ["count", "time"])
def test_a_draw_belongs_to_its_sample(objective: str) -> None:
    allowed = torch.ones(8, 5, dtype=torch.bool)
    whole = draw_masks(objective, allowed, torch.arange(8), 0)
    some = draw_masks(objective, allowed[:2], torch.tensor([6, 1]), 0)
    assert all(torch.equal(a[[6, 1]], b) for a, b in zip(whole, some, strict=True))
    assert not torch.equal(whole[0], draw_masks(objective, allowed, torch.arange(8), 1)[0])


# --- the objectives against enumeration ------------------------------------------------------------------------------


def scene(policy: Policy, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """A prompt, repeated, and an answer of two tokens on a canvas of four."""
    prompt, real = left_pad([encode_prompt(policy.need_tokenizer(), "1203")] * rows, policy.special.pad)
    return prompt, real, answers(policy, "43", length=4).expand(rows, 4)


def enumerated(policy: Policy, allowed: list[int]) -> float:
    """(1/n) sum_l (1/l) mean over the sets S of l allowed positions of sum_{k in S} -log p(x_k | S hidden)."""
    total, n = 0.0, len(allowed)
    prompt, real, answer = scene(policy, 1)
    for count in range(1, n + 1):
        values = []
        for chosen in itertools.combinations(allowed, count):
            hidden = torch.tensor([[k in chosen or k not in allowed for k in range(4)]])
            tokens = torch.cat([prompt, torch.where(hidden, policy.special.mask, answer)], 1)
            states = policy.hidden(tokens, torch.cat([real, torch.ones_like(hidden)], 1))[:, -4:]
            logp = policy.logits(states).log_softmax(-1).gather(-1, answer[..., None]).squeeze(-1)
            values.append(-sum(float(logp[0, k]) for k in chosen))
        total += sum(values) / len(values) / count
    return total / n


@pytest.mark.parametrize("padding", ["score", "first_eos"])
@pytest.mark.parametrize("objective", ["count", "time"])
def test_the_loss_estimates_the_elbo_without_bias(objective: str, padding: str, policy: Policy) -> None:
    """Both objectives have the same expectation, because the integral of t^(l-1) (1-t)^(n-l) is 1 / (l C(n, l))."""
    with torch.no_grad():
        prompt, real, answer = scene(policy, 4000)
        allowed = maskable(answer, policy.special.stops, padding)
        expected = enumerated(policy, allowed[0].nonzero()[:, 0].tolist())
        hidden, weight = draw_masks(objective, allowed, SAMPLES, 1)
        parts = torch.stack(
            [
                masked_loss(policy, p, r, a, h | ~al, h, w)
                for p, r, a, h, al, w in zip(
                    *(x.split(40) for x in (prompt, real, answer, hidden, allowed, weight)), strict=True
                )
            ]
        ).double()
    spread = float(parts.std() / math.sqrt(len(parts)))
    assert abs(float(parts.mean()) - expected) < 4 * spread, f"{float(parts.mean())} against {expected}"
    assert spread < 0.1 * expected, "the comparison says something"


def test_the_coefficients_of_the_time_objective_average_to_one() -> None:
    """E[1{hidden} / t] = 1 at every position; the variance only just diverges, so many draws are taken."""
    hidden, weight = draw_masks("time", torch.ones(100_000, 4, dtype=torch.bool), torch.arange(100_000), 2)
    coefficient = (hidden * weight * 4).double().mean(0)
    assert bool(((coefficient - 1).abs() < 0.06).all()), coefficient


def test_the_loss_is_a_mean_over_rows(policy: Policy) -> None:
    prompt, real, answer = scene(policy, 6)
    hidden, weight = draw_masks("count", torch.ones(6, 4, dtype=torch.bool), torch.arange(6), 0)
    with torch.no_grad():
        whole = masked_loss(policy, prompt, real, answer, hidden, hidden, weight)
        rows = [
            masked_loss(policy, *(x[i : i + 1] for x in (prompt, real, answer, hidden, hidden, weight)))
            for i in range(6)
        ]
    torch.testing.assert_close(whole, torch.stack(rows).mean())


# --- runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", ["score", "first_eos"])
def test_the_prompt_is_never_masked_and_padding_follows_the_policy(
    padding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Tensor, ...]] = []
    real_loss = sft.masked_loss

    def watch(policy: Policy, *inputs: Tensor) -> Tensor:
        hidden_at = policy.hidden_at

        def read(tokens: Tensor, attend: Tensor, scored: Tensor) -> Tensor:
            seen.append((tokens, attend, scored, *inputs))
            return hidden_at(tokens, attend, scored)

        with monkeypatch.context() as patch:
            patch.setattr(policy, "hidden_at", read)
            return real_loss(policy, *inputs)

    monkeypatch.setattr(sft, "masked_loss", watch)
    config = tiny(padding=padding, sampler={"gen_length": 20, "block_length": 20, "steps": 20})
    run = SupervisedRun.new(config, tmp_path / "run")
    run.train()
    mask, eos = run.policy.special.mask, run.policy.special.eos
    assert len(seen) == 5
    for tokens, attend, scored, prompt, real, answer, _, _, weight in seen:
        width = prompt.shape[1]
        assert torch.equal(tokens[:, :width], prompt) and not bool((prompt == mask).any())
        assert torch.equal(attend[:, :width], real) and bool(attend[:, width:].all())
        masked = tokens[:, width:] == mask
        assert torch.equal(tokens[:, width:][~masked], answer[~masked])
        assert bool((answer[:, 16:] == eos).all())
        if padding == "score":
            assert torch.equal(masked, scored), "exactly what is hidden is scored"
        else:
            assert bool(masked[:, 17:].all()) and not bool(scored[:, 17:].any())
            assert torch.equal(masked[:, :17], scored[:, :17])
        torch.testing.assert_close(weight[:, 0], 1.0 / scored.sum(1))


def test_stages_follow_one_another(tmp_path: Path) -> None:
    run = SupervisedRun.new(tiny(), tmp_path / "run")
    assert run.total == 5
    places = [run.stage(step) for step in range(5)]
    assert [(stage.lr, inner) for stage, inner in places] == [
        (0.003, 0),
        (0.003, 1),
        (0.003, 2),
        (0.001, 0),
        (0.001, 1),
    ]


def test_the_share_of_wrong_targets(tmp_path: Path) -> None:
    run = SupervisedRun.new(tiny(batch=400), tmp_path / "run")

    def wrong(share: float) -> list[bool]:
        _, targets, sample = run.corpus(1000, share)
        assert sample.tolist() == list(range(1000, 1400))
        gold = [run.task.target(run.task.example("train", i)) for i in sample.tolist()]
        return [t != g for t, g in zip(targets, gold, strict=True)]

    assert not any(wrong(0.0)) and all(wrong(1.0))
    half = wrong(0.5)
    assert abs(sum(half) / 400 - 0.5) < 0.1
    assert all(a <= b for a, b in zip(wrong(0.25), half, strict=True)), "a row keeps its draw when the share grows"


def test_training_lowers_the_loss_and_writes_a_model(tmp_path: Path) -> None:
    config = tiny(stages=[{"updates": 60, "lr": 0.01, "warmup_updates": 2}], batch=16)
    result = SupervisedRun.new(config, tmp_path / "run").train()
    records = read(tmp_path / "run" / "journal.jsonl")
    losses = [r["loss"] for r in records if r["event"] == "update"]
    assert len(losses) == 6 and losses[-1] < losses[0]
    assert records[0]["event"] == "run" and records[-1]["event"] == "end" and result["n"] == 2
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= {
        p.name for p in (tmp_path / "run/final").iterdir()
    }


def test_a_non_finite_update_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = sft.masked_loss
    monkeypatch.setattr(sft, "masked_loss", lambda *inputs: real(*inputs) * math.nan)
    with pytest.raises(TrainingStopped, match="update 0 is not finite"):
        SupervisedRun.new(tiny(), tmp_path / "run").train()
    (tmp_path / "tiny.yaml").write_text(json.dumps(tiny().model_dump(mode="json")))
    assert main(["sft", str(tmp_path / "tiny.yaml"), "--out", str(tmp_path / "other"), "--quiet"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_resumed_run_shows_the_time_since_its_resumption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = sft.optim.guarded_step, [0]

    def dying(*arguments: Any) -> bool:
        calls[0] += 1
        if calls[0] == 8:
            raise RuntimeError("the process ends")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(sft.optim, "guarded_step", dying)
        with pytest.raises(RuntimeError, match="the process ends"):
            SupervisedRun.new(tiny(stages=[{"updates": 10, "lr": 0.003}], checkpoint_every=5), tmp_path / "run").train()
    stream = io.StringIO()
    SupervisedRun.reopen(tmp_path / "run", Console(stream=stream)).train()
    shown = re.findall(r"elapsed ([\d:]+)", stream.getvalue())
    # without the clock of the resumption it would be the time since 1970
    assert shown and all(int(text.partition(":")[0]) < 10_000 for text in shown), shown
