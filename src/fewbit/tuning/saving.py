"""Adapters as PEFT has them: a folder with adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FileError
from ..files.adapter_versions import CONFIG_NAME
from ..files.replacing import replace_file
from ..files.safetensors import read_json, read_safetensors
from .lora import Lora
from .names import Module

WEIGHTS_NAME = "adapter_model.safetensors"


def save_adapter(lora: Lora, folder: Path, base: str) -> None:
    """Write an adapter; `base` is the name of the model that it changes. Each file is replaced as a whole."""
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / WEIGHTS_NAME, {name: matrix.numpy() for name, matrix in lora.state().items()})
    replace_file(folder / CONFIG_NAME, json.dumps(peft_config(lora, base), indent=2).encode() + b"\n")


def peft_config(lora: Lora, base: str) -> dict[str, Any]:
    modules = sorted({pair.module.name for pair in lora.pairs})
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": modules,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "inference_mode": True,
    }


def saved_adapter(modules: Sequence[Module], folder: Path) -> Lora:
    """A saved adapter, over those of a model's modules that it names."""
    path = folder / CONFIG_NAME
    config = read_json(path)
    config = config if isinstance(config, dict) else {}
    rank, alpha, names = (config.get(key) for key in ("r", "lora_alpha", "target_modules"))
    if not isinstance(rank, int) or not isinstance(alpha, int | float) or not isinstance(names, list) or rank < 1:
        raise FileError(f"{path}: r, lora_alpha and a list of target_modules are expected, as fewbit tune writes them")
    lora = Lora([module for module in modules if module.name in names], rank, float(alpha))
    stored = read_safetensors(folder / WEIGHTS_NAME)
    lora.load({name: stored[name].dequantize() for name in stored})
    return lora


def write_safetensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Float arrays in one safetensors file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_safetensors(Path(folder, "a.safetensors"), {"w": np.ones(2)})
    ...     read_safetensors(Path(folder, "a.safetensors"))["w"].dequantize().tolist()
    [1.0, 1.0]
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts, offset = [], 0
    for name, values in tensors.items():
        data = np.ascontiguousarray(values, "<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [offset, offset + len(data)]}
        parts.append(data)
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    replace_file(path, struct.pack("<Q", len(text)) + text + b"".join(parts))
