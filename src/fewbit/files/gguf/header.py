"""The header of a GGUF file: version, metadata, tensors. Every size is checked against that of the file.

Layout, little-endian: `GGUF`, u32 version, u64 number of tensors, u64 number of metadata pairs; each pair a string, a
u32 type and a value; each tensor a string, a u32 number of dimensions, u64 dimensions (fastest first), a u32 type and a
u64 offset; then the data, at the next multiple of the alignment. A string is a u64 length and UTF-8 bytes, an array a
u32 type, a u64 count and its values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from mmap import mmap
from typing import Any, NoReturn

import numpy as np

from ...errors import FileError, FormatError
from ...formats import Format, from_gguf
from ..shown import short
from .kinds import other_kind
from .values import (
    ARRAY,
    BOOL,
    DEFAULT_ALIGNMENT,
    DTYPES,
    LENGTH_BYTES,
    MAGIC,
    MAX_DEPTH,
    MAX_DIMS,
    MAX_KEY_BYTES,
    STRING,
    StringArray,
    string_ends,
)

VERSIONS = (2, 3)
# Far above what real files have; below them a header cannot make the reader slow or large.
MAX_HEADER_BYTES = 1 << 27
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_NESTED = 1 << 16  # arrays in arrays, in one file

PAIR_BYTES = 13  # of the shortest pair: an empty key and a byte
TENSOR_BYTES = 32  # of the shortest tensor record: an empty name, one dimension
ARRAY_BYTES = 12  # of an empty array


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Format, shape and place of a tensor. `shape` is row-major; `offset` counts from the start of the file."""

    name: str
    format: Format
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    part: int = 0  # which file of a split model


@dataclass(frozen=True, slots=True)
class Header:
    """A header that was checked. Numbers in `metadata` are NumPy scalars of the type that the file gives them."""

    version: int
    alignment: int
    metadata: dict[str, Any]
    tensors: list[TensorInfo]


def parse_header(data: mmap, path: str, part: int = 0) -> Header:
    """Read and check a header; `path` is for errors."""
    cursor = HeaderCursor(data, path)
    version = cursor.version()
    tensor_count = cursor.count(TENSOR_BYTES, MAX_TENSORS, "tensors")
    pair_count = cursor.count(PAIR_BYTES, MAX_KEYS, "metadata pairs")
    metadata = cursor.metadata(pair_count)
    alignment = cursor.alignment(metadata)
    records = cursor.tensors(tensor_count, part)
    start = -(-cursor.at // alignment) * alignment
    tensors = [cursor.placed(info, start, alignment) for info in records]
    cursor.check_apart(tensors)
    return Header(version, alignment, metadata, tensors)


class HeaderCursor:
    """Reads a header from its start. Errors name the byte."""

    def __init__(self, data: mmap, path: str) -> None:
        self.data = data
        self.path = path
        self.at = 0
        self.stop = min(len(data), MAX_HEADER_BYTES)
        self.nested = 0

    def fail(self, what: str, at: int | None = None) -> NoReturn:
        raise FileError(f"{self.path}: {what} (byte {self.at if at is None else at})")

    def cut_short(self, what: str, at: int | None = None) -> NoReturn:
        self.fail(f"the file is truncated or damaged: {what}; download it again", at)

    def need(self, size: int, what: str) -> None:
        if size <= self.stop - self.at:
            return
        if self.stop == len(self.data):
            self.cut_short(f"{what} of {size} bytes reaches past the {self.stop:,} bytes of the file")
        self.fail(f"{what} of {size} bytes reaches past the {self.stop:,} bytes that a header may take")

    def take(self, size: int, what: str) -> bytes:
        self.need(size, what)
        self.at += size
        return self.data[self.at - size : self.at]

    def integer(self, size: int, what: str) -> int:
        return int.from_bytes(self.take(size, what), "little")

    def count(self, each: int, limit: int, what: str) -> int:
        """A u64 count of things that take at least `each` bytes."""
        found = self.integer(8, f"the number of {what}")
        if found > min(limit, (self.stop - self.at) // each):
            self.cut_short(
                f"{found} {what} do not fit: {self.stop - self.at} bytes follow, each takes at least {each}, "
                f"and the limit is {limit}",
                self.at - 8,
            )
        return found

    def text(self, what: str, limit: int = MAX_HEADER_BYTES) -> str:
        length = self.integer(LENGTH_BYTES, f"the length of {what}")
        if length > limit:
            self.fail(f"{what} has {length} bytes, at most {limit} are allowed", self.at - LENGTH_BYTES)
        coded = self.take(length, what)
        try:
            return coded.decode()
        except UnicodeDecodeError as error:
            self.fail(f"{what} is not UTF-8 text: {error.reason} in {coded[:40]!r}", self.at - length)

    def version(self) -> int:
        start = self.data[:64]
        if not start.startswith(MAGIC):
            raise FileError(f"{self.path}: {other_kind(start)}")
        self.at = len(MAGIC)
        coded = self.take(4, "the version")
        version = int.from_bytes(coded, "little")
        if version in VERSIONS:
            return version
        swapped = 0 < int.from_bytes(coded, "big") < 1 << 16
        numbers = " and ".join(map(str, VERSIONS))
        what = (
            "the file is big-endian; fewbit reads little-endian files of"
            if swapped
            else (f"unsupported GGUF version {version}; fewbit reads")
        )
        return self.fail(f"{what} versions {numbers}", 4)

    def metadata(self, count: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for i in range(count):
            at = self.at
            key = self.text(f"the key of metadata pair {i}", MAX_KEY_BYTES)
            if key in out:
                self.fail(f"metadata key {short(key)} occurs twice", at)
            what = f"metadata key {short(key)}"
            out[key] = self.value(self.integer(4, f"the type of {what}"), what)
        return out

    def value(self, kind: int, what: str) -> Any:
        if kind == STRING:
            return self.text(what)
        if kind == ARRAY:
            return self.array(what, 1)
        return self.numbers(kind, 1, what)[0]

    def numbers(self, kind: int, count: int, what: str) -> Any:
        if kind not in DTYPES:
            self.fail(f"{what} has the unknown type {kind}; types are numbers from 0 to {max(DTYPES)}", self.at - 4)
        dtype = DTYPES[kind]
        coded = self.take(dtype.itemsize * count, what)
        if kind == BOOL and max(coded, default=0) > 1:
            self.fail(f"{what} holds a bool that is {max(coded)}, not 0 or 1", self.at - count)
        return np.frombuffer(coded, dtype)

    def array(self, what: str, depth: int) -> Any:
        kind = self.integer(4, f"the element type of {what}")
        if kind == ARRAY:
            return self.arrays(what, depth + 1)
        if kind == STRING:
            return self.strings(self.count(LENGTH_BYTES, MAX_HEADER_BYTES, f"strings in {what}"), what)
        if kind not in DTYPES:
            self.fail(f"{what} is an array of the unknown type {kind}", self.at - 4)
        return self.numbers(kind, self.count(DTYPES[kind].itemsize, MAX_HEADER_BYTES, f"numbers in {what}"), what)

    def arrays(self, what: str, depth: int) -> tuple[Any, ...]:
        if depth > MAX_DEPTH:
            self.fail(f"{what} has arrays in arrays more than {MAX_DEPTH} deep")
        count = self.count(ARRAY_BYTES, MAX_NESTED - self.nested, f"arrays in {what}")
        self.nested += count
        return tuple(self.array(what, depth) for _ in range(count))

    def strings(self, count: int, what: str) -> StringArray:
        start = self.at
        ends = string_ends(self.data, start, self.stop, count)
        self.at = int(ends[-1]) if ends.size else start
        if ends.size < count:
            self.take(self.integer(LENGTH_BYTES, f"entry {ends.size} of {what}"), f"entry {ends.size} of {what}")
        return StringArray(self.data[start : self.at], ends - start, f"{self.path}: {what}")

    def alignment(self, metadata: dict[str, Any]) -> int:
        found = metadata.get("general.alignment", np.uint32(DEFAULT_ALIGNMENT))
        if not isinstance(found, np.integer) or found <= 0 or int(found).bit_count() != 1:
            self.fail(f"general.alignment is {short(found)}, not a power of two")
        return int(found)

    def tensors(self, count: int, part: int) -> list[TensorInfo]:
        """Records with offsets from the start of the data."""
        out: dict[str, TensorInfo] = {}
        for i in range(count):
            at = self.at
            info = self.tensor(i, part)
            if info.name in out:
                self.fail(f"tensor {short(info.name)} occurs twice", at)
            out[info.name] = info
        return list(out.values())

    def tensor(self, i: int, part: int) -> TensorInfo:
        at = self.at
        name = self.text(f"the name of tensor {i}", MAX_KEY_BYTES)
        what = f"tensor {short(name)}"
        dims = self.integer(4, f"the number of dimensions of {what}")
        if not 1 <= dims <= MAX_DIMS:
            self.fail(f"{what} has {dims} dimensions, from 1 to {MAX_DIMS} are allowed", self.at - 4)
        shape = tuple(self.integer(8, f"a dimension of {what}") for _ in range(dims))[::-1]
        number = self.integer(4, f"the type of {what}")
        offset = self.integer(8, f"the offset of {what}")
        try:
            fmt = from_gguf(number)
        except FormatError as error:
            self.fail(f"{what}: {error}", at)
        return TensorInfo(name, fmt, shape, offset, self.tensor_bytes(what, fmt, shape, at), part)

    def tensor_bytes(self, what: str, fmt: Format, shape: tuple[int, ...], at: int) -> int:
        values = math.prod(shape)
        size = "x".join(map(str, shape))
        if values == 0 or values >= 1 << 63:
            self.fail(f"{what} of {size} has {'no' if values == 0 else '2^63 or more'} values", at)
        if shape[-1] % fmt.block:
            self.fail(f"{what} of {size}: rows of {fmt} hold a multiple of {fmt.block} values", at)
        return values // fmt.block * fmt.block_bytes

    def placed(self, info: TensorInfo, start: int, alignment: int) -> TensorInfo:
        """A tensor with its offset from the start of the file, checked to be inside it."""
        what = f"tensor {short(info.name)}"
        offset = start + info.offset
        if info.offset % alignment:
            self.fail(
                f"{what} starts at {info.offset} in the data, which is not a multiple of the alignment {alignment}",
                offset,
            )
        if offset + info.nbytes > len(self.data):
            problem = f"{what} of {info.nbytes:,} bytes reaches past the {len(self.data):,} bytes of the file"
            self.cut_short(problem, offset)
        return TensorInfo(info.name, info.format, info.shape, offset, info.nbytes, info.part)

    def check_apart(self, tensors: list[TensorInfo]) -> None:
        ordered = sorted(tensors, key=lambda info: info.offset)
        for info, after in pairwise(ordered):
            if info.offset + info.nbytes > after.offset:
                self.fail(f"tensors {short(info.name)} and {short(after.name)} overlap", after.offset)
