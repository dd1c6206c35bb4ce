"""What a model reads from a file, checked: hyperparameters of the right kind, tensors of the right shape, none left."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from ..arrays import Floats
from ..errors import FileError, MissingError, ShapeError
from ..files.model import ModelFile
from ..files.shown import short
from ..tensor import QuantTensor

F32_MAX = float(np.finfo(np.float32).max)
Prepare = Callable[[QuantTensor], QuantTensor]
Rows = tuple[int, int]  # the first of some rows, and the one after the last


class Checkpoint:
    """Hyperparameters and tensors of a file, by their GGUF names; `block_count`, without the architecture.

    `prepare` is called with each matrix that inputs are multiplied by. `ctx` is the longest sequence that will be run.
    `mtp` says whether the layer that predicts a further token is wanted too.
    """

    def __init__(
        self, file: ModelFile, prepare: Prepare | None = None, ctx: int | None = None, mtp: bool = False
    ) -> None:
        self.path, self.architecture, self.ctx, self.mtp = file.path, file.architecture, ctx, mtp
        self._file, self._config, self._prepare = file, file.config, prepare
        self._used: set[str] = set()
        self._step_bytes: dict[tuple[str, Rows | None], int] = {}  # of the tensors that each step reads
        self.matrices: list[tuple[str, QuantTensor]] = []  # that inputs are multiplied by, and their tensors' names
        self.places: dict[int, tuple[str, Rows | None]] = {}  # tensors and rows of matrices and tables, by their `id`

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that a step reads: all but embedding tables, which it only indexes."""
        return sum(self._step_bytes.values())

    def has(self, key: str) -> bool:
        return key in self._config

    def has_list(self, key: str) -> bool:
        return isinstance(self._config.get(key), np.ndarray)

    def size(self, key: str, default: int | None = None, least: int = 1, most: int = 1 << 24) -> int:
        """An integer hyperparameter. A list with the same number for each layer counts as that number."""
        value = self._get(key, default)
        if isinstance(value, np.ndarray) and value.size and (value == value.flat[0]).all():
            value = value.ravel().tolist()[0]  # a Python number, also of one that no array holds
        if isinstance(value, np.ndarray):
            self._refuse(key, "the same number for all layers", value.tolist())
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self._refuse(key, f"a whole number from {least} to {most}", value)
        return int(value)

    def sizes(
        self, key: str, layers: int, default: int | None = None, least: int = 1, most: int = 1 << 24
    ) -> list[int]:
        """An integer hyperparameter for each layer: a list, or one number for all."""
        value = self._get(key, default)
        if not isinstance(value, np.ndarray):
            return [self.size(key, default, least, most)] * layers
        if value.dtype.kind not in "iu" or value.shape != (layers,) or not ((value >= least) & (value <= most)).all():
            self._refuse(key, f"{layers} whole numbers from {least} to {most}, one for each layer", value.tolist())
        return [int(number) for number in value]

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool | np.bool_):
            self._refuse(key, "true or false", value)
        return bool(value)

    def flags(self, key: str, layers: int, period: int | None = None, false_first: bool = False) -> list[bool]:
        """A flag for each layer: a list, or the period as one number.

        Args:
            key: Its name in the file.
            layers: How many layers the model has.
            period: What counts if the file does not say. Of so many layers one is false; 0: none is.
            false_first: Whether that is the first of them. Otherwise it is the last.
        """
        value = self._get(key, period)
        if not isinstance(value, np.ndarray):
            n = self.size(key, period, least=0)
            return [n == 0 or layer % n != (0 if false_first else n - 1) for layer in range(layers)]
        if value.dtype.kind not in "biu" or value.shape != (layers,) or not np.isin(value, (0, 1)).all():
            self._refuse(key, f"true or false for each of {layers} layers", value.tolist())
        return [bool(flag) for flag in value]

    def number(self, key: str, default: float | None = None, least: float = -math.inf) -> float:
        value = self._get(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not max(least, -F32_MAX) <= value <= F32_MAX:
            self._refuse(key, "a number" + (f" of at least {least:g}" if math.isfinite(least) else ""), value)
        return float(value)

    def number_list(self, key: str, count: int, default: Sequence[float] | None = None) -> tuple[float, ...]:
        """A list of so many numbers."""
        value = self._get(key, default)
        found = [*value] if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str) else [value]
        are_numbers = all(isinstance(one, int | float | np.number) and math.isfinite(one) for one in found)
        if len(found) != count or not are_numbers:
            self._refuse(key, f"{count} numbers", value)
        return tuple(float(one) for one in found)

    def numbers(self, key: str, layers: int) -> list[float]:
        """A number for each layer, which may be infinite."""
        value = self._get(key, None)
        is_list = isinstance(value, np.ndarray) and value.dtype.kind in "iuf" and value.shape == (layers,)
        if not is_list or np.isnan(value).any():
            self._refuse(key, f"{layers} numbers, one for each layer", value)
        return [float(number) for number in value]

    def word(self, key: str, default: str) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            self._refuse(key, "a word", value)
        return str(value)

    def words(self, key: str) -> tuple[str, ...]:
        """A list of texts; none if the file has none."""
        value = self._config.get(key)
        if value is None:
            return ()
        found = [*value] if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str) else [value]
        if not all(isinstance(text, str) for text in found):
            self._refuse(key, "a list of texts", value)
        return tuple(map(str, found))

    @property
    def vocab(self) -> int:
        """Vocabulary size: the number of rows of the embedding table."""
        return self._matrix("token_embd.weight", None, None).shape[0]

    def rows(self, name: str) -> int:
        """The number of rows of a matrix."""
        return self._matrix(name, None, None).shape[0]

    def has_tensor(self, name: str) -> bool:
        return name in self._file.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensor(name).shape

    def embedding(self, name: str, rows: int, columns: int) -> QuantTensor:
        """An embedding table: a step reads one row for each token."""
        table = self._matrix(name, rows, columns)
        self.places[id(table)] = name, None
        return table

    def weight(self, name: str, rows: int, columns: int, part: Rows | None = None) -> QuantTensor:
        """A weight matrix, or a range of its rows, which share its bytes.

        Where it was copied, the file's memory is released.
        """
        tensor = self._matrix(name, rows, columns)
        if part is not None:
            tensor = tensor[slice(*part)]
        self._step_bytes[name, part] = tensor.nbytes
        prepared = self._prepared(name, tensor)
        self.places[id(prepared)] = name, part
        return prepared

    def experts(
        self, name: str, count: int, rows: int, columns: int, used: int | None = None, part: Rows | None = None
    ) -> QuantTensor:
        """A stack of matrices, one for each expert or head. A step of one token reads `used` of them (None: all).

        A single one may be a matrix in the file. Of fused ones `part` says which rows of each: these are copied.
        """
        tensor, shape = self._tensor(name), (count, rows, columns)
        if tensor.shape != shape and (count, *tensor.shape) != (1, rows, columns):
            self._refuse_shape(name, "be " + " x ".join(map(str, shape)), tensor)
        stack = type(tensor)(tensor.stored, shape, tensor.format)
        if part is not None:
            stack = _rows_of_each(stack, *part)
        self._step_bytes[name, part] = stack.nbytes // count * (count if used is None else used)
        return self._prepared(name, stack)

    def vector(self, name: str, size: int, part: Rows | None = None) -> Floats:
        """A vector, as floats."""
        tensor = self._tensor(name)
        if tensor.shape != (size,):
            self._refuse_shape(name, f"hold {size} values", tensor)
        start, stop = part or (0, size)
        self._step_bytes[name, part] = tensor.nbytes * (stop - start) // size
        return np.ascontiguousarray(tensor.dequantize()[start:stop])

    def vector_or_none(self, name: str, size: int, part: Rows | None = None) -> Floats | None:
        return self.vector(name, size, part) if self.has_tensor(name) else None

    def row(self, name: str, columns: int, number: int = 0) -> Floats:
        """The first row of a matrix, as floats."""
        tensor = self._matrix(name, None, columns)
        if number >= tensor.shape[0]:
            self._refuse_shape(name, f"have {number + 1} rows", tensor)
        self._step_bytes[name, (number, number + 1)] = tensor.nbytes // tensor.shape[0]
        return np.ascontiguousarray(tensor[number : number + 1].dequantize()[0])

    def array(self, name: str, *shape: int) -> Floats:
        """A tensor of any shape, as floats."""
        tensor = self._tensor(name)
        if tensor.shape != shape:
            self._refuse_shape(name, "be " + " x ".join(map(str, shape)), tensor)
        self._step_bytes[name, None] = tensor.nbytes
        return np.ascontiguousarray(tensor.dequantize())

    def table(self, name: str, columns: int) -> Floats:
        """A matrix of any number of rows, as floats. A vector counts as one row."""
        tensor = self._tensor(name)
        if len(tensor.shape) > 2 or tensor.shape[-1] != columns or not all(tensor.shape):
            self._refuse_shape(name, f"be any x {columns}", tensor)
        self._step_bytes[name, None] = tensor.nbytes
        return np.ascontiguousarray(tensor.dequantize()).reshape(-1, columns)

    def skip(self, prefix: str) -> None:
        """Ignore the tensors whose names start with a prefix."""
        self._used.update(name for name in self._file.tensors if name.startswith(prefix))

    def refuse_unused(self) -> None:
        """Refuse a file with tensors that the model did not read: it would not compute what the file describes."""
        unused = [name for name in self._file.tensors if name not in self._used]
        if unused:
            rest = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
            raise FileError(
                f"{self.path}: tensors that {self.architecture} models do not have: {', '.join(unused[:3])}{rest}"
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
        """A tensor of a given shape; None allows any size."""
        tensor = self._tensor(name)
        fits = len(tensor.shape) == len(expected) and all(map(_fits, tensor.shape, expected))
        if not fits or not all(tensor.shape):
            self._refuse_shape(name, "be " + " x ".join("any" if n is None else str(n) for n in expected), tensor)
        return tensor

    def _prepared(self, name: str, tensor: QuantTensor) -> QuantTensor:
        prepared = tensor if self._prepare is None else self._prepare(tensor)
        if prepared is not tensor:
            self._file.forget(name)
        self.matrices.append((name, prepared))
        return prepared

    def _refuse(self, key: str, expected: str, value: object) -> NoReturn:
        found = " ".join(short(value.tolist() if isinstance(value, np.ndarray) else value).split())
        raise FileError(f"{self.path}: {self.architecture}.{key} must be {expected}, it is {found}")

    def _refuse_shape(self, name: str, expected: str, tensor: QuantTensor) -> NoReturn:
        shape = " x ".join(map(str, tensor.shape))
        raise ShapeError(f"{self.path}: tensor {name} must {expected}, it is {shape}")


def _fits(size: int, expected: int | None) -> bool:
    return expected in (None, size)


def _rows_of_each(stack: QuantTensor, start: int, stop: int) -> QuantTensor:
    """A range of rows of each matrix in a stack."""
    count, rows, columns = stack.shape
    flat = type(stack)(stack.stored, (count * rows, columns), stack.format)
    numbers = (np.arange(count)[:, None] * rows + np.arange(start, stop)).reshape(-1)
    return QuantTensor(flat[numbers].stored, (count, stop - start, columns), stack.format)
