"""Rewards of one-shot completions: which states are graded, what a verdict counts, and the mean at the same pass."""

from __future__ import annotations

import pytest
import torch

from maskgrad.algorithms import EGSPOSA, advantages, selection
from maskgrad.config import RolloutConfig
from maskgrad.models.policy import Policy
from maskgrad.records import RolloutBatch
from maskgrad.tasks.base import Grade
from maskgrad.tasks.custom import CustomTask
from maskgrad.training.collect import collect
from maskgrad.training.step_rewards import centred_at_passes, step_value

CONFIG = RolloutConfig.model_validate(
    {"group_size": 3, "micro_batch": 4, "sampler": {"gen_length": 6, "steps": 3, "temperature": 1.0}}
)


def batch_of(group: list[int], reward: torch.Tensor) -> RolloutBatch:
    rows = len(group)
    empty = torch.zeros(rows, 2, dtype=torch.int64)
    return RolloutBatch(
        tokens=empty,
        attend=empty == 0,
        live=empty == 0,
        group=torch.tensor(group),
        sample=torch.arange(rows),
        reward=reward,
    )


def test_time_loo_by_hand() -> None:
    """A_s = R_s - mean of the other judged members' R at the same pass, by plain loops, groups interleaved.

    Errors caught: own reward kept in the mean; sign of the one-shot part; an unjudged member counted; no division by
    1 + lambda.
    """
    draw = torch.Generator().manual_seed(1)
    group, judged = [4, 9, 4, 9, 4, 4, 9], [True, True, True, True, False, True, True]
    table = torch.rand(7, 3, generator=draw, dtype=torch.float64)
    reward = torch.rand(7, generator=draw, dtype=torch.float64)
    grades = [Grade(reward=0.5 if j else None, correct=None, status="ok") for j in judged]
    batch = batch_of(group, reward)
    centred = centred_at_passes(table, batch, grades)
    kept = torch.tensor(judged)
    lam = torch.tensor([[0.5, 1.0, 2.0]], dtype=torch.float64).expand(7, 3)
    used = torch.ones(7, 3, dtype=torch.bool)[kept]
    for normalise in (True, False):
        found = advantages.time_centred(
            reward[kept], centred[kept], used, batch.group[kept], lam[kept], normalise
        )  # rows without a reward have left the batch by then
        returns = advantages.stepwise_returns(reward, table, lam, normalise)
        for place, row in enumerate(kept.nonzero()[:, 0].tolist()):
            others = [o for o in range(7) if o != row and group[o] == group[row] and judged[o]]
            wanted = returns[row] - torch.stack([returns[o] for o in others]).mean(0)
            torch.testing.assert_close(found[place], wanted, rtol=0, atol=1e-12)


def test_equal_rewards_are_exactly_centred() -> None:
    """0.1 in every entry gives 0, not rounding. Error caught: mean of the raw values."""
    table = torch.full((7, 3), 0.1)
    grade = Grade(reward=0.1, correct=None, status="ok")
    assert float(centred_at_passes(table, batch_of([1] * 7, table[:, 0]), [grade] * 7).abs().max()) == 0.0


def test_every_member_is_graded_at_the_passes_of_its_group(policy: Policy) -> None:
    """time_loo through `collect`: the reward of a text is its count of one character, so it can be taken again from the
    recorded completions. Error caught: only the own passes graded."""
    seen: list[str] = []

    def count_ones(prompts: list[str], completions: list[str]) -> list[float]:
        seen.extend(completions)
        return [float(text.count("1")) + len(text) / 100 for text in completions]

    task = CustomTask([{"prompt": f"1234{i}"} for i in range(4)], count_ones)
    examples = [task.example("train", i) for i in range(4)]
    plain = EGSPOSA(steps=2, centring="pooled_loo")
    timed = EGSPOSA(steps=2, centring="time_loo")
    before = collect(policy, task, plain, CONFIG, examples, 0, seed=3).batch
    graded_once, after = len(seen), collect(policy, task, timed, CONFIG, examples, 0, seed=3).batch
    assert before.step_centred is None and after.step_centred is not None
    assert len(seen) - graded_once > graded_once  # passes of the others as well
    torch.testing.assert_close(after.step_reward, before.step_reward)
    single = after.selected.clone()
    everywhere = EGSPOSA(steps=3, select_rule="all", centring="time_loo")
    table = collect(policy, task, everywhere, CONFIG, examples, 0, seed=3).batch.step_reward
    for row in range(len(single)):
        for slot, step in enumerate(single[row].tolist()):
            others = [o for o in range(len(single)) if o != row and after.group[o] == after.group[row]]
            wanted = table[row, step] - table[others, step].mean()
            assert float(after.step_centred[row, slot]) == pytest.approx(float(wanted), abs=1e-6)


@pytest.mark.parametrize(
    ("parts", "value"),
    [("all", 0.7), ("correctness", 1.5 - 1.0 + 0.0), ("correctness_released", 0.0)],
)
def test_what_a_one_shot_reward_counts(parts: str, value: float) -> None:
    """r = 1.5 with verdict 1, guess 0.7 with verdict 0. Errors caught: parts exchanged; verdict lost."""
    final, guess = Grade(reward=1.5, correct=True, status="ok"), Grade(reward=0.7, correct=False, status="wrong")
    assert step_value(parts, final, guess) == value
    unjudged = Grade(reward=None, correct=None, status="ok")
    assert step_value(parts, final, unjudged) == 1.5
    assert step_value("correctness", final, Grade(reward=0.7, correct=None, status="ok")) == 1.5


def test_released_selections() -> None:
    """Evenly spaced over 0..S-2 and the last pass, or drawn once for the whole batch; a pass that a row did not take is
    an unused slot. Errors caught: last pass among the spaced ones; a draw per row."""
    exists = torch.ones(5, 8, dtype=torch.bool)
    exists[2, 6:] = False
    entropy, sample = torch.zeros(5, 8), torch.arange(5)
    steps, weight = selection.select_steps("uniform_released", entropy, exists, 3, sample, 0)
    assert steps[0].tolist() == [0, 6, 7] and steps[2].tolist() == [0, -1, -1] and weight[2].tolist() == [1, 0, 0]
    drawn = [selection.select_steps("random_released", entropy, exists, 3, sample, seed)[0] for seed in range(40)]
    assert all(bool((d[[0, 1, 3, 4]] == d[0]).all()) and int(d[0, -1]) == 7 for d in drawn)
    early = torch.stack([d[0, :2] for d in drawn])
    assert set(early.flatten().tolist()) == set(range(7)) and bool((early[:, 0] == early[:, 1]).any())
