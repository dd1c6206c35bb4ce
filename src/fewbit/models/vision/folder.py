"""The image encoder in a folder with a transformers checkpoint, as a model file with the names of GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from ...errors import FileError
from ...files.safetensors import read_json
from ..directory import Directory, open_tensors, text_part
from . import ENCODER, projectors
from .adapter import VisionAdapter

SETTINGS = ("processor_config.json", "preprocessor_config.json")  # of the processor; the last one counts


class VisionFolder(Directory):
    """A `ModelFile` over the encoder's part of a folder."""

    def __init__(self, path: Path, adapter: VisionAdapter, config: dict[str, Any]) -> None:
        self.path, self.architecture = path, ENCODER
        self._raw = {
            **_part(config, "vision_config"),
            "whole": config,
            "text": text_part(config) or config,
            "preprocessor": _read_settings(path),
        }
        self._join_tensors(adapter, open_tensors(path, config))

    def tokenizer(self) -> Mapping[str, Any]:
        """None: the text model has it."""
        return {}


def has_vision_config(folder: Path) -> bool:
    """Whether a checkpoint has an encoder, be it known or not."""
    config = read_json(folder / "config.json")
    return isinstance(config, dict) and isinstance(config.get("vision_config"), dict)


def open_vision_folder(path: Path) -> VisionFolder | None:
    """The encoder in a folder, if there is one that is known."""
    config = read_json(path / "config.json")
    names = config.get("architectures") if isinstance(config, dict) else None
    if not isinstance(names, list) or not isinstance(config.get("vision_config"), dict):
        return None
    for name in projectors():
        adapter: VisionAdapter | None = getattr(import_module(f".{name}", __package__), "HF", None)
        if adapter is not None and any(one in adapter.architectures for one in names):
            return VisionFolder(path, adapter, config)
    return None


def _part(config: dict[str, Any], name: str) -> dict[str, Any]:
    found = config.get(name)
    if not isinstance(found, dict):
        raise FileError(f"config.json must have an object {name}")
    return found


def _read_settings(path: Path) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name in SETTINGS:
        found = read_json(path / name) if (path / name).is_file() else {}
        if isinstance(found, dict):
            inner = found.get("image_processor")
            settings |= found | (inner if isinstance(inner, dict) else {})
    return settings
