"""What a checkpoint of safetensors files holds, as plain data: the counterpart of `gguf.summary`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import FewbitError
from .safetensors import read_json, read_safetensors
from .tensors import tensor_sizes
from .tokenizer_json import read_tokenizer

CONFIG_NAME = "config.json"


def is_checkpoint_path(path: Path) -> bool:
    """Whether a path that `hub.find` gave is a checkpoint: its folder, its config.json, or a safetensors file."""
    return path.is_dir() or path.name == CONFIG_NAME or path.suffix == ".safetensors"


def checkpoint_summary(path: Path, *, tensors: bool = True) -> dict[str, Any]:
    """Files, hyperparameters, tokenizer, tensors and sizes by dtype, ready for JSON.

    Args:
        path: A folder, its config.json, or one safetensors file.
        tensors: Whether every tensor is listed.
    """
    folder = path.parent if path.is_file() else path
    stored = read_safetensors(path if path.suffix == ".safetensors" else folder)
    infos = list(stored.infos.values())
    config = read_json(folder / CONFIG_NAME) if (folder / CONFIG_NAME).is_file() else {}
    config = config if isinstance(config, dict) else {}
    names = config.get("architectures")
    facts = {
        "files": [str(file) for file in stored.paths],
        "architecture": names[0] if isinstance(names, list) and names else config.get("model_type"),
        "parameters": sum(math.prod(info.shape) for info in infos),
        "file_bytes": stored.file_bytes,
        "metadata": dict(_flat(config)),
        "tokenizer": _tokenizer(folder, config),
    }
    stored.close()
    return facts | tensor_sizes(infos, lambda info: info.dtype.lower(), tensors=tensors)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Hyperparameters by name; those of an object inside have its name before theirs."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _tokenizer(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Kind and size of the vocabulary; `error` instead if it cannot be read."""
    try:
        found = read_tokenizer(folder, config)
    except FewbitError as error:
        return {"error": str(error)}
    return {
        "model": found["tokenizer.ggml.model"],
        "tokens": len(found["tokenizer.ggml.tokens"]),
        "chat_template": any(key.startswith("tokenizer.chat_template") for key in found),
    }
