"""What a model reads from a file, checked: hyperparameters of the right kind, tensors of the right shape, none left."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ..errors import FileError, MissingError, ShapeError
from ..files.gguf import GGUF
from ..tensor import QuantTensor

Floats = npt.NDArray[np.float32]
Prepare = Callable[[QuantTensor], QuantTensor]


class Checkpoint:
    """Metadata and tensors of one file. Hyperparameters are named without the architecture, `block_count`.

    `prepare` is called with each matrix that inputs are multiplied by.
    """

    def __init__(self, gguf: GGUF, prepare: Prepare | None = None) -> None:
        self._prepare = prepare
        self.path = gguf.path
        self.architecture: str = gguf.metadata["general.architecture"]
        self._gguf = gguf
        self._used: set[str] = set()

    def has(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self._gguf.metadata

    def size(self, key: str, default: int | None = None, least: int = 1, most: int = 1 << 24) -> int:
        """A hyperparameter that counts something. A list of the same number for each layer counts as that number."""
        value = self._get(key, default)
        if isinstance(value, np.ndarray) and value.size and (value == value.flat[0]).all():
            value = value.flat[0].item()
        if isinstance(value, np.ndarray):
            self._refuse(key, "the same number for all layers", value.tolist())
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self._refuse(key, f"a whole number from {least} to {most}", value)
        return int(value)

    def number(self, key: str, default: float | None = None, least: float = -math.inf) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < least:
            self._refuse(key, "a number" + (f" of at least {least:g}" if math.isfinite(least) else ""), value)
        return float(value)

    def word(self, key: str, default: str) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            self._refuse(key, "a word", value)
        return str(value)

    @property
    def vocab(self) -> int:
        """How many tokens there are: the rows of the table of embeddings."""
        return self.tensor("token_embd.weight", None, None).shape[0]

    def has_tensor(self, name: str) -> bool:
        return name in self._gguf.infos

    def tensor(self, name: str, rows: int | None, columns: int | None) -> QuantTensor:
        """A matrix; None: of any size."""
        if name not in self._gguf.infos:
            raise MissingError(f"{self.path}: tensor {name} is missing, {self.architecture} models have it")
        shape = self._gguf.infos[name].shape
        fits = (
            len(shape) == 2 and all(w in (None, n) for n, w in zip(shape, (rows, columns), strict=True)) and all(shape)
        )
        if not fits:
            wanted = " x ".join("any" if n is None else str(n) for n in (rows, columns))
            raise ShapeError(f"{self.path}: tensor {name} must be {wanted}, it is {' x '.join(map(str, shape))}")
        self._used.add(name)
        return self._gguf.tensors[name]

    def weight(self, name: str, rows: int, columns: int) -> QuantTensor:
        """A matrix that inputs are multiplied by; where it was copied, the file's pages are given back."""
        tensor = self.tensor(name, rows, columns)
        prepared = tensor if self._prepare is None else self._prepare(tensor)
        if prepared is not tensor:
            self._gguf.forget(name)
        return prepared

    def vector(self, name: str, size: int) -> Floats:
        """Some numbers, as floats."""
        if name not in self._gguf.infos:
            raise MissingError(f"{self.path}: tensor {name} is missing, {self.architecture} models have it")
        shape = self._gguf.infos[name].shape
        if shape != (size,):
            raise ShapeError(f"{self.path}: tensor {name} must hold {size} values, it is {' x '.join(map(str, shape))}")
        self._used.add(name)
        return np.ascontiguousarray(self._gguf.tensors[name].dequantize())

    def vector_or_none(self, name: str, size: int) -> Floats | None:
        return self.vector(name, size) if self.has_tensor(name) else None

    @property
    def used_bytes(self) -> int:
        """Bytes of the tensors that were asked for."""
        return sum(self._gguf.infos[name].nbytes for name in self._used)

    def refuse_unused(self) -> None:
        """A tensor that nobody asked for means that the model would not do what its file says."""
        unused = [name for name in self._gguf.infos if name not in self._used]
        if unused:
            more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
            raise FileError(
                f"{self.path}: tensors that {self.architecture} models do not have: {', '.join(unused[:3])}{more}"
            )

    def _get(self, key: str, default: object) -> Any:
        full = f"{self.architecture}.{key}"
        if full not in self._gguf.metadata and default is None:
            raise MissingError(f"{self.path}: {full} is missing")
        return self._gguf.metadata.get(full, default)

    def _refuse(self, key: str, wanted: str, value: object) -> NoReturn:
        raise FileError(f"{self.path}: {self.architecture}.{key} must be {wanted}, it is {value!r}")
