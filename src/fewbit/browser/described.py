"""A model file that lies elsewhere: its hyperparameters, the shapes of its tensors, and its vectors."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakSet

import numpy as np

from ..arrays import Bytes
from ..errors import FileError, FormatError
from ..files.maps import FileMap
from ..formats import from_gguf
from ..tensor import QuantTensor

MAX_BYTES = 1 << 36  # of all tensors
MAX_TENSORS = 1 << 12
MAX_DIM = 1 << 21


@dataclass(frozen=True)
class Description:
    """What a browser read of a GGUF file.

    Attributes:
        metadata: Keys of the file: numbers, strings, flags and lists of them; without the vocabulary.
        tensors: Name, type number of GGUF and row-major shape of each tensor.
        vectors: The bytes of the tensors with one dimension, by name, and of small matrices of floats, such as the taps
            of convolutions. Plans hold what follows from them.
    """

    metadata: Mapping[str, Any]
    tensors: Sequence[tuple[str, int, Sequence[int]]]
    vectors: Mapping[str, bytes] = field(default_factory=dict)


def refuse_encoders(architecture: object) -> None:
    """Image encoders are files of their own, which look like models."""
    if architecture == "clip":
        sentence = "this file is an image encoder, and the browser runs models for text alone: take the model's file"
        raise FileError(sentence)


class DescribedFile:
    """A `ModelFile` of a description. Matrices are addresses without memory: a plan only says where they are used."""

    def __init__(self, description: Description, name: str = "the file") -> None:
        self.path, self.maps = Path(name), WeakSet[FileMap]()
        self.metadata = description.metadata
        refuse_encoders(self.metadata.get("general.architecture"))
        self.infos = _infos(description)
        self.file_bytes = sum(w.nbytes for w in self.infos.values())
        self.tensors = _placed(self.infos, description.vectors, self.file_bytes)

    @property
    def architecture(self) -> str:
        name = self.metadata.get("general.architecture")
        if not isinstance(name, str):
            raise FileError(f"{self.path}: general.architecture must be a name, it is {str(name)[:80]!r}")
        return name

    @property
    def config(self) -> Mapping[str, Any]:
        prefix = f"{self.architecture}."
        return {key.removeprefix(prefix): _as_read(one) for key, one in self.metadata.items() if key.startswith(prefix)}

    def samples(self, nbytes: int) -> Iterator[bytes]:
        yield from ()

    def tokenizer(self) -> Mapping[str, Any]:
        return {key: value for key, value in self.metadata.items() if key.startswith(("tokenizer.", "general."))}

    def template(self) -> str | None:
        return None

    def forget(self, name: str) -> None:
        """Nothing: no memory was taken."""

    def close(self) -> None:
        """Nothing is open."""


def _as_read(value: Any) -> Any:
    """A value as readers of GGUF files give it: lists of numbers are arrays."""
    if isinstance(value, list) and value and all(isinstance(one, bool | int | float) for one in value):
        return np.array(value)
    return value


@dataclass(frozen=True)
class _Sizes:
    """Shape and format of a tensor that is not here."""

    shape: tuple[int, ...]
    format: Any
    nbytes: int


def _infos(description: Description) -> dict[str, _Sizes]:
    if len(description.tensors) > MAX_TENSORS:
        raise FileError(f"the file has {len(description.tensors)} tensors; at most {MAX_TENSORS} are planned")
    found: dict[str, _Sizes] = {}
    total = 0
    for name, number, shape in description.tensors:
        if name in found:
            raise FileError(f"tensor {name[:80]!r} occurs twice")
        found[name] = sizes = _sizes(name, number, tuple(shape))
        total += sizes.nbytes
        if total > MAX_BYTES:
            raise FileError(f"the tensors have more than the {MAX_BYTES >> 30} GiB that are planned")
    return found


def _sizes(name: str, number: int, shape: tuple[int, ...]) -> _Sizes:
    what = f"tensor {name[:80]!r}"
    if len(shape) > 3:
        raise FileError(f"{what} has {len(shape)} dimensions; the browser runs models with at most 3")
    if not shape or not all(0 < n <= MAX_DIM for n in shape):
        raise FileError(f"{what} must have dimensions from 1 to {MAX_DIM}")
    try:
        fmt = from_gguf(number)
    except FormatError as error:
        raise FileError(f"{what}: {error}") from None
    if shape[-1] % fmt.block:
        raise FileError(f"{what}: rows of {fmt} hold a multiple of {fmt.block} values, not {shape[-1]}")
    return _Sizes(shape, fmt, prod(shape[:-1]) * fmt.row_bytes(shape[-1]))


def _placed(infos: Mapping[str, _Sizes], vectors: Mapping[str, bytes], total: int) -> dict[str, QuantTensor]:
    addresses = _addresses(total)
    out: dict[str, QuantTensor] = {}
    at = 0
    for name, info in infos.items():
        if len(info.shape) == 1 or name in vectors:
            out[name] = QuantTensor(_vector(name, info, vectors), info.shape, info.format)
        else:
            out[name] = AbsentTensor(addresses[at : at + info.nbytes], info.shape, info.format)
        at += info.nbytes
    return out


def _vector(name: str, info: _Sizes, vectors: Mapping[str, bytes]) -> Bytes:
    found = vectors.get(name)
    if found is None or len(found) != info.nbytes:
        given = "none were given" if found is None else f"{len(found)} were given"
        raise FileError(f"tensor {name[:80]!r}: its {info.nbytes} bytes are needed, {given}")
    return np.frombuffer(found, np.uint8)


class AbsentTensor(QuantTensor):
    """A matrix whose bytes are elsewhere: it has a place, and no values."""

    __slots__ = ()

    def dequantize(self, *given: Any, **options: Any) -> NoReturn:
        size = "x".join(map(str, self.shape))
        raise FileError(f"the browser does not run this model: its plan depends on the values of a matrix of {size}")

    def _slice(self, first: int, last: int, shape: tuple[int, ...]) -> QuantTensor:
        found = super()._slice(first, last, shape)
        return AbsentTensor(found.stored, found.shape, found.format)

    def _gather(self, *given: Any) -> NoReturn:
        self.dequantize()


def _addresses(nbytes: int) -> Bytes:
    """Zeros that take address space and no memory, as long as nobody writes to them."""
    size = max(nbytes, mmap.PAGESIZE)
    found = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
    return np.frombuffer(found, np.uint8)
