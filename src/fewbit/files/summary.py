"""What a checkpoint of safetensors files holds, as plain data: the counterpart of `gguf.summary`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import FewbitError
from .safetensors import StoredTensor, read_json, read_safetensors
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
        "formats": _by_dtype(infos),
        "total": _sizes(infos),
    }
    stored.close()
    return facts | {"tensors": [_tensor(info) for info in infos]} if tensors else facts


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


def _tensor(info: StoredTensor) -> dict[str, Any]:
    return {
        "name": info.name,
        "format": info.dtype.lower(),
        "shape": list(info.shape),
        "values": math.prod(info.shape),
        "bytes": info.nbytes,
        "file": info.part,
        "offset": info.offset,
    }


def _by_dtype(infos: Iterable[StoredTensor]) -> list[dict[str, Any]]:
    groups: defaultdict[str, list[StoredTensor]] = defaultdict(list)
    for info in infos:
        groups[info.dtype.lower()].append(info)
    rows = [{"format": name, **_sizes(members)} for name, members in groups.items()]
    return sorted(rows, key=lambda row: -int(row["bytes"]))


def _sizes(infos: Iterable[StoredTensor]) -> dict[str, Any]:
    infos = list(infos)
    values, size = sum(math.prod(info.shape) for info in infos), sum(info.nbytes for info in infos)
    bits = 8 * size / values if values else 0.0
    return {"tensors": len(infos), "values": values, "bytes": size, "bits_per_weight": bits}
