"""Finding the folder of a checkpoint, and its JSON files."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError

from maskgrad.errors import UserError, nearest

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_DOWNLOAD = ["*.json", "*.safetensors", "*.jinja", "*.txt"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def find_folder(path: str) -> Path:
    """The folder of a checkpoint: a local one, `maskgrad:NAME` inside the package, or a download of a hub id."""
    if path.startswith("maskgrad:"):
        return _packaged(path)
    if Path(path).is_dir():
        return Path(path)
    if not _HUB_ID.fullmatch(path) or Path(path).exists():
        raise UserError(f"model {path!r} is not a folder; give a folder with config.json and {WEIGHTS}, or a hub id")
    try:
        return Path(snapshot_download(path, allow_patterns=_DOWNLOAD))
    except (OSError, HFValidationError) as error:
        raise UserError(
            f"model {path!r} is no local folder and could not be fetched from the hub ({type(error).__name__}); "
            "download it to a folder and pass that"
        ) from error


def _packaged(path: str) -> Path:
    name, assets = path.removeprefix("maskgrad:"), Path(str(files("maskgrad"))) / "assets"
    inside = [entry.parent.name for entry in assets.glob("*/config.json")]
    if name not in inside:
        raise UserError(f"model {path!r} is not among the models of the package; {nearest(name, inside)}")
    return assets / name


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint."""
    if not file.is_file():
        raise UserError(f"{file.parent} has no {file.name}; pass the folder of a model")
    try:
        value = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise UserError(f"{file} is not valid JSON ({error}); restore it from the original model") from error
    if not isinstance(value, dict):
        raise UserError(f"{file} holds a {type(value).__name__}, not an object; restore it from the original model")
    return value


def write_json(value: dict[str, Any], file: Path) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")
