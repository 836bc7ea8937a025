"""The network under training: a bidirectional backbone, a head, and the facts about its tokens.

Shapes: `B` sequences, `T` positions, `d` width, `V` rows of the vocabulary tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedTokenizerFast

from maskgrad.errors import UserError, nearest
from maskgrad.models.attention import (
    Rule,
    additive,
    block_causal,
    block_ids,
    full,
    make_bidirectional,
    positions,
    visible,
)
from maskgrad.models.families import Family
from maskgrad.models.layout import SpecialIds, adapts, plain_name
from maskgrad.models.staircase import Layout, pack

#: Names of the attention kernels, and what `transformers` calls them.
ATTENTION = {"sdpa": "sdpa", "eager": "eager", "flex": "flex_attention"}


class Policy(nn.Module):
    """A masked-diffusion language model. `config` is the authors' config.json, kept whole.

    The constructor allocates and draws nothing: parameters are on the meta device until `fill` brings them in.
    Layers are called one by one instead of through the backbone's own forward, which would build a causal mask.
    """

    backbone: Any  # a decoder of transformers without its head
    source: str | None = None  # where the weights were read from, as `load_policy` can find it again
    adapter: Any = None  # settings of the LoRA adapter in the backbone, if there is one (adapters.py)
    forbidden: Tensor  # bool [V]; ids that are never sampled: MASK and what the tokenizer cannot decode

    def __init__(
        self,
        family: Family,
        config: Mapping[str, Any],
        special: SpecialIds,
        tokenizer: PreTrainedTokenizerFast | None = None,
        attn: str = "sdpa",
    ) -> None:
        super().__init__()
        if attn not in ATTENTION:
            raise UserError(f"attn is {attn!r}; {nearest(attn, ATTENTION)}")
        self.family, self.config, self.special, self.tokenizer = family, dict(config), special, tokenizer
        self.traits = family.traits(config)
        self.attn = ATTENTION[attn]
        #: Where the blocks of a block-causal policy start: "absolute" or "response", see attention.block_ids.
        self.grid = "absolute"
        #: What a clean token sees inside its own block in a staircase pass: "block" or "causal".
        self.clean_stream = "block"
        self._checkpointing = False
        inner = family.to_backbone(config)
        inner.is_causal = False
        inner._attn_implementation = self.attn
        # on the meta device the constructors of both libraries leave the global generator alone
        with torch.device("meta"):
            self.backbone = family.backbone(inner)
            self.head = nn.Linear(inner.hidden_size, inner.vocab_size, bias=self.traits.head_bias)
        assert make_bidirectional(self.backbone) == len(self.backbone.layers)
        # the libraries' versions differ in the name of this argument
        accepted = signature(type(self.backbone.layers[0]).forward).parameters
        self._cache_argument = "cache" if "cache" in accepted else "past_key_values"
        if not self.traits.output_bias:
            for layer in self.backbone.layers:
                layer.self_attn.o_proj.bias = None
        self._tie()
        self.eval()

    def _tie(self) -> None:
        if self.traits.tied:
            self.head.weight = self.backbone.embed_tokens.weight

    def fill(self, tensors: Mapping[str, Tensor]) -> Policy:
        """Take over `tensors` (policy names; all of one dtype and device) as the parameters."""
        tied = {"head.weight": tensors["backbone.embed_tokens.weight"]} if self.traits.tied else {}
        self.load_state_dict({**tensors, **tied}, assign=True)
        self._tie()
        # the rotary frequencies are in no file; they stay fp32 whatever the dtype of the weights
        rotary = self.backbone.rotary_emb
        with torch.device(self.device):
            self.backbone.rotary_emb = type(rotary)(rotary.config)
        if self.attn == "flex_attention" and self.device.type != "cuda":
            raise UserError(f"attn 'flex' needs a CUDA device, and the weights are on {self.device}: use attn 'sdpa'")
        self.register_buffer("forbidden", self._forbidden().to(self.device), persistent=False)
        return self

    def _forbidden(self) -> Tensor:
        known = range(self.traits.vocab_size) if self.tokenizer is None else self.tokenizer.get_vocab().values()
        forbidden = torch.ones(self.vocab_rows, dtype=torch.bool)
        forbidden[torch.tensor(list(known), dtype=torch.int64)] = False
        forbidden[self.special.mask] = True
        return forbidden

    @property
    def block(self) -> int | None:
        """Block length in tokens of a block-causal policy; None where everything sees everything."""
        return self.traits.block if self.family.visibility == "block_causal" else None

    def block_numbers(self, attend: Tensor, prompt_length: int) -> Tensor:
        """Block number int64 [B,T] of each position on the policy's grid, -1 on padding (`attend` bool [B,T])."""
        assert self.block is not None, "a policy with full attention has no blocks"
        return block_ids(attend, prompt_length, self.block, self.grid)

    def hidden(self, tokens: Tensor, attend: Tensor | None = None, prompt_length: int | None = None) -> Tensor:
        """Last hidden states [B,T,d] of `tokens` int64 [B,T], each position seeing what the family lets it see.

        `attend` bool [B,T] is False on padding, which nobody sees; states at padding mean nothing. The response grid
        of a block-causal policy starts at `prompt_length`.
        """
        assert attend is None or attend.dtype == torch.bool, attend.dtype
        if self.block is not None:
            assert prompt_length is not None or self.grid == "absolute", "the response grid needs the prompt's length"
            attend = torch.ones_like(tokens, dtype=torch.bool) if attend is None else attend
            rule = block_causal(self.block_numbers(attend, prompt_length or 0))
            return self.states(tokens, self._mask(rule, tokens), positions(attend))
        # without padding no mask is built, so that SDPA may take its fastest kernel
        if attend is not None and not bool(attend.all()):
            return self.states(tokens, self._mask(full(attend), tokens), positions(attend))
        return self.states(tokens, None, torch.arange(tokens.shape[1], device=tokens.device)[None])

    forward = hidden

    def _mask(self, rule: Rule, tokens: Tensor) -> Any:
        rows, length = tokens.shape
        return visible(rule, rows, length, self.attn, tokens.device)

    def staircase_at(
        self, clean: Tensor, attend: Tensor, noisy: Tensor, row: Tensor, read: Tensor, layout: Layout = "needed"
    ) -> Tensor:
        """States [n,d] at the positions `read` bool [R,L] of noisy copies, in row-major order, in one staircase pass.

        Block b of a copy sees itself and the clean tokens of earlier blocks: what one pass per block on
        [clean blocks before b | noisy block b] gives. clean int64, attend bool [B,T]; noisy int64 [R,T]; copy r is of
        sequence row[r] (int64 [R]). Block-causal policies only.
        """
        prompt_length = clean.shape[1] - read.shape[1]
        number = self.block_numbers(attend, prompt_length)
        slots = pack(attend, number, row, read, layout)
        tokens = slots.tokens(clean, noisy)
        states = self.states(tokens, self._mask(slots.rule(self.clean_stream), tokens), slots.place)
        copy, position = read.nonzero(as_tuple=True)
        of, target = row[copy], prompt_length + position
        source = self.predict_positions(target)
        # under a logit shift the state before a block predicts its first token, and the sampler has that text clean
        inside = number[of, source] == number[of, target]
        return states[of, torch.where(inside, slots.noisy[copy, source], slots.clean[of, source])]

    def states(self, tokens: Tensor, mask: Any, place: Tensor, cache: Any = None) -> Tensor:
        """Last hidden states [B,Q,d] of `tokens` int64 [B,Q] under an explicit visibility.

        `mask` bool [B|1,1,Q,K], True = may look (with FlexAttention a BlockMask); None lets everything see everything.
        `place` int64 [B|1,Q] holds the rotary positions. `cache`: an object with transformers' `update(keys, values,
        layer) -> (keys, values)`, which puts the keys and values [B,h,Q,.] of this call behind those it holds; then K
        counts both.
        """
        x = self.backbone.embed_tokens(tokens)
        if mask is not None and self.attn == "eager":
            mask = additive(mask, x.dtype)
        if self.traits.embed_scale != 1.0:
            x = x * self.traits.embed_scale
        rotary = self.backbone.rotary_emb(x, position_ids=place)
        for layer in self.backbone.layers:
            x = self._layer(layer, x, mask, rotary, cache)
        return self.backbone.norm(x)

    def _layer(
        self, layer: nn.Module, x: Tensor, mask: Tensor | None, rotary: tuple[Tensor, Tensor], cache: Any
    ) -> Tensor:
        held = {} if cache is None else {self._cache_argument: cache}

        def run(x: Tensor) -> Tensor:
            return layer(x, attention_mask=mask, position_embeddings=rotary, use_cache=False, **held)

        if self._checkpointing and torch.is_grad_enabled() and cache is None:
            # no dropout anywhere, hence no generator state to keep for the second pass
            return checkpoint(run, x, use_reentrant=False, preserve_rng_state=False)
        return run(x)

    def predict_positions(self, index: Tensor) -> Tensor:
        """Where the hidden states that predict the tokens at `index` (int64, any shape) are: same shape.

        A family that predicts one to the right has nothing before position 0, which then predicts itself.
        """
        return index if self.family.logit_shift == 0 else (index - self.family.logit_shift).clamp(min=0)

    def aligned(self, hidden: Tensor) -> Tensor:
        """Hidden states [B,T,d] moved so that the state at k is the one that predicts the token at k."""
        if self.family.logit_shift == 0:
            return hidden
        return hidden[:, self.predict_positions(torch.arange(hidden.shape[1], device=hidden.device))]

    def hidden_at(self, tokens: Tensor, attend: Tensor | None, read: Tensor) -> Tensor:
        """States [n,d] that predict the canvas positions `read` bool [B,L], in row-major order.

        `tokens` int64 [B,P+L], `attend` bool [B,P+L]. Only these states are worth sending through the head.
        """
        states = self.aligned(self.hidden(tokens, attend, tokens.shape[1] - read.shape[1]))
        return states[:, tokens.shape[1] - read.shape[1] :][read]

    def need_tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer; a UserError if the checkpoint came without one."""
        if self.tokenizer is None:
            raise UserError("the checkpoint has no tokenizer (no tokenizer.json in its folder), and text needs one")
        return self.tokenizer

    @property
    def stop_mask(self) -> Tensor:
        """True at the ids that end a completion, bool [V]."""
        mask = torch.zeros_like(self.forbidden)
        mask[list(self.special.stops)] = True
        return mask

    def logits(self, hidden: Tensor) -> Tensor:
        """fp32 logits [...,V] of the given hidden states [...,d], and of no others: the head is the memory."""
        logits = F.linear(hidden, self.head.weight, self.head.bias)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return logits if self.traits.logit_scale == 1.0 else logits * self.traits.logit_scale

    def set_gradient_checkpointing(self, on: bool) -> None:
        """Recompute each layer in the backward pass instead of keeping its activations."""
        self._checkpointing = on

    @property
    def max_length(self) -> int | None:
        """Positions the checkpoint was made for (prompt and canvas together), if its config says so."""
        length = self.config.get("max_sequence_length")
        return None if length is None else int(length)

    @property
    def vocab_rows(self) -> int:
        return self.head.weight.shape[0]

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.head.weight.dtype

    def weights(self) -> dict[str, Tensor]:
        """Parameters under their names in the authors' checkpoints, in the order of the network, without adapters.

        Where the authors store a tensor of the network in pieces these are views of it.
        """
        # named_parameters yields a tied table once, under the name of the embedding
        stored = [self.family.stored(plain_name(name), p) for name, p in self.named_parameters() if not adapts(name)]
        return {name: view for views in stored for name, view in views.items()}

    def num_parameters(self) -> int:
        """Parameters, a tied table counted once."""
        return sum(parameter.numel() for parameter in self.parameters())
