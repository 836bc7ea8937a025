"""What a commit map promises, with the network itself as judge of the recorded numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from maskgrad.diffusion import trajectory as paths
from maskgrad.diffusion.sampler import KeyedNoise, Record, sample
from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.models.load import load_policy
from maskgrad.models.policy import Policy
from maskgrad.models.tokenizer import left_pad
from maskgrad.records import PromptBatch, Trajectory

ROWS = 24
SETTINGS: dict[str, dict[str, Any]] = {
    "one block": {"gen_length": 16, "steps": 7, "temperature": 1.0},
    "blocks": {"gen_length": 16, "block_length": 4, "steps": 8, "temperature": 1.0},
    "uneven": {"gen_length": 14, "block_length": 4, "steps": 9, "temperature": 1.3},
    "released": {"gen_length": 14, "block_length": 4, "steps": 9, "uneven": "released"},
    "one token per pass": {"gen_length": 9, "block_length": 5},
    "all at once": {"gen_length": 12, "steps": 1, "temperature": 0.7},
    "random": {"gen_length": 16, "steps": 5, "temperature": 1.0, "remasking": "random"},
    "threshold": {"gen_length": 14, "block_length": 4, "threshold": 0.7, "temperature": 1.0},
    "never": {"gen_length": 18, "steps": 9, "temperature": 1.5, "suppress_stop": "never"},
}


@pytest.fixture(scope="module")
def prompts(policy: Policy) -> PromptBatch:
    rows = [[5 + (7 * i + j) % 10 for j in range(1 + i % 16)] + [3] for i in range(ROWS)]
    ids, real = left_pad(rows, policy.special.pad)
    return PromptBatch(ids=ids, real=real, sample=torch.arange(ROWS))


def run(policy: Policy, prompts: PromptBatch, config: SamplerConfig, seed: int = 0) -> Trajectory:
    return sample(policy, prompts, config, KeyedNoise(seed, prompts.sample), Record(proposals=True))


@pytest.mark.parametrize("name", SETTINGS)
def test_every_pass_commits_what_the_plan_says_block_after_block(
    name: str, policy: Policy, prompts: PromptBatch
) -> None:
    config = SamplerConfig(**SETTINGS[name], stop_early=False)
    before = prompts.ids.clone()
    path = run(policy, prompts, config)
    paths.check_states(path, policy.special.mask)
    assert torch.equal(prompts.ids, before), "the prompt was changed"
    assert not bool(torch.isin(path.tokens, policy.forbidden.nonzero()).any()), "an id that may not be sampled"
    assert bool((path.commit_step >= 0).all()), "a position was never committed"
    block = torch.arange(config.gen_length) // config.block
    for b in range(config.blocks - 1):
        last = path.commit_step[:, block == b].amax(1)
        assert bool((last < path.commit_step[:, block == b + 1].amin(1)).all()), "a later block was begun too early"
    per_pass = torch.stack([(path.commit_step == s).sum(1) for s in range(int(path.passes.max()))], 1)
    assert torch.equal(per_pass, path.revealed.to(torch.int64))
    if config.threshold is None:
        plan = [n for passes in config.commits() for n in passes]
        assert (per_pass == torch.tensor(plan)).all()
        assert path.passes.tolist() == [len(plan)] * ROWS
    else:
        taken = torch.arange(per_pass.shape[1])[None] < path.passes[:, None]
        assert bool((per_pass[taken] >= 1).all()) and not bool(per_pass[~taken].any())


@pytest.mark.parametrize("name", ["uneven", "random", "threshold", "all at once", "never"])
def test_recorded_numbers_are_those_of_the_rebuilt_states(name: str, policy: Policy, prompts: PromptBatch) -> None:
    """Each state is rebuilt from the commit map alone and sent through the network once more."""
    config = SamplerConfig(**SETTINGS[name], stop_early=False)
    path = run(policy, prompts, config)
    banned = policy.forbidden | policy.stop_mask if config.suppress_stop == "never" else policy.forbidden
    canvas = torch.ones_like(path.tokens, dtype=torch.bool)
    for step in range(int(path.passes.max())):
        steps = torch.full((ROWS, 1), step)
        hidden = paths.hidden_before(path, steps)[:, 0]
        tokens = torch.cat([prompts.ids, torch.where(hidden, policy.special.mask, path.tokens)], 1)
        states = policy.hidden_at(tokens, torch.cat([prompts.real, canvas], 1), canvas)
        logits = policy.logits(states).view(*canvas.shape, -1)
        raw = logits.log_softmax(-1)
        tempered = (logits.masked_fill(banned, -torch.inf) / config.temperature).log_softmax(-1)
        revealed = paths.revealed_at(path, steps)[:, 0]
        window = paths.active_block(path, steps, config.block)[:, 0] & hidden & (path.passes > step)[:, None]
        own = tempered.gather(-1, path.tokens[..., None]).squeeze(-1)
        torch.testing.assert_close(path.commit_logp[revealed], own[revealed], rtol=1e-4, atol=1e-4)

        def entropy(logp: Tensor) -> Tensor:
            return -(logp.exp() * logp.clamp(min=-1e4)).sum(-1)

        for field, value in (("entropy", entropy(raw)), ("joint", entropy(tempered))):
            torch.testing.assert_close(
                getattr(path, f"{field}_revealed")[:, step], (value * revealed).sum(1), rtol=1e-3, atol=1e-3
            )
            torch.testing.assert_close(
                getattr(path, f"{field}_masked")[:, step], (value * window).sum(1), rtol=1e-3, atol=1e-3
            )
        assert torch.equal(path.masked[:, step].to(torch.int64), window.sum(1))
        if config.remasking == "low_confidence":
            assert path.proposals is not None
            proposal = path.proposals[:, step].to(torch.int64)
            assert torch.equal(proposal[revealed], path.tokens[revealed])
            confidence = raw.gather(-1, proposal.clamp(min=0)[..., None]).squeeze(-1).exp()
            worst = torch.where(revealed, confidence, torch.inf).amin(1)
            best = torch.where(window & ~revealed, confidence, -torch.inf).amax(1)
            # ranks are compared at a resolution of 2^-16, and the temperature must not reorder them
            assert bool((worst >= best - 2**-15).all()), "a less confident proposal was committed first"


@pytest.fixture(scope="module")
def stopping() -> Policy:
    """A model one of whose digits ends the completion, so that nearly every rollout stops somewhere."""
    policy = load_policy("maskgrad:base_sudoku_tiny").requires_grad_(False)
    policy.special = replace(policy.special, stops=(*policy.special.stops, 7))
    return policy


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stopping_early_changes_nothing_up_to_the_stop(
    temperature: float, stopping: Policy, prompts: PromptBatch
) -> None:
    common: dict[str, Any] = {"gen_length": 14, "block_length": 2, "steps": 9, "temperature": temperature}
    full = run(stopping, prompts, SamplerConfig(**common, stop_early=False))
    early = run(stopping, prompts, SamplerConfig(**common))
    stops = stopping.special.stops
    live = paths.live_mask(full.tokens, stops)
    assert torch.equal(live, paths.live_mask(early.tokens, stops))
    assert torch.equal(full.tokens[live], early.tokens[live])
    assert len(set(early.passes.tolist())) > 1 and int(early.passes.min()) < 9, "rows must stop in different blocks"
    block, plan = torch.arange(14) // 2, SamplerConfig(**common).commits()
    for row in range(ROWS):
        stop = torch.isin(full.tokens[row], torch.tensor(stops)).nonzero()
        last = int(block[stop[0]]) if len(stop) else 6
        done = block <= last
        assert torch.equal(early.tokens[row, done], full.tokens[row, done])
        assert torch.equal(early.commit_step[row, done], full.commit_step[row, done])
        torch.testing.assert_close(early.commit_logp[row, done], full.commit_logp[row, done])
        assert bool((early.commit_step[row, ~done] == -1).all()) and not bool(early.commit_logp[row, ~done].any())
        assert bool((early.tokens[row, ~done] == stops[0]).all())
        assert int(early.passes[row]) == sum(len(plan[b]) for b in range(last + 1))
    assert early.forwards == int(early.passes.sum()) < full.forwards


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_never_means_no_stop_token_is_proposed(temperature: float, stopping: Policy, prompts: PromptBatch) -> None:
    common: dict[str, Any] = {"gen_length": 16, "steps": 8, "temperature": temperature}
    stops = torch.tensor(stopping.special.stops)
    assert bool(torch.isin(run(stopping, prompts, SamplerConfig(**common)).tokens, stops).any())
    path = run(stopping, prompts, SamplerConfig(**common, suppress_stop="never"))
    assert path.proposals is not None
    assert not bool(torch.isin(path.tokens, stops).any())
    assert not bool(torch.isin(path.proposals.to(torch.int64), stops).any())


@pytest.mark.parametrize("remasking", ["low_confidence", "entropy"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_delay_commits_stop_tokens_last(
    temperature: float, remasking: str, stopping: Policy, prompts: PromptBatch
) -> None:
    """A stop token is committed only in a pass that has no other proposal left over."""
    common: dict[str, Any] = {"gen_length": 16, "steps": 8, "temperature": temperature, "remasking": remasking}
    stops = torch.tensor(stopping.special.stops)

    def premature(path: Trajectory) -> int:
        assert path.proposals is not None
        count = 0
        for step in range(8):
            proposal = path.proposals[:, step].to(torch.int64)
            stop, revealed = torch.isin(proposal, stops), path.commit_step == step
            waiting = (proposal >= 0) & ~revealed & ~stop
            count += int(((stop & revealed).any(1) & waiting.any(1)).sum())
        return count

    free = SamplerConfig(**common, stop_early=False)
    assert premature(run(stopping, prompts, free)) > 0, "without the delay some stop tokens come early"
    delayed = run(stopping, prompts, SamplerConfig(**common, stop_early=False, suppress_stop="delay"))
    assert premature(delayed) == 0
    assert bool(torch.isin(delayed.tokens, stops).any()), "delayed, not forbidden"


@pytest.mark.parametrize("suppress", ["none", "never", "delay"])
@pytest.mark.parametrize("remasking", ["low_confidence", "max_prob", "entropy", "margin", "random"])
def test_a_vanishing_temperature_is_temperature_zero(
    remasking: str, suppress: str, stopping: Policy, prompts: PromptBatch
) -> None:
    """Suppression and commit order mean the same on both sides of temperature 0."""
    common: dict[str, Any] = {"gen_length": 16, "block_length": 8, "steps": 6, "remasking": remasking}
    cold = run(stopping, prompts, SamplerConfig(**common, suppress_stop=suppress))
    cool = run(stopping, prompts, SamplerConfig(**common, suppress_stop=suppress, temperature=1e-9))
    assert torch.equal(cold.tokens, cool.tokens)
    assert torch.equal(cold.commit_step, cool.commit_step)


def test_guidance_moves_away_from_the_prompt_free_answer(policy: Policy, prompts: PromptBatch) -> None:
    """One greedy pass: the token is the argmax of u + (w + 1)(c - u), with u read behind a hidden prompt."""
    config = SamplerConfig(gen_length=8, steps=1, guidance=1.5)
    path = run(policy, prompts, config)
    canvas = torch.full((ROWS, 8), policy.special.mask)
    attend = torch.cat([prompts.real, torch.ones(ROWS, 8, dtype=torch.bool)], 1)
    read = torch.ones(ROWS, 8, dtype=torch.bool)
    blank = torch.where(prompts.real, policy.special.mask, prompts.ids)
    c, u = (policy.logits(policy.hidden_at(torch.cat([p, canvas], 1), attend, read)) for p in (prompts.ids, blank))
    expected = (u + 2.5 * (c - u)).masked_fill(policy.forbidden, -torch.inf).argmax(-1).view(ROWS, 8)
    assert torch.equal(path.tokens, expected)
    plain = c.masked_fill(policy.forbidden, -torch.inf).argmax(-1).view(ROWS, 8)
    assert not torch.equal(expected, plain)
    assert path.forwards == 2 * ROWS
