"""Settings of the model of a run: where it is, how its checkpoint is read, and what of it is trained."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from maskgrad.settings import Settings

DEVICE = r"^(cpu|cuda(:\d+)?)$"


class LoraSettings(Settings):
    """Train a low-rank adapter instead of the network. No dropout: ratios come from one deterministic network."""

    rank: int = Field(ge=1)
    alpha: float | None = Field(default=None, gt=0)  # scale is alpha / rank; default 2 x rank
    targets: tuple[str, ...] | None = None  # module names in a layer; default: all of the family's

    @property
    def scale(self) -> float:
        """alpha, with its default."""
        return 2.0 * self.rank if self.alpha is None else self.alpha


class Reading(Settings):
    """How a checkpoint is read and held; all but the adapters are arguments of `load_policy`."""

    adapter: str | None = None  # PEFT folder of a LoRA adapter for it; training goes on with it
    lora: LoraSettings | None = None  # train a new adapter
    mask_token: str | None = None  # of a plain decoder whose config.json names none
    block: int | None = Field(default=None, ge=1)  # of a plain decoder: block-causal with blocks of this length
    logit_shift: Literal[0, 1] | None = None  # of a plain decoder: 1 if a state predicts the next token
    self_test: bool = True  # a few short forwards after loading
    attn: Literal["sdpa", "eager", "flex"] = "sdpa"  # attention kernel; flex: FlexAttention, CUDA only
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    device: str = Field(default="cpu", pattern=DEVICE)

    @model_validator(mode="after")
    def _one_adapter(self) -> Reading:
        if self.adapter is not None and self.lora is not None:
            raise ValueError("model.adapter goes on with an adapter and model.lora makes a new one: set one of them")
        return self

    @property
    def reading(self) -> dict[str, Any]:
        """Arguments of `load_policy` besides path and adapter."""
        names = ("mask_token", "block", "logit_shift", "self_test", "attn", "dtype", "device")
        return {name: getattr(self, name) for name in names}


class ModelConfig(Reading):
    path: str  # local folder, hub id, or maskgrad:NAME for a model that ships in the package
    gradient_checkpointing: bool = False


class SftModelConfig(Reading):
    """Either `path` of a checkpoint to continue from, or a new model: `architecture` in its family's config keys."""

    path: str | None = None
    architecture: dict[str, Any] | None = None
    characters: str | None = None  # of the new model's character tokenizer
    save_dtype: Literal["float32", "float16", "bfloat16"] | None = None

    @model_validator(mode="after")
    def _one(self) -> SftModelConfig:
        if (self.path is None) == (self.architecture is None):
            raise ValueError("set exactly one of model.path and model.architecture")
        if self.path is None and (self.adapter is not None or self.lora is not None):
            raise ValueError("an adapter needs a trained base: give model.path with model.adapter or model.lora")
        declared = [name for name in ("mask_token", "block", "logit_shift") if getattr(self, name) is not None]
        if self.path is None and declared:
            raise ValueError(f"model.{declared[0]} is for a checkpoint: of a new model, say it in model.architecture")
        if self.path is None and self.attn != "sdpa":
            raise ValueError(f"model.attn {self.attn!r} is for a checkpoint: a new model is made with 'sdpa'")
        if self.architecture is not None and not self.characters:
            raise ValueError("a new model needs model.characters, the alphabet of its tokenizer")
        return self
