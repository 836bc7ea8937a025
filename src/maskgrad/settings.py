"""Base class of every configuration object: frozen, and an unknown key is an error that names the nearest valid one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from maskgrad.errors import UserError, nearest


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


S = TypeVar("S", bound=Settings)


def _valid_keys(model: type[BaseModel], path: tuple[Any, ...], values: Any) -> list[str]:
    """Field names valid at `path` of the nested settings, following the tag of a union where there is one."""
    current: Any = model
    for key in path:
        if not (isinstance(current, type) and issubclass(current, BaseModel)):
            return []
        info = current.model_fields.get(str(key))
        if info is None:  # the tag that pydantic inserts for a discriminated union
            continue
        values = values.get(key) if isinstance(values, Mapping) else None
        current = _choose(info.annotation, values, info.discriminator)
    return list(current.model_fields) if isinstance(current, type) and issubclass(current, BaseModel) else []


def _choose(annotation: Any, values: Any, discriminator: Any) -> Any:
    options = [a for a in getattr(annotation, "__args__", (annotation,)) if isinstance(a, type)]
    models = [a for a in options if issubclass(a, BaseModel)]
    tag = values.get(discriminator) if isinstance(values, Mapping) and isinstance(discriminator, str) else None
    for model in models:
        if tag is not None and model.model_fields[discriminator].default == tag:
            return model
    return models[0] if models else annotation


def parse(model: type[S], values: Mapping[str, Any], where: str = "") -> S:
    """Validate `values`; the first error becomes one UserError sentence naming key, value and the way out."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UserError(explain(model, values, error, where)) from None


def explain(model: type[BaseModel], values: Mapping[str, Any], error: ValidationError, where: str = "") -> str:
    # a misspelt key is often the reason why another one is missing
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    place = f" in {where}" if where else ""
    *parents, key = first["loc"] or ("",)
    path = ".".join(str(p) for p in first["loc"] if not _is_tag(p, values))
    if first["type"] == "extra_forbidden":
        return f"unknown key {path!r}{place}: {nearest(str(key), _valid_keys(model, tuple(parents), values))}"
    if first["type"] == "union_tag_invalid":
        context = first["ctx"]
        names = [t.strip(" '") for t in context["expected_tags"].split(",")]
        return f"unknown {path} {context['tag']!r}{place}: {nearest(context['tag'], names)}"
    if first["type"] == "missing":
        return f"key {path!r}{place} is missing"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return f"{path}{place}: {message}" if path else f"{message}{place}"
    return f"{path} = {first.get('input')!r}{place} is not valid: {message}"


def _is_tag(part: Any, values: Mapping[str, Any]) -> bool:
    return any(isinstance(v, Mapping) and v.get("name") == part for v in values.values()) and part not in values
