"""What a model reads from a file, checked: hyperparameters of the right kind, tensors of the right shape, none left."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from ..arrays import Floats
from ..errors import FileError, MissingError, ShapeError
from ..files.model import ModelFile
from ..tensor import QuantTensor

Prepare = Callable[[QuantTensor], QuantTensor]


class Checkpoint:
    """Hyperparameters and tensors of one file, by the names of GGUF; `block_count`, without the architecture.

    `prepare` is called with each matrix that inputs are multiplied by.
    """

    def __init__(self, file: ModelFile, prepare: Prepare | None = None) -> None:
        self.path, self.architecture = file.path, file.architecture
        self._file, self._config, self._prepare = file, file.config, prepare
        self._used: set[str] = set()
        self._step_bytes: dict[str, int] = {}  # of the tensors that each step reads

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that a step reads: all but tables of embeddings, of which it reads some rows."""
        return sum(self._step_bytes.values())

    def has(self, key: str) -> bool:
        return key in self._config

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
        return self._matrix("token_embd.weight", None, None).shape[0]

    def has_tensor(self, name: str) -> bool:
        return name in self._file.tensors

    def embedding(self, name: str, rows: int, columns: int) -> QuantTensor:
        """A matrix of which a step reads a row for each token."""
        return self._matrix(name, rows, columns)

    def weight(self, name: str, rows: int, columns: int) -> QuantTensor:
        """A matrix that inputs are multiplied by; where it was copied, the file's memory is released."""
        tensor = self._matrix(name, rows, columns)
        self._step_bytes[name] = tensor.nbytes
        prepared = tensor if self._prepare is None else self._prepare(tensor)
        if prepared is not tensor:
            self._file.forget(name)
        return prepared

    def vector(self, name: str, size: int) -> Floats:
        """Some numbers, as floats."""
        tensor = self._tensor(name)
        if tensor.shape != (size,):
            self._refuse_shape(name, f"hold {size} values", tensor)
        self._step_bytes[name] = tensor.nbytes
        return np.ascontiguousarray(tensor.dequantize())

    def vector_or_none(self, name: str, size: int) -> Floats | None:
        return self.vector(name, size) if self.has_tensor(name) else None

    def refuse_unused(self) -> None:
        """A tensor that nobody read means that the model would not do what its file says."""
        unused = [name for name in self._file.tensors if name not in self._used]
        if unused:
            more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
            raise FileError(
                f"{self.path}: tensors that {self.architecture} models do not have: {', '.join(unused[:3])}{more}"
            )

    def _get(self, key: str, default: object) -> Any:
        if key not in self._config and default is None:
            raise MissingError(f"{self.path}: {self.architecture}.{key} is missing")
        return self._config.get(key, default)

    def _tensor(self, name: str) -> QuantTensor:
        if name not in self._file.tensors:
            raise MissingError(f"{self.path}: tensor {name} is missing, {self.architecture} models have it")
        self._used.add(name)
        return self._file.tensors[name]

    def _matrix(self, name: str, *expected: int | None) -> QuantTensor:
        """A matrix of rows and columns; None: of any size."""
        tensor = self._tensor(name)
        fits = len(tensor.shape) == 2 and all(e in (None, n) for n, e in zip(tensor.shape, expected, strict=True))
        if not fits or not all(tensor.shape):
            self._refuse_shape(name, "be " + " x ".join("any" if n is None else str(n) for n in expected), tensor)
        return tensor

    def _refuse(self, key: str, expected: str, value: object) -> NoReturn:
        raise FileError(f"{self.path}: {self.architecture}.{key} must be {expected}, it is {value!r}")

    def _refuse_shape(self, name: str, expected: str, tensor: QuantTensor) -> NoReturn:
        shape = " x ".join(map(str, tensor.shape))
        raise ShapeError(f"{self.path}: tensor {name} must {expected}, it is {shape}")
