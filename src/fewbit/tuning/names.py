"""What the matrices of a model are called in transformers: the names that adapters have in PEFT's files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np

from ..arrays import Longs
from ..models.adapter import Adapter
from ..models.transforms import TRANSPOSED, Transform
from ..tensor import QuantTensor

_NUMBER = re.compile(r"^blk\.(\d+)\.")
_ROUTER = ".ffn_gate_inp"  # no linear layer in transformers


@dataclass(frozen=True)
class Module:
    """A linear layer of transformers, and the parts of its matrix that products here have.

    Args:
        name: Its path, such as "model.layers.0.self_attn.q_proj".
        shape: Outputs and inputs.
        parts: Matrices, and which of the module's rows are theirs.
        order: The row of the module that each row of the file is; None: the same.
    """

    name: str
    shape: tuple[int, int]
    parts: tuple[tuple[QuantTensor, slice], ...]
    order: Longs | None = None

    @property
    def kind(self) -> str:
        """The end of the path, by which PEFT chooses modules.

        >>> Module("model.layers.0.self_attn.q_proj", (8, 8), ()).kind
        'q_proj'
        """
        return self.name.rpartition(".")[2]


def find_modules(
    architecture: str, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]],
    matrices: Sequence[tuple[str, QuantTensor]],
) -> list[Module]:  # fmt: skip
    """The linear layers in which adapters can be trained: those that are one module in transformers.

    Args:
        architecture: As GGUF files name it.
        config: Hyperparameters, as GGUF files name them.
        shapes: Shapes of all tensors of the file, by name.
        matrices: What products multiply by, and the tensors that they are rows of.
    """
    module = import_module(f"...models.{architecture.replace('-', '_')}", __name__)
    adapter: Adapter | None = getattr(module, "HF", None)
    if adapter is None:
        return []
    sources = _sources(adapter)
    parts: dict[str, list[QuantTensor]] = {}
    for name, w in matrices:
        if name.endswith(".weight") and len(w.shape) == 2 and _ROUTER not in name:
            parts.setdefault(name, []).append(w)
    found = []
    for name, own in parts.items():
        number = _NUMBER.match(name)
        pattern = _NUMBER.sub("blk.{i}.", name).removesuffix(".weight")
        if number is None or pattern not in sources:
            continue
        source, transform = sources[pattern]
        rows = _rows(own, shapes[name][0])
        order = _order(transform, shapes[name][0], _config_of_transformers(adapter, config, int(number[1])))
        if ".mlp." in source and config.get("expert_count"):
            continue  # PEFT takes such names for those of the experts
        if rows is not None and (order is not None or transform in (None, TRANSPOSED)):
            shape = shapes[name][0], shapes[name][1]
            found.append(Module(source.replace("{i}", number[1]), shape, tuple(zip(own, rows, strict=True)), order))
    return found


def _sources(adapter: Adapter) -> dict[str, tuple[str, Transform | None]]:
    """By a tensor's name here, that in transformers, of those that are one tensor there and here."""
    found: dict[str, tuple[str, Transform | None]] = {}
    for source, target in adapter.tensors.items():
        if isinstance(source, str) and not isinstance(target, list) and "{e}" not in source:
            name, transform = (target, None) if isinstance(target, str) else target
            found[name.removesuffix(".weight")] = source.removesuffix(".weight"), transform
    return found


def _config_of_transformers(adapter: Adapter, config: Mapping[str, Any], layer: int) -> dict[str, Any]:
    """The keys of config.json that are told by a GGUF file, for one layer."""
    known: dict[str, Any] = {}
    for key, source in adapter.config.items():
        value = config.get(key)
        value = value[layer] if isinstance(value, np.ndarray) and layer < len(value) else value
        for name in (source,) if isinstance(source, str) else source if isinstance(source, tuple) else ():
            if value is not None:
                known[name] = value
    return {"num_key_value_heads": known.get("num_attention_heads"), **known}


def _order(transform: Transform | None, rows: int, config: Mapping[str, Any]) -> Longs | None:
    """Which row in transformers each row is, where a transform moves whole rows."""
    if transform is None or not transform.moves_rows:
        return None
    try:
        moved = transform(np.arange(rows).reshape(rows, 1), config=config).reshape(-1)
    except (KeyError, TypeError, ValueError):
        return None
    return moved if len(moved) == rows else None


def _rows(parts: Sequence[QuantTensor], count: int) -> list[slice] | None:
    """Which rows of a tensor its parts are. They follow each other, and none is missing; else None."""
    first = min(w.stored.ctypes.data for w in parts)
    found = []
    for w in parts:
        begin = (w.stored.ctypes.data - first) // w.format.row_bytes(w.shape[1])
        found.append(slice(begin, begin + w.shape[0]))
    ends = sorted((rows.start, rows.stop) for rows in found)
    joined = all(a[1] == b[0] for a, b in pairwise(ends))
    return found if joined and ends[-1][1] == count else None
