"""What a checkpoint format says about a network beyond the backbone's own config class."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Facts about a network that the backbone's config class has no word for."""

    vocab_size: int  # ids the authors count as vocabulary; the tables may have more rows
    tied: bool = False  # the head is the input embedding
    head_bias: bool = False
    output_bias: bool = True  # False: q, k, v keep their biases and the attention output projection has none
    embed_scale: float = 1.0  # factor on the input embeddings
    logit_scale: float = 1.0  # factor on the logits
    block: int | None = None  # block length of a block-causal network


@dataclass(frozen=True, kw_only=True)
class SpecialIds:
    """Token ids with a role. `stops` end a completion; `eos` is one of them."""

    mask: int
    pad: int
    eos: int
    stops: tuple[int, ...]


@dataclass(frozen=True)
class NameMap:
    """One-to-one map between module paths of a checkpoint and of `Policy`.

    `pairs` holds (checkpoint, policy) paths, `{n}` standing for a layer number. Whatever follows the module path
    (`.weight`, `.bias`, `.lora_A.weight`) is carried over.
    """

    pairs: tuple[tuple[str, str], ...]
    _rules: dict[bool, list[tuple[re.Pattern[str], str]]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        inward = [_rule(theirs, ours) for theirs, ours in self.pairs]
        outward = [_rule(ours, theirs) for theirs, ours in self.pairs]
        object.__setattr__(self, "_rules", {True: inward, False: outward})

    def ours(self, name: str) -> str | None:
        """Name in `Policy` of a tensor of the checkpoint, None when the format has no such tensor."""
        return self._translate(name, inward=True)

    def theirs(self, name: str) -> str | None:
        """Name in the checkpoint of a tensor of `Policy`, None when the format has no such tensor."""
        return self._translate(name, inward=False)

    def _translate(self, name: str, *, inward: bool) -> str | None:
        for pattern, target in self._rules[inward]:
            if match := pattern.fullmatch(name):
                layer = match.groupdict().get("n")
                return (target if layer is None else target.replace("{n}", layer)) + (match["rest"] or "")
        return None


def adapts(name: str) -> bool:
    """Whether a parameter of `Policy` belongs to a LoRA adapter."""
    return ".lora_" in name


def plain_name(name: str) -> str:
    """The name a parameter of an adapted module has without the adapter around it."""
    return name.replace(".base_layer.", ".")


def _rule(source: str, target: str) -> tuple[re.Pattern[str], str]:
    pattern = re.escape(source).replace(re.escape("{n}"), r"(?P<n>\d+)")
    return re.compile(pattern + r"(?P<rest>\..+)?"), target
