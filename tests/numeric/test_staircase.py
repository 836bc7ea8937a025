"""A staircase pass against one pass per block, and what must not leak through it.

Errors caught: `<` replaced by `<=` on the stair; noisy copies that see each other; the clean stream made causal or
shifted; positions of the noisy copy counted on; block numbers that count padding; a slot off by one; the canvas's
first block without the prompt tokens that share it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from block_models import block_batch, block_policy, per_block_states
from torch import Tensor

from maskgrad.errors import UserError
from maskgrad.likelihood import block_views
from maskgrad.likelihood.score import replay, score, score_rows
from maskgrad.models import attention
from maskgrad.models import policy as policies
from maskgrad.models.policy import Policy
from maskgrad.models.staircase import pack
from maskgrad.records import MaskedViews, RolloutBatch

GRIDS = ("absolute", "response")
LAYOUTS = ("needed", "shared", "doubled")


def noisy_copies(policy: Policy, batch: RolloutBatch, views: int, seed: int = 3) -> tuple[Tensor, Tensor]:
    """(row [R], noisy [R,T]): `views` copies of each row with half of the canvas hidden."""
    row = torch.arange(len(batch)).repeat_interleave(views)
    hide = torch.rand(len(row), batch.tokens.shape[1], generator=torch.Generator().manual_seed(seed)) < 0.5
    hide[:, : batch.prompt_length] = False
    return row, torch.where(hide, policy.special.mask, batch.tokens[row])


@pytest.mark.parametrize("clean", ["block", "causal"])
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("block", [1, 3, 4, 32])
@pytest.mark.parametrize(("dtype", "atol"), [("float64", 1e-10), ("float32", 1e-4)])
def test_one_pass_equals_one_pass_per_block(grid: str, clean: str, block: int, dtype: str, atol: float) -> None:
    """Lengths that do not divide, left padding, two copies of each row; all layouts."""
    policy = block_policy(block, dtype, grid=grid)
    policy.clean_stream = clean
    batch = block_batch(policy)
    row, noisy = noisy_copies(policy, batch, 2)
    read = torch.ones(len(row), batch.live.shape[1], dtype=torch.bool)
    with torch.no_grad():
        wanted = torch.stack(
            [per_block_states(policy, batch, int(r), n, clean) for r, n in zip(row, noisy, strict=True)]
        )
        for layout in LAYOUTS:
            states = policy.staircase_at(batch.tokens, batch.attend, noisy, row, read, layout)
            torch.testing.assert_close(states.view(wanted.shape), wanted, rtol=0, atol=atol)
    assert (wanted[0] - wanted[1]).abs().max() > 1e-2


@pytest.mark.parametrize("grid", GRIDS)
def test_leaving_out_what_is_not_read_changes_nothing(grid: str) -> None:
    policy = block_policy(grid=grid)
    batch = block_batch(policy)
    row, noisy = noisy_copies(policy, batch, 3)
    read = torch.rand(len(row), 10, generator=torch.Generator().manual_seed(5)) < 0.15
    read[4] = False
    with torch.no_grad():
        found = {x: policy.staircase_at(batch.tokens, batch.attend, noisy, row, read, x) for x in LAYOUTS}
        whole = policy.staircase_at(batch.tokens, batch.attend, noisy, row, torch.ones_like(read), "doubled")
    for states in found.values():
        torch.testing.assert_close(states, whole.view(*read.shape, -1)[read], rtol=0, atol=1e-12)
    numbers = policy.block_numbers(batch.attend, batch.prompt_length)
    width = {x: pack(batch.attend, numbers, row, read, x).block.shape[1] for x in LAYOUTS}
    assert width["needed"] < width["shared"] < width["doubled"]


def forbidden_gradients(policy: Policy, batch: RolloutBatch) -> float:
    """Largest gradient of a noisy block with respect to what it must not see, both copies whole; checks its own."""
    numbers = policy.block_numbers(batch.attend, batch.prompt_length)
    row, noisy = noisy_copies(policy, batch, 1)
    slots = pack(batch.attend, numbers, row, torch.ones(len(row), 10, dtype=torch.bool), "doubled")
    tokens = slots.tokens(batch.tokens, noisy)
    inputs = policy.backbone.embed_tokens(tokens).detach().requires_grad_(True)
    handle = policy.backbone.embed_tokens.register_forward_hook(lambda *_: inputs)
    mask = attention.dense(slots.rule(policy.clean_stream), *tokens.shape, tokens.shape[1])
    logits = policy.logits(policy.states(tokens, mask, slots.place))
    handle.remove()
    worst = 0.0
    for b in range(len(batch)):
        for number in numbers[b].unique().tolist():
            own = (slots.copy[b] > 0) & (slots.block[b] == number)
            if number < 0 or not bool(own.any()):
                continue
            (grad,) = torch.autograd.grad(logits[b, own].square().sum(), inputs, retain_graph=True)
            past = (slots.copy[b] == 0) & (slots.block[b] < number) & (slots.block[b] >= 0)
            seen = grad[b].abs().amax(-1) > 0
            assert bool(seen[own | past].all()), "what a block may see has no influence on it"
            worst = max(worst, float(grad[b, ~(own | past)].abs().max()), float(grad[:b].abs().sum()))
    return worst


@pytest.mark.parametrize("clean", ["block", "causal"])
@pytest.mark.parametrize("grid", GRIDS)
def test_nothing_leaks(grid: str, clean: str) -> None:
    """Gradients with respect to clean tokens of the same or later blocks and to other noisy blocks are exactly zero."""
    policy = block_policy(grid=grid)
    policy.clean_stream = clean
    assert forbidden_gradients(policy, block_batch(policy)) == 0.0


def test_a_stair_without_its_strict_inequality_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def leaky(block: Tensor, copy: Tensor, place: Tensor, clean: str = "block") -> attention.Rule:
        strict = attention.staircase(block, copy, place, clean)

        def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            own, other = block[b, q], block[b, k]
            return strict(b, h, q, k) | ((copy[b, q] > 0) & (copy[b, k] == 0) & (other <= own) & (other >= 0))

        return rule

    monkeypatch.setattr("maskgrad.models.staircase.staircase", leaky)
    policy = block_policy()
    assert forbidden_gradients(policy, block_batch(policy)) > 1e-3


@pytest.mark.parametrize("grid", GRIDS)
def test_permuting_what_a_block_must_not_see_changes_no_bit(grid: str) -> None:
    policy = block_policy(grid=grid)
    batch = block_batch(policy)
    row, noisy = noisy_copies(policy, batch, 1)
    read = torch.ones(len(row), 10, dtype=torch.bool)
    assert batch.block is not None
    start = batch.prompt_length
    with torch.no_grad():
        states = policy.staircase_at(batch.tokens, batch.attend, noisy, row, read, "doubled").view(3, 10, -1)
        for number in range(int(batch.block.max()) + 1):
            later = batch.block >= number
            other = batch.tokens.clone()
            other[:, start:][later] = other[:, start:][later].flip(0)
            again = policy.staircase_at(other, batch.attend, noisy, row, read, "doubled").view(3, 10, -1)
            assert torch.equal(states[batch.block == number], again[batch.block == number])


def test_both_copies_have_the_same_positions() -> None:
    policy = block_policy()
    batch = block_batch(policy)
    row = torch.arange(3)
    numbers = policy.block_numbers(batch.attend, batch.prompt_length)
    slots = pack(batch.attend, numbers, row, torch.ones(3, 10, dtype=torch.bool), "doubled")
    for b in range(3):
        clean, noisy = (slots.place[b, (slots.copy[b] == c) & (slots.block[b] >= 0)] for c in (0, b + 1))
        assert torch.equal(clean, noisy) and torch.equal(clean, torch.arange(len(clean)))


def test_blocks_of_one_token_condition_on_all_clean_tokens_before_it() -> None:
    policy = block_policy(1)
    batch = block_batch(policy)
    hidden = torch.ones(3, 1, batch.tokens.shape[1], dtype=torch.bool)
    hidden[..., : batch.prompt_length] = False
    views = sequence_views_of(hidden, batch)
    found = score(policy, batch, views, 8)[:, 0]
    for k in range(10):
        tokens = batch.tokens[:, : batch.prompt_length + k + 1].clone()
        tokens[:, -1] = policy.special.mask
        with torch.no_grad():
            logits = policy.logits(policy.hidden(tokens, batch.attend[:, : tokens.shape[1]])[:, -1])
        wanted = logits.log_softmax(-1).gather(1, batch.completion[:, k, None])[:, 0]
        torch.testing.assert_close(found[:, k], wanted, rtol=0, atol=1e-10)


def sequence_views_of(hidden: Tensor, batch: RolloutBatch) -> MaskedViews:
    scored = hidden[:, :, batch.prompt_length :]
    zeros = torch.zeros(scored.shape, dtype=torch.int64)
    return MaskedViews(hidden=hidden, scored=scored, weight=torch.ones(scored.shape), unit=zeros, units=1)


@pytest.mark.parametrize("guidance", [0.0, 1.5])
@pytest.mark.parametrize("grid", GRIDS)
def test_scorer_reads_each_block_beside_clean_text(grid: str, guidance: float) -> None:
    """Log-probs in any micro-batch, with prompts perturbed per view and with guidance, against one pass per block."""
    policy = block_policy(grid=grid)
    batch = block_batch(policy)
    draws = torch.Generator().manual_seed(8)
    hidden = torch.rand(3, 3, batch.tokens.shape[1], generator=draws) < 0.4
    hidden &= batch.attend[:, None]
    hidden[:, 0, : batch.prompt_length] = False
    views = replace(sequence_views_of(hidden, batch), guidance=guidance)
    found = {n: score(policy, batch, views, n) for n in (1, 4, 100)}
    for n in (1, 4):
        torch.testing.assert_close(found[n], found[100], rtol=0, atol=1e-12)
    real = batch.attend.clone()
    real[:, batch.prompt_length :] = False
    with torch.no_grad():
        for b in range(3):
            for n in range(3):
                parts = []
                for more in (torch.zeros_like(real[b]), real[b]):
                    noisy = torch.where(hidden[b, n] | more, policy.special.mask, batch.tokens[b])
                    clean = torch.cat([noisy[: batch.prompt_length], batch.completion[b]])
                    seen = replace(batch, tokens=batch.tokens.index_put((torch.tensor(b),), clean))
                    parts.append(policy.logits(per_block_states(policy, seen, b, noisy)))
                logits = parts[0] if guidance == 0 else parts[1] + (1 + guidance) * (parts[0] - parts[1])
                wanted = logits.log_softmax(-1).gather(1, batch.completion[b][:, None])[:, 0]
                wanted = torch.where(views.scored[b, n], wanted, 0.0)
                torch.testing.assert_close(found[100][b, n], wanted, rtol=0, atol=1e-10)


def test_pairs_of_rows_and_views_in_any_order() -> None:
    policy = block_policy()
    batch = block_batch(policy)
    views = block_views.block_elbo(batch, 0, draws=2)
    row, view = torch.tensor([2, 0, 1, 0, 2]), torch.tensor([1, 0, 1, 1, 0])
    with torch.no_grad():
        found = score_rows(policy, batch, views, row, view)
    torch.testing.assert_close(found, score(policy, batch, views, 1)[row, view], rtol=0, atol=1e-12)


def test_rollouts_on_another_grid_are_refused() -> None:
    policy = block_policy(grid="response")
    batch = block_batch(policy)
    views = block_views.block_elbo(batch, 0, draws=1)
    score(policy, batch, views, 8)
    policy.grid = "absolute"
    with pytest.raises(UserError, match="absolute grid of block length 4"):
        score(policy, batch, views, 8)


def test_flex_needs_a_gpu() -> None:
    assert "flex" in policies.ATTENTION
    with pytest.raises(UserError, match="CUDA"):
        Policy(block_policy().family, block_policy().config, block_policy().special, attn="flex").fill(
            dict(block_policy().named_parameters())
        )


@pytest.mark.parametrize("micro_batch", [1, 4])
def test_replayed_gradient_equals_the_joint_one(micro_batch: int) -> None:
    """Views packed together or one by one: the same gradient, up to the norms, which compute in fp32 always."""
    policy = block_policy()
    batch = block_batch(policy)
    views = block_views.block_elbo(batch, 0, draws=3)
    weight = torch.where(views.scored, views.weight, 0.0)
    row, view = views.scored.any(-1).nonzero(as_tuple=True)
    (score_rows(policy, batch, views, row, view) * weight[row, view]).sum().backward()
    joint = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
    policy.zero_grad()
    replay(policy, batch, views, weight, micro_batch)
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, joint[name], rtol=1e-4, atol=1e-5)
