"""A model whose tensors have an adapter merged into them, made when they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np

from ..arrays import Floats
from ..errors import FileError
from ..files.lora import AdapterFile, Factors
from ..files.maps import FileMap
from ..files.model import Info, ModelFile
from ..files.shown import short
from ..formats import Format
from ..ops.low_rank import to_floats
from ..tensor import QuantTensor
from .lora import OUTPUT, TABLE, check_shape, gguf_names


@dataclass(frozen=True, slots=True)
class _Info:
    shape: tuple[int, ...]
    format: Format


class MergedModel:
    """A `ModelFile` over another one. Tensors that the adapter changes are f32; `infos` has the formats of the base.

    The table of tied embeddings and the output matrix become two tensors, if the adapter changes one of them.

    Args:
        base: The model.
        adapter: The adapter's file.
    """

    def __init__(self, base: ModelFile, adapter: AdapterFile) -> None:
        self.base, self.adapter = base, gguf_names(adapter, base)
        self.path: Path = base.path
        self.file_bytes, self.architecture, self.config = base.file_bytes, base.architecture, base.config
        changed = {*self.adapter.factors, *self.adapter.replaced}
        infos: dict[str, Info] = dict(base.infos)
        if OUTPUT not in infos and changed & {OUTPUT, TABLE} and TABLE in infos:
            infos[OUTPUT] = _Info(infos[TABLE].shape, infos[TABLE].format)
        self.infos: Mapping[str, Info] = infos
        self.tensors: Mapping[str, QuantTensor] = _MergedTensors(self)
        for name in changed:
            self._check(name)

    @property
    def maps(self) -> WeakSet[FileMap]:
        """The memory maps that are in use."""
        return self.base.maps

    def samples(self, nbytes: int) -> Iterator[bytes]:
        """Those of the base, and the whole adapter."""
        yield from self.base.samples(nbytes)
        for name, factors in sorted(self.adapter.factors.items()):
            yield f"{name} {factors.scale!r}".encode() + factors.a.tobytes() + factors.b.tobytes()
        for name, tensor in sorted(self.adapter.replaced.items()):
            yield name.encode() + tensor.data.tobytes()

    def tokenizer(self) -> Mapping[str, Any]:
        """The metadata of the base's tokenizer."""
        return self.base.tokenizer()

    def template(self) -> str | None:
        """The source of the chat template."""
        return self.base.template()

    def forget(self, name: str) -> None:
        """Release the memory of a tensor of the base."""
        self.base.forget(TABLE if name == OUTPUT and OUTPUT not in self.base.infos else name)

    def close(self) -> None:
        """Close the base."""
        self.base.close()

    def make(self, name: str) -> QuantTensor:
        """A tensor with what the adapter changes."""
        replaced, factors = self.adapter.replaced.get(name), self.adapter.factors.get(name)
        if replaced is not None:
            return replaced
        stored = self.base.tensors[TABLE if name == OUTPUT and OUTPUT not in self.base.infos else name]
        if factors is None:
            return stored
        merged = stored.dequantize() + added(factors)
        data = np.ascontiguousarray(merged, np.float32).reshape(-1).view(np.uint8)
        return QuantTensor.from_bytes(data, stored.shape, "f32")

    def _check(self, name: str) -> None:
        """Refuse what does not fit the base."""
        if name not in self.infos:
            raise FileError(
                f"{self.adapter.path}: tensor {short(name)} is not in the model; is the adapter for another model?"
            )
        factors, replaced = self.adapter.factors.get(name), self.adapter.replaced.get(name)
        expected = self.infos[name].shape
        if replaced is not None:
            check_shape(self.adapter, name, replaced.shape, expected)
        if factors is not None:
            rows, columns = (factors.a.shape[0] if factors.is_table else factors.b.shape[0]), factors.a.shape[1]
            given = (rows, factors.b.shape[0]) if factors.is_table else (rows, columns)
            check_shape(self.adapter, name, given, expected)
            if factors.is_table != (name == TABLE):
                raise FileError(f"{self.adapter.path}: the term of {short(name)} is not made for it")


class _MergedTensors(Mapping[str, QuantTensor]):
    def __init__(self, model: MergedModel) -> None:
        self._model = model

    def __getitem__(self, name: str) -> QuantTensor:
        return self._model.make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._model.infos)

    def __len__(self) -> int:
        return len(self._model.infos)


def added(factors: Factors) -> Floats:
    """What a term adds to its matrix or table."""
    a, b = to_floats(factors.a), to_floats(factors.b)
    product = a @ b.T if factors.is_table else b @ a
    return np.asarray(np.float32(factors.scale) * product)
