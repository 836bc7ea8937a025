"""Rollout batches: names of samples, abstaining rewards, and what the journal says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from maskgrad.algorithms import EGSPO, EGSPOSA, Algorithm, DiffuGRPO
from maskgrad.config import RolloutConfig, RunConfig
from maskgrad.models.policy import Policy
from maskgrad.records import Trajectory
from maskgrad.tasks.base import Grade, Task
from maskgrad.tasks.custom import CustomTask
from maskgrad.training import collect as collecting
from maskgrad.training.collect import Collected, collect
from maskgrad.training.loop import TrainingRun

ROWS = [{"prompt": "1234" * (1 + i % 2) + str(i)} for i in range(6)]
CONFIG = RolloutConfig.model_validate(
    {"group_size": 3, "micro_batch": 4, "sampler": {"gen_length": 6, "steps": 3, "temperature": 1.0}}
)


def task_of(rewards: Sequence[Any] | Callable[[str], Any]) -> Task:
    """Rewards in row order, or a function of the completion."""

    def reward(prompts: list[str], completions: list[str]) -> list[Any]:
        if callable(rewards):
            return [rewards(text) for text in completions]
        repeats = len(completions) // len(rewards)  # one-shot completions come several per row
        return [value for value in rewards for _ in range(repeats)]

    return CustomTask(ROWS, reward)


def gather(
    policy: Policy,
    rewards: Sequence[Any] | Callable[[str], Any],
    algorithm: Algorithm | None = None,
    prompts: range = range(4),
    first_group: int = 7,
) -> Collected:
    task = task_of(rewards)
    examples = [task.example("train", i) for i in prompts]
    return collect(policy, task, algorithm or DiffuGRPO(), CONFIG, examples, first_group, seed=3)


def test_a_sample_is_named_by_group_and_member(policy: Policy) -> None:
    batch = gather(policy, [0.0] * 12).batch
    assert batch.group.tolist() == [g for g in (7, 8, 9, 10) for _ in range(3)]
    assert batch.sample.tolist() == list(range(21, 33))
    prompts = [tuple(row[real].tolist()) for row, real in zip(batch.tokens[:, :-6], batch.attend[:, :-6], strict=True)]
    assert all(len(set(prompts[3 * g : 3 * g + 3])) == 1 for g in range(4)) and len(set(prompts)) == 4


def test_a_named_sample_is_the_same_in_every_batch(policy: Policy) -> None:
    whole = gather(policy, [0.0] * 12).batch
    second_half = gather(policy, [0.0] * 6, prompts=range(2, 4), first_group=9).batch
    assert torch.equal(whole.completion[6:], second_half.completion)
    assert torch.equal(whole.sample[6:], second_half.sample)
    other_name = gather(policy, [0.0] * 6, prompts=range(2, 4), first_group=11).batch
    assert not torch.equal(second_half.completion, other_name.completion)


def test_metrics(policy: Policy) -> None:
    found = gather(policy, [0, 0, 0, 1, 1, 1, 0, 1, 0.5, 1, 0, 0]).metrics
    assert found["reward"] == pytest.approx((0 + 3 + 1.5 + 1) / 12)
    assert (found["groups"], found["equal_reward_groups"], found["dropped_rows"]) == (4, 2, 0)
    assert found["status"] == {"ok": 12} and found["correct"] is None
    assert found["parts"] == {"reward": pytest.approx(5.5 / 12)}
    assert found["forwards"] == 12 * 3 and found["passes"] == 3.0


def test_live_tokens_and_unstopped_rows(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    real = collecting.sample_in_chunks

    def some_stop(*arguments: Any) -> Trajectory:
        path = real(*arguments)
        path.tokens[torch.arange(4), torch.arange(4)] = policy.special.eos
        return path

    monkeypatch.setattr(collecting, "sample_in_chunks", some_stop)
    collected = gather(policy, [0.0] * 12)
    rows = collected.batch.completion.tolist()
    stops = set(policy.special.stops)
    lengths = [next((k + 1 for k, t in enumerate(row) if t in stops), 6) for row in rows]
    assert collected.batch.live.sum(1).tolist() == lengths
    assert collected.metrics["live_tokens"] == sum(lengths)
    assert collected.metrics["unstopped"] == sum(not stops & set(row) for row in rows)
    ends = [1 + min(k for k, token in enumerate(row) if token in stops) for row in rows if stops & set(row)]
    assert 0 < len(ends) < 12 and collected.metrics["stop_position"] == sum(ends) / len(ends)
    assert len(collected.texts) == 12 and {"id", "prompt", "completion", "reward"} <= collected.texts[0].keys()


def test_identical_and_distinct_completions(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a", "a", "a", "a", "b", "b", "a", "b", "c", "", "", "c"]
    monkeypatch.setattr("maskgrad.training.collect.decode", lambda *_: texts)
    found = gather(policy, [0.0] * 12).metrics
    assert found["identical_groups"] == 1 and found["empty_completions"] == 2
    assert found["distinct_share"] == pytest.approx((1 / 3 + 2 / 3 + 1 + 2 / 3) / 4)


def test_verdicts_are_averaged_over_those_that_are_known(policy: Policy) -> None:
    grades = [Grade(reward=1.0, correct=c, status="ok") for c in (True, False, None)] * 4
    assert gather(policy, grades).metrics["correct"] == pytest.approx(0.5)


@pytest.mark.parametrize("algorithm", [DiffuGRPO(), EGSPO(steps=2), EGSPOSA(steps=2)])
def test_an_abstention_drops_the_row_and_a_group_needs_two(algorithm: Algorithm, policy: Policy) -> None:
    rewards = [None, 1, 0, None, None, 1, None, None, None, 1, 0.5, 0]
    collected = gather(policy, rewards, algorithm)
    whole = gather(policy, [0.0] * 12, algorithm).batch
    kept = [1, 2, 9, 10, 11]  # group 8 has one reward left, group 9 none
    batch = collected.batch
    assert batch.sample.tolist() == [21 + row for row in kept]
    assert batch.group.tolist() == [7, 7, 10, 10, 10]
    assert batch.reward.tolist() == [1, 0, 1, 0.5, 0]
    assert torch.equal(batch.tokens, whole.tokens[kept]) and torch.equal(batch.live, whole.live[kept])
    if batch.trajectory is not None and whole.trajectory is not None:
        assert torch.equal(batch.trajectory.commit_step, whole.trajectory.commit_step[kept])
        assert batch.selected is not None and whole.selected is not None
        assert torch.equal(batch.selected, whole.selected[kept])
    metrics = collected.metrics
    assert metrics["dropped_rows"] == 7
    assert metrics["reward"] == pytest.approx((1 + 0 + 1 + 1 + 0.5 + 0) / 6), "abstentions are no zeros"
    advantage = algorithm.advantage(batch)
    assert advantage.shape[0] == 5 and bool(advantage.isfinite().all())


def test_abstentions_do_not_make_equal_rewards_unequal(policy: Policy) -> None:
    """[None, 1, 1] has no signal; counted as 0 the abstention would hide that."""
    assert gather(policy, [None, 1, 1, 0, 0, 1, None, None, None, 1, 1, 1]).metrics["equal_reward_groups"] == 3


def test_one_shot_completions_are_graded_at_the_selected_passes(policy: Policy) -> None:
    """The reward is a function of the text, so it can be taken again from the trajectory of the same rollouts."""
    collected = gather(policy, lambda text: float(text.count("1")), EGSPOSA(steps=3))
    batch = collected.batch
    assert batch.step_reward is not None and batch.selected is not None and batch.trajectory is not None
    assert batch.step_reward.shape == batch.selected.shape == (12, 3)
    last = batch.selected == batch.trajectory.passes[:, None] - 1
    assert bool(last.any()) and batch.trajectory.one_shot is None, "the canvases are dropped once they are graded"
    assert bool((batch.step_reward >= 0).all()) and len(set(batch.step_reward.flatten().tolist())) > 1


def test_a_one_shot_completion_that_nobody_judges_makes_no_difference(policy: Policy) -> None:
    calls: list[int] = []

    def reward(prompts: list[str], completions: list[str]) -> list[Any]:
        calls.append(len(completions))
        return [1.0, 0.0, 0.5] * 4 if len(calls) == 1 else [None] * len(completions)  # first call: the rollouts

    task = CustomTask(ROWS, reward)
    examples = [task.example("train", i) for i in range(4)]
    batch = collect(policy, task, EGSPOSA(steps=2), CONFIG, examples, 0, 3).batch
    assert calls[0] == 12 and calls[1] <= 24, "each distinct guess of a problem is graded once"
    assert batch.step_reward is not None
    assert torch.equal(batch.step_reward, batch.reward[:, None].expand(12, 2))


def test_a_finite_set_is_walked_through_in_a_new_order_each_epoch(
    smoke: Callable[..., RunConfig], tmp_path: Path
) -> None:
    task = CustomTask(ROWS, lambda prompts, completions: [0.0] * len(prompts))
    config = smoke("diffu_grpo", {"train": {"max_updates": 1}})
    run = TrainingRun.new(config, tmp_path / "run", CustomTask({"train": ROWS, "validation": ROWS}, task._funcs))
    walk = [run._example(i).id for i in range(18)]
    epochs = [walk[i : i + 6] for i in (0, 6, 12)]
    assert all(sorted(epoch) == sorted(epochs[0]) and len(set(epoch)) == 6 for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
