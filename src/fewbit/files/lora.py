"""Adapters as files hold them: what PEFT and llama.cpp's convert_lora_to_gguf.py write, read and checked.

The terms keep the names of the file: those of modules in PEFT's folders, those of GGUF's tensors in GGUF files. What is
not plain LoRA is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import FileError, PathError, ShapeError
from ..tensor import QuantTensor
from ..validation import to_path
from .gguf import read_gguf
from .maps import check_maps
from .shown import short

MAX_RANK = 8192
CONFIG_NAME, WEIGHTS_NAME = "adapter_config.json", "adapter_model.safetensors"
_VIEWS: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}

Reals = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Factors:
    """The term of one matrix: `scale * b @ a`. The two are f32, f16, or bf16 as its 16 bits.

    Args:
        a: (r, columns); for an embedding table (tokens, r).
        b: (rows, r).
        scale: Factor of the term.
        is_table: Whether it is the term of an embedding table.
    """

    a: Reals
    b: Reals
    scale: float
    is_table: bool


@dataclass(frozen=True, slots=True, eq=False)
class AdapterFile:
    """An adapter, by the names of its file.

    Args:
        path: The folder or file.
        architecture: That of the model, if the file says so: names are those of its GGUF tensors then.
        factors: Terms by the name of what they change.
        replaced: Whole tensors that take the place of the model's, by name.
    """

    path: Path
    architecture: str | None
    factors: Mapping[str, Factors]
    replaced: Mapping[str, QuantTensor] = field(default_factory=dict)


def read_adapter(path: Any) -> AdapterFile:
    """Read an adapter: a folder that PEFT wrote, or a GGUF file."""
    given = to_path(path)
    if given.name in (CONFIG_NAME, WEIGHTS_NAME):
        given = given.parent
    if not given.exists():
        raise PathError(f"{given}: there is no such file or folder")
    if given.is_dir():
        from .peft import read_peft

        return read_peft(given)
    return _read_gguf(given)


def reals(tensor: QuantTensor) -> Reals:
    """A copy of the values of a tensor: floats of 16 bits as they are, all others as f32."""
    view = _VIEWS.get(tensor.format.name)
    if view is None:
        return tensor.dequantize()
    values: Reals = tensor.data.view(view)
    return values.reshape(tensor.shape).copy()


def make_factors(a: Reals, b: Reals, scale: float, is_table: bool, where: str) -> Factors:
    """Checked: matrices whose ranks agree, of finite values."""
    if a.ndim != 2 or b.ndim != 2:
        raise ShapeError(f"{where}: A and B must be matrices, they are {_size(a)} and {_size(b)}")
    rank = a.shape[1] if is_table else a.shape[0]
    if rank != b.shape[1]:
        raise ShapeError(f"{where}: A and B must have the same rank, they are {_size(a)} and {_size(b)}")
    if not 1 <= rank <= MAX_RANK:
        raise ShapeError(f"{where}: the rank must be from 1 to {MAX_RANK}, it is {rank}")
    if a.dtype != b.dtype:
        a, b = _floats(a), _floats(b)
    for name, part in (("A", a), ("B", b)):
        if not np.isfinite(_floats(part)).all():
            raise FileError(f"{where}: {name} holds values that are not finite")
    if not np.isfinite(scale):
        raise FileError(f"{where}: the scale must be finite, it is {scale}")
    return Factors(a, b, float(scale), is_table)


def _read_gguf(path: Path) -> AdapterFile:
    with read_gguf(path) as file:
        architecture, alpha = _checked_metadata(path, file.metadata)
        factors: dict[str, Factors] = {}
        for name in file.infos:
            base, dot, side = name.rpartition(".")
            if side not in ("lora_a", "lora_b") or not dot:
                what = "changes of norms are not supported" if name.endswith("_norm.weight") else "expected .lora_a"
                raise FileError(f"{path}: tensor {short(name)} is no part of a LoRA adapter; {what}")
            other = f"{base}.lora_{'b' if side == 'lora_a' else 'a'}"
            if other not in file.infos:
                raise FileError(f"{path}: tensor {short(other)} is missing beside {short(name)}")
            if side == "lora_a":
                b = reals(file.tensors[other])
                scale = alpha / b.shape[-1] if alpha and b.shape[-1] else 1.0
                is_table = base == "token_embd.weight"
                factors[base] = make_factors(reals(file.tensors[name]), b, scale, is_table, f"{path}: {base}")
        check_maps(file.maps)
    if not factors:
        raise FileError(f"{path}: the adapter changes nothing: it has no tensors")
    return AdapterFile(path, architecture, factors)


def _checked_metadata(path: Path, metadata: Mapping[str, Any]) -> tuple[str, float]:
    """The model's architecture, and alpha."""
    kind, what = metadata.get("general.type"), metadata.get("adapter.type")
    if kind != "adapter":
        raise FileError(f"{path}: not an adapter: general.type is {short(kind)}, expected 'adapter'")
    if what != "lora":
        raise FileError(f"{path}: adapters of type {short(what)} are not supported; 'lora' is")
    if "adapter.alora.invocation_tokens" in metadata:
        raise FileError(f"{path}: activated LoRA (aLoRA) is not supported")
    architecture, alpha = metadata.get("general.architecture"), metadata.get("adapter.lora.alpha", 0.0)
    if not isinstance(architecture, str):
        raise FileError(f"{path}: general.architecture must be a name, it is {short(architecture)}")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not np.isfinite(alpha):
        raise FileError(f"{path}: adapter.lora.alpha must be a number, it is {short(alpha)}")
    return architecture, float(alpha)


def _floats(values: Reals) -> npt.NDArray[np.float32]:
    from ..ops.low_rank import to_floats

    return to_floats(values)


def _size(values: Reals) -> str:
    return " x ".join(map(str, values.shape)) or "one number"
