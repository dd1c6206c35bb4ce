"""PEFT's folders: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import FileError, PathError
from ..tensor import QuantTensor
from .lora import CONFIG_NAME, MAX_RANK, WEIGHTS_NAME, AdapterFile, Factors, make_factors, reals
from .maps import check_maps
from .safetensors import Safetensors, read_json, read_safetensors
from .shown import short

_PREFIXES = ("base_model.model.", "base_model.")
_PARTS = re.compile(r"(.+)\.lora_(embedding_)?([AB])(\.weight)?")
_PLAIN_NAME = re.compile(r"\^?[\w.]+")

# Fields of the config that make an adapter other than plain LoRA, and what that is called.
_VARIANTS = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "use_bdlora": "BD-LoRA",
    "lora_bias": "LoRA with biases (lora_bias)",
    "alora_invocation_tokens": "activated LoRA (aLoRA)",
    "arrow_config": "Arrow",
    "kasa_config": "KaSA",
    "velora_config": "VeLoRA",
    "monteclora_config": "MonteCLoRA",
    "trainable_token_indices": "training of single tokens (trainable_token_indices)",
    "layer_replication": "replication of layers (layer_replication)",
    "target_parameters": "LoRA of parameters such as fused experts (target_parameters)",
}


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """What scales the terms of modules: of a name in a pattern, or for all others."""

    path: Path
    rank: int
    alpha: float
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    is_rank_stabilized: bool

    def scale(self, module: str, rank: int) -> float:
        """The factor of a module's term; its rank must be that of the config."""
        expected = _by_pattern(self.ranks, module, self.rank)
        if rank != expected:
            raise FileError(f"{self.path}: the rank of {short(module)} is {rank}, {CONFIG_NAME} says {expected}")
        alpha: float = _by_pattern(self.alphas, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.is_rank_stabilized else rank)


def read_peft(folder: Path) -> AdapterFile:
    """Read a folder that PEFT wrote."""
    if not (folder / CONFIG_NAME).is_file():
        raise PathError(f"{folder}: there is no {CONFIG_NAME} in it; an adapter is a folder of PEFT or a GGUF file")
    config = read_config(folder / CONFIG_NAME)
    if not (folder / WEIGHTS_NAME).is_file():
        is_pickle = (folder / "adapter_model.bin").is_file()
        why = "adapter_model.bin is a pickle, which could run code; save it as safetensors"
        raise PathError(f"{folder}: {why if is_pickle else f'{WEIGHTS_NAME} is missing'}")
    stored = read_safetensors(folder / WEIGHTS_NAME)
    try:
        return _read(folder, config, stored)
    finally:
        check_maps(stored.maps)
        stored.close()


def _read(folder: Path, config: PeftConfig, stored: Safetensors) -> AdapterFile:
    pairs: dict[tuple[str, bool], dict[str, str]] = {}
    replaced: dict[str, QuantTensor] = {}
    for name in stored.infos:
        plain = _without_prefix(name)
        found = _PARTS.fullmatch(plain)
        if found is not None:
            pairs.setdefault((found[1], bool(found[2])), {})[found[3]] = name
        elif ".lora_" in plain or ".token_adapter." in plain:
            raise FileError(f"{folder}: tensor {short(name)} is no part of plain LoRA; only that is supported")
        elif not plain.endswith(".base_layer.weight"):  # a copy of the model's own
            replaced[plain] = _owned(stored[name])
    factors = {
        module: _factors(folder, config, stored, module, sides, is_table) for (module, is_table), sides in pairs.items()
    }
    if len(factors) < len(pairs):
        raise FileError(f"{folder}: a module has terms of a matrix and of an embedding table")
    if not factors and not replaced:
        raise FileError(f"{folder}: the adapter changes nothing: it has no tensors")
    return AdapterFile(folder, None, factors, replaced)


def _factors(
    folder: Path, config: PeftConfig, stored: Safetensors, module: str, sides: Mapping[str, str], is_table: bool
) -> Factors:
    if len(sides) < 2:
        missing = "B" if "A" in sides else "A"
        raise FileError(f"{folder}: lora_{missing} of {short(module)} is missing")
    a, b = (reals(stored[sides[side]]) for side in "AB")
    if is_table and a.ndim == 2:
        a = a.T.copy()
    scale = config.scale(module, b.shape[-1])
    return make_factors(a, b, scale, is_table, f"{folder}: {module}")


def read_config(path: Path) -> PeftConfig:
    """Read adapter_config.json; what is not plain LoRA is refused by name."""
    given = read_json(path)
    if not isinstance(given, dict):
        raise FileError(f"{path}: it must hold an object, not {short(given)}")
    kind = given.get("peft_type")
    if kind != "LORA":
        raise FileError(f"{path}: adapters of type {short(kind)} are not supported; 'LORA' is")
    for key, what in _VARIANTS.items():
        if given.get(key):
            raise FileError(f"{path}: {what} is not supported; merge it into the model with PEFT first")
    if given.get("bias") not in (None, "none"):
        raise FileError(f"{path}: adapters that train biases (bias={short(given['bias'])}) are not supported")
    alpha = given.get("lora_alpha")
    return PeftConfig(
        path.parent, _rank(path, "r", given.get("r")), _number(path, "lora_alpha", alpha),
        {name: _rank(path, "rank_pattern", n) for name, n in _pattern(path, "rank_pattern", given).items()},
        {name: _number(path, "alpha_pattern", n) for name, n in _pattern(path, "alpha_pattern", given).items()},
        given.get("use_rslora") is True,
    )  # fmt: skip


def _pattern(path: Path, key: str, given: Mapping[str, Any]) -> dict[str, Any]:
    patterns = given.get(key) or {}
    if not isinstance(patterns, dict):
        raise FileError(f"{path}: {key} must be an object, it is {short(patterns)}")
    for name in patterns:
        if not _PLAIN_NAME.fullmatch(name):
            raise FileError(f"{path}: {key} must name modules; the regular expression {short(name)} is not supported")
    return patterns


def _by_pattern(patterns: Mapping[str, Any], module: str, default: Any) -> Any:
    """The value of the first name that the module ends with, or with ^ that it is.

    >>> _by_pattern({"q_proj": 4}, "model.layers.0.self_attn.q_proj", 8), _by_pattern({"proj": 4}, "a.q_proj", 8)
    (4, 8)
    """
    for name, value in patterns.items():
        if module == name.removeprefix("^") or (not name.startswith("^") and module.endswith(f".{name}")):
            return value
    return default


def _rank(path: Path, key: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= MAX_RANK:
        raise FileError(f"{path}: {key} must be a whole number from 1 to {MAX_RANK}, it is {short(value)}")
    return value


def _number(path: Path, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e30:
        raise FileError(f"{path}: {key} must be a number, it is {short(value)}")
    return float(value)


def _without_prefix(name: str) -> str:
    prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), "")
    return name.removeprefix(prefix)


def _owned(tensor: QuantTensor) -> QuantTensor:
    return QuantTensor.from_bytes(tensor.data.reshape(-1).copy(), tensor.shape, tensor.format)
