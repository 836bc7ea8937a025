"""A sampled completion, pass by pass, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from maskgrad.diffusion.schedule import SamplerConfig
from maskgrad.models.policy import Policy
from maskgrad.records import Trajectory


def trace(policy: Policy, prompts: Sequence[Any], path: Trajectory, sampler: SamplerConfig) -> dict[str, Any]:
    """Every pass of every row: canvas after the pass (token ids), positions committed, entropy in nats."""
    rows = []
    for i, prompt in enumerate(prompts):
        commit, tokens = path.commit_step[i].tolist(), path.tokens[i].tolist()
        passes = []
        for step in range(int(path.passes[i])):
            canvas = [t if 0 <= s <= step else policy.special.mask for t, s in zip(tokens, commit, strict=True)]
            revealed = [k for k, s in enumerate(commit) if s == step]
            entropy = float(path.entropy_revealed[i, step]) / max(1, len(revealed))
            text = None if policy.tokenizer is None else policy.tokenizer.decode(canvas)
            passes.append({"step": step, "committed": revealed, "canvas": canvas, "text": text, "entropy": entropy})
        logp = path.commit_logp[i].tolist()
        rows.append({"prompt": prompt, "tokens": tokens, "commit_step": commit, "commit_logp": logp, "passes": passes})
    return {"sampler": sampler.model_dump(mode="json"), "mask": policy.special.mask, "rows": rows}
