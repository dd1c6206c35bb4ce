"""A sequence of a KV cache in a file.

    magic          8 bytes   "fewbitKV"
    version        u32       1
    layers, kv_heads, dim, rotate   u32 each; rotate is 0 or 1
    k, v           16 bytes each: the names of the formats, padded with 0
    length, count  u64 each: tokens of the sequence; how many of them were committed
    tokens         count times u32: those committed
    rows           for each layer first K, then V: (length, kv_heads, row bytes)
    checksum       16 bytes  blake2b of all that comes before

Numbers are little-endian. Rows of tokens follow each other without pages: the file fits caches with pages of another
size, and holds nothing that an earlier owner of a page left behind.
"""

from __future__ import annotations

import os
import secrets
import struct
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..errors import FileError, PathError
from .layout import Layout, Store

MAGIC = b"fewbitKV"
VERSION = 1
HEADER = struct.Struct("<8sI4I16s16s2Q")
CHECKSUM_BYTES = 16
PIECE_BYTES = 1 << 20


def write_saved(
    path: str | os.PathLike[str],
    layout: Layout,
    stores: Sequence[Store],
    table: Sequence[int],
    length: int,
    tokens: array[int],
) -> None:
    """Write a sequence; `stores` are K and V of the first layer, of the second, and so on."""
    path = Path(path)
    hidden = path.parent / f".fewbit-{secrets.token_hex(8)}"
    try:
        with open(hidden, "xb") as file:
            checksum = _checksum()
            for piece in _pieces(layout, stores, table, length, tokens):
                checksum.update(piece)
                file.write(piece)
            file.write(checksum.digest())
        os.replace(hidden, path)
    except OSError as error:
        raise PathError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        hidden.unlink(missing_ok=True)


def _pieces(
    layout: Layout, stores: Sequence[Store], table: Sequence[int], length: int, tokens: array[int]
) -> Iterator[bytes]:
    yield HEADER.pack(MAGIC, VERSION, *_parameters(layout).values(), length, len(tokens))
    yield np.array(tokens, "<u4").tobytes()
    for store in stores:
        for number, page in enumerate(table):
            yield store.read(page, _tokens_in(number, length, store)).tobytes()


def _parameters(layout: Layout) -> dict[str, int | bytes]:
    """What a file and a cache must agree on, in the order of the header."""
    numbers = {"layers": layout.layers, "kv_heads": layout.kv_heads, "dim": layout.dim, "rotate": int(layout.rotate)}
    return numbers | {"k": layout.k.name.encode().ljust(16, b"\0"), "v": layout.v.name.encode().ljust(16, b"\0")}


def _tokens_in(number: int, length: int, store: Store) -> int:
    """Tokens in a page of a sequence."""
    return min(store.page_tokens, length - number * store.page_tokens)


@dataclass(frozen=True)
class Saved:
    """A file that was checked whole, open to be read."""

    file: BinaryIO
    path: Path
    length: int
    tokens: array[int]  # those committed

    def read(self, stores: Sequence[Store], table: Sequence[int], first: int) -> None:
        """Fill the pages of a table, from page number `first` on; those before hold their tokens already."""
        at = HEADER.size + 4 * len(self.tokens)
        for store in stores:
            kv_heads, row_bytes = store.layout.kv_heads, store.row_bytes
            self.file.seek(at + first * store.page_tokens * kv_heads * row_bytes)
            for number in range(first, len(table)):
                count = _tokens_in(number, self.length, store)
                rows = np.frombuffer(_read(self.file, self.path, count * kv_heads * row_bytes), np.uint8)
                store.write(table[number], rows.reshape(count, kv_heads, row_bytes))
            at += self.length * kv_heads * row_bytes


@contextmanager
def open_saved(path: str | os.PathLike[str], layout: Layout) -> Iterator[Saved]:
    """Open a file and check all of it, for a cache with this layout."""
    path = Path(path)
    if not path.is_file():  # opening a pipe would wait for a writer
        raise PathError(f"{path}: there is no such file")
    try:
        file = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise PathError(f"{path}: cannot be opened: {error.strerror or error}") from error
    with file:
        yield _check(file, path, layout)


def _check(file: BinaryIO, path: Path, layout: Layout) -> Saved:
    size = os.fstat(file.fileno()).st_size
    length, count = _check_header(_read(file, path, HEADER.size), path, layout)
    rest = 4 * count + length * layout.token_bytes
    if size != HEADER.size + rest + CHECKSUM_BYTES:
        wanted = HEADER.size + rest + CHECKSUM_BYTES
        raise FileError(f"{path}: a sequence of {length} tokens takes {wanted} bytes, the file has {size}")
    checksum, left = _checksum(), size - CHECKSUM_BYTES
    file.seek(0)
    while left:
        piece = _read(file, path, min(left, PIECE_BYTES))
        checksum.update(piece)
        left -= len(piece)
    if checksum.digest() != _read(file, path, CHECKSUM_BYTES):
        raise FileError(f"{path}: the file is damaged: its checksum does not match")
    file.seek(HEADER.size)
    tokens = np.frombuffer(_read(file, path, 4 * count), "<u4")
    return Saved(file, path, length, array("I", tokens.tolist()))


def _check_header(header: bytes, path: Path, layout: Layout) -> tuple[int, int]:
    """The number of tokens, and of those committed."""
    magic, version, *found, length, count = HEADER.unpack(header)
    if magic != MAGIC:
        raise FileError(f"{path}: this is no saved sequence of a KV cache")
    if version != VERSION:
        raise FileError(f"{path}: version {version} of saved sequences is not read, only version {VERSION}")
    for (name, wanted), given in zip(_parameters(layout).items(), found, strict=True):
        if given != wanted:
            raise FileError(f"{path}: saved with {name} = {_shown(given)}, this cache has {name} = {_shown(wanted)}")
    if count > length:
        raise FileError(f"{path}: {count} tokens of {length} were committed, it says")
    return length, count


def _shown(value: int | bytes) -> str:
    return str(value) if isinstance(value, int) else value.rstrip(b"\0").decode("ascii", "replace")


def _read(file: BinaryIO, path: Path, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise FileError(f"{path}: the file ends too early: {size} bytes were expected, {len(data)} came")
    return data


def _checksum() -> blake2b:
    return blake2b(digest_size=CHECKSUM_BYTES)
