"""Importance matrices: the mean squares of the inputs of each matrix, in llama.cpp's files.

A GGUF file has two f32 tensors for each matrix: `NAME.in_sum2`, sums of squares for each column, and `NAME.counts`, how
many rows were added up. Matrices of experts have a row for each expert in both. The older `.dat` files are read too:
the number of entries; for each the length of its name, the name, a number of chunks, the number of values and those, as
means times chunks; then the number of chunks and the name of the text. All numbers are little-endian, of 32 bits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ..arrays import Doubles, Floats
from ..errors import DataError, FileError, PathError, ShapeError
from ..validation import to_path
from .gguf import GGUF, read_gguf, write_gguf
from .shown import short

SUMS, COUNTS = ".in_sum2", ".counts"
MAX_NAME_BYTES = 1024  # of a tensor in a .dat file
UNSEEN = np.float32(1)  # the mean square for experts that no token was given to


@dataclass(frozen=True, slots=True, eq=False)
class SquareSums:
    """Sums of squares of the inputs of a matrix, (matrices, columns), and how many rows each of them adds up."""

    sums: Doubles
    counts: Doubles

    def means(self) -> Floats:
        """The mean squares: (columns,), or (experts, columns)."""
        counts = self.counts[:, None]
        means = np.where(counts > 0, self.sums / np.maximum(counts, 1), UNSEEN).astype(np.float32)
        return means[0] if len(means) == 1 else means


@dataclass(frozen=True, eq=False)
class ImportanceMatrix(Mapping[str, Floats]):
    """The mean squares of the inputs of matrices, by the name of the tensor: (columns,), or (experts, columns).

    Args:
        entries: Sums and counts by the name of the tensor.
        datasets: Names of the texts.
        chunk_count: Number of windows of text.
        chunk_size: Tokens of a window; 0 if the file does not say.
    """

    entries: Mapping[str, SquareSums]
    datasets: Sequence[str] = ()
    chunk_count: int = 0
    chunk_size: int = 0
    _means: dict[str, Floats] = field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> Floats:
        if name not in self._means:
            self._means[name] = self.entries[name].means()
        return self._means[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def fitting(self, name: str, shape: tuple[int, ...]) -> Floats | None:
        """The mean squares for a tensor of a shape: (columns,), or (matrices, columns); None if there are none.

        Older files do not say how many experts there are: their values are flat.

        Args:
            name: Name of the tensor.
            shape: Its shape, (rows, columns) or (matrices, rows, columns).
        """
        if name not in self.entries:
            return None
        means, wanted = self[name], (*shape[:-2], shape[-1])
        if means.size == shape[-1]:
            return means.reshape(shape[-1])
        if means.size != np.prod(wanted):
            text = " x ".join(map(str, shape))
            raise ShapeError(f"the importance of {name} has {means.size} values, which do not fit a tensor of {text}")
        return means.reshape(wanted)


def read_imatrix(path: str | PathLike[str]) -> ImportanceMatrix:
    """Read an importance matrix that llama-imatrix or `fewbit calibrate` wrote.

    Args:
        path: A GGUF file, or one of the older .dat files.
    """
    given = to_path(path)
    try:
        with open(given, "rb") as file:
            is_gguf = file.read(4) == b"GGUF"
    except OSError as error:
        raise PathError(f"{given}: cannot be read: {error.strerror or error}") from None
    return _read_gguf(given) if is_gguf else _read_dat(given)


def write_imatrix(path: str | PathLike[str], imatrix: ImportanceMatrix) -> None:
    """Write an importance matrix as a GGUF file. It appears under its name when it is complete.

    Args:
        path: The file.
        imatrix: What to write.
    """
    tensors: dict[str, Any] = {}
    for name, entry in sorted(imatrix.entries.items()):
        tensors[name + SUMS] = entry.sums.astype(np.float32)
        tensors[name + COUNTS] = entry.counts.astype(np.float32)[:, None]
    if not tensors:
        raise DataError("the importance matrix is empty: there is nothing to write")
    metadata = {
        "general.type": "imatrix",
        "imatrix.datasets": list(imatrix.datasets) or [""],
        "imatrix.chunk_count": np.uint32(imatrix.chunk_count),
        "imatrix.chunk_size": np.uint32(imatrix.chunk_size),
    }
    write_gguf(path, metadata, tensors)


def _read_gguf(path: Path) -> ImportanceMatrix:
    with read_gguf(path) as file:
        if (kind := file.metadata.get("general.type", "imatrix")) != "imatrix":
            raise FileError(f"{path}: not an importance matrix: general.type is {short(str(kind))}, not imatrix")
        names = [name.removesuffix(SUMS) for name in file.tensors if name.endswith(SUMS)]
        if not names:
            raise FileError(f"{path}: not an importance matrix: it has no tensor NAME{SUMS}")
        entries = {name: _entry(path, file, name) for name in names}
        chunks, size = (_whole(path, file, f"imatrix.chunk_{key}") for key in ("count", "size"))
        datasets = file.metadata.get("imatrix.datasets", ())
        known = () if isinstance(datasets, str | int | float) else tuple(map(str, datasets))
    return ImportanceMatrix(entries, known, chunks, size)


def _entry(path: Path, file: GGUF, name: str) -> SquareSums:
    if name + COUNTS not in file.tensors:
        raise FileError(f"{path}: tensor {short(name + COUNTS)} is missing")
    sums, counts = file.tensors[name + SUMS], file.tensors[name + COUNTS]
    if sums.format.name != "f32" or counts.format.name != "f32":
        raise FileError(f"{path}: sums and counts of {short(name)} must be f32")
    if sums.size % max(1, counts.size):
        raise FileError(f"{path}: {sums.size} sums of {short(name)} cannot be divided among {counts.size} counts")
    rows = np.array(sums.dequantize(), np.float64).reshape(counts.size, -1)
    numbers = np.array(counts.dequantize(), np.float64).reshape(-1)
    return SquareSums(_checked(path, name, rows), _checked(path, name, numbers))


def _checked(path: Path, name: str, values: Doubles) -> Doubles:
    if not np.isfinite(values).all() or (values < 0).any():
        raise FileError(f"{path}: {short(name)} has values that are no sums of squares: negative, infinite or NaN")
    return values


def _whole(path: Path, file: GGUF, key: str) -> int:
    value = file.metadata.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise FileError(f"{path}: {key} must be a whole number, it is {value!r}")
    return value


class _Reader:
    """Numbers and names from a .dat file."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.path, self.data, self.at = path, data, 0

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise FileError(f"{self.path}: not an importance matrix, or damaged: it ends at byte {len(self.data)}")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, what: str, most: int) -> int:
        (value,) = struct.unpack("<i", self.take(4))
        if not 0 <= value <= most:
            raise FileError(f"{self.path}: not an importance matrix, or damaged: {what} is {value}")
        return int(value)

    def name(self) -> str:
        raw = self.take(self.number("the length of a name", MAX_NAME_BYTES))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise FileError(f"{self.path}: not an importance matrix, or damaged: a name is not UTF-8") from None


def _read_dat(path: Path) -> ImportanceMatrix:
    reader = _Reader(path, path.read_bytes())
    most = len(reader.data)
    count = reader.number("the number of entries", most)
    if not count:
        raise FileError(f"{path}: not an importance matrix: it has no entries")
    entries = dict(_dat_entry(reader, most) for _ in range(count))
    chunks, datasets = 0, tuple[str, ...]()
    if reader.at < most:
        chunks = reader.number("the number of chunks", 1 << 30)
    if reader.at < most:
        datasets = (reader.name(),)
    return ImportanceMatrix(entries, datasets, chunks)


def _dat_entry(reader: _Reader, most: int) -> tuple[str, SquareSums]:
    name, chunks = reader.name(), reader.number("a number of chunks", 1 << 30)
    size = reader.number("a number of values", most)
    if not size:
        raise FileError(f"{reader.path}: {short(name)} has no values")
    values = np.frombuffer(reader.take(4 * size), "<f4").astype(np.float64)
    return name, SquareSums(_checked(reader.path, name, values)[None], np.array([chunks], np.float64))
