"""A sequence of a KV cache in a file.

    magic          8 bytes   "fewbitKV"
    version        u32       2
    header size    u32
    header         JSON, in UTF-8: see `_header`
    tokens         u32 each: those committed
    rows           for each attention layer: for each token that its group has, K of all heads, then V of all heads
    state          for each recurrent layer; rows and states come in the order of the layers
    checksum       16 bytes  blake2b of all that comes before

Numbers are little-endian. Rows are not in pages, so the file fits caches with another page size, and holds no leftovers
of other sequences.
"""

from __future__ import annotations

import json
import os
import secrets
import struct
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..arrays import Bytes
from ..errors import FileError, PathError
from ..ops.specs import AttentionSpec, LayerSpec, RecurrentSpec
from .layout import Layout
from .sequences import SequenceState
from .store import KVStore

MAGIC = b"fewbitKV"
VERSION = 2
START = struct.Struct("<8sII")
MAX_HEADER_BYTES = 1 << 20
CHECKSUM_BYTES = 16
PIECE_BYTES = 1 << 20


def write_saved(path: str | os.PathLike[str], store: KVStore, state: SequenceState, fingerprint: str = "") -> None:
    """Write a sequence."""
    path = Path(path)
    hidden = path.parent / f".fewbit-{secrets.token_hex(8)}"
    try:
        with open(hidden, "xb") as file:
            checksum = _checksum()
            for piece in _pieces(store, state, fingerprint):
                checksum.update(piece)
                file.write(piece)
            file.write(checksum.digest())
        os.replace(hidden, path)
    except OSError as error:
        raise PathError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        hidden.unlink(missing_ok=True)


def _pieces(store: KVStore, state: SequenceState, fingerprint: str) -> Iterator[bytes]:
    header = json.dumps(_header(store.layout, state, fingerprint)).encode()
    yield START.pack(MAGIC, VERSION, len(header)) + header
    yield np.array(state.tokens, "<u4").tobytes()
    for layer, group in sorted(store.layout.group_of.items()):
        if isinstance(store.layout.specs[layer], RecurrentSpec):
            yield store.read(layer, state.slot, 1)[0].tobytes()
            continue
        for page, first, end in _spans(state, group, state.starts[group], store.layout.page_tokens):
            parts = [part[first:].reshape(end - first, -1) for part in store.read(layer, page, end)]
            yield np.concatenate(parts, axis=1).tobytes()


def _header(layout: Layout, state: SequenceState, fingerprint: str) -> dict[str, Any]:
    return agreed(layout) | {
        "fingerprint": fingerprint,
        "length": state.length,
        "tokens": len(state.tokens),
        "starts": state.starts,  # the first token that is here, by attention group
    }


def agreed(layout: Layout) -> dict[str, Any]:
    """The values that a file and a cache must have in common."""
    return {
        "k": layout.k.name,
        "v": layout.v.name,
        "rotate": layout.rotate,
        "layers": len(layout.specs),
        "specs": [spec and asdict(spec) for spec in layout.specs],
    }


def _spans(state: SequenceState, group: int, start: int, page_tokens: int) -> Iterator[tuple[int, int, int]]:
    """The pages of a group from a token on, each with its first token and the one after its last, in the page."""
    for number in range(start // page_tokens, len(state.tables[group])):
        before = number * page_tokens
        yield state.tables[group][number], max(0, start - before), min(page_tokens, state.length - before)


@dataclass(frozen=True)
class Saved:
    """An open file whose contents were checked."""

    file: BinaryIO
    path: Path
    length: int
    tokens: array[int]  # those committed
    starts: list[int]
    offset: int  # where rows begin

    def read(self, store: KVStore, state: SequenceState, known: int) -> None:
        """Fill the pages of a sequence that begin with token number `known` or later, and its fresh slot."""
        layout, at = store.layout, self.offset
        for layer, group in sorted(layout.group_of.items()):
            spec = layout.specs[layer]
            if isinstance(spec, AttentionSpec):
                self._read_rows(store, state, layer, at, max(known, self.starts[group]))
                at += _row_bytes(layout, spec) * (self.length - self.starts[group])
            elif isinstance(spec, RecurrentSpec):
                if state.fresh:
                    self.file.seek(at)
                    store.write(layer, state.next_slot, [self._bytes(spec.nbytes)])
                at += spec.nbytes

    def _read_rows(self, store: KVStore, state: SequenceState, layer: int, at: int, start: int) -> None:
        layout, spec = store.layout, store.layout.attention(layer)
        group, width = layout.group_of[layer], _row_bytes(layout, spec)
        self.file.seek(at + width * (start - self.starts[group]))
        for page, first, end in _spans(state, group, start, layout.page_tokens):
            rows = self._bytes(width * (end - first)).reshape(end - first, width)
            k, v = np.split(rows, [spec.kv_heads * layout.row_bytes(spec)[0]], axis=1)
            store.write(layer, page, [part.reshape(end - first, spec.kv_heads, -1) for part in (k, v)], first)

    def _bytes(self, size: int) -> Bytes:
        return np.frombuffer(_read(self.file, self.path, size), np.uint8)


@contextmanager
def open_saved(path: str | os.PathLike[str], layout: Layout, fingerprint: str = "") -> Iterator[Saved]:
    """Open a file and check all of it, for a cache with this layout."""
    path = Path(path)
    if not path.is_file():  # opening a pipe would wait for a writer
        raise PathError(f"{path}: there is no such file")
    try:
        file = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise PathError(f"{path}: cannot be opened: {error.strerror or error}") from error
    with file:
        yield _check(file, path, layout, fingerprint)


def _check(file: BinaryIO, path: Path, layout: Layout, fingerprint: str) -> Saved:
    size = os.fstat(file.fileno()).st_size
    header, at = _read_header(file, path)
    _check_agreed(header, path, layout, fingerprint)
    length, count, starts = _check_numbers(header, path, layout)
    wanted = at + 4 * count + _content_bytes(layout, length, starts) + CHECKSUM_BYTES
    if size != wanted:
        raise FileError(f"{path}: a sequence of {length} tokens takes {wanted} bytes, the file has {size}")
    checksum, num_remaining = _checksum(), size - CHECKSUM_BYTES
    file.seek(0)
    while num_remaining:
        piece = _read(file, path, min(num_remaining, PIECE_BYTES))
        checksum.update(piece)
        num_remaining -= len(piece)
    if checksum.digest() != _read(file, path, CHECKSUM_BYTES):
        raise FileError(f"{path}: the file is damaged: its checksum does not match")
    file.seek(at)
    tokens = np.frombuffer(_read(file, path, 4 * count), "<u4")
    return Saved(file, path, length, array("I", tokens.tolist()), starts, at + 4 * count)


def _read_header(file: BinaryIO, path: Path) -> tuple[dict[str, Any], int]:
    """The header, and where it ends."""
    magic, version, size = START.unpack(_read(file, path, START.size))
    if magic != MAGIC:
        raise FileError(f"{path}: not a saved sequence of a KV cache")
    if version != VERSION:
        raise FileError(f"{path}: unsupported version {version} of saved sequences; fewbit reads version {VERSION}")
    if size > MAX_HEADER_BYTES:
        raise FileError(f"{path}: a header of {size} bytes is too long")
    text = _read(file, path, size)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise FileError(f"{path}: the file is damaged: its header is not a JSON object")
    return header, START.size + size


def _check_agreed(header: dict[str, Any], path: Path, layout: Layout, fingerprint: str) -> None:
    for name, wanted in agreed(layout).items():
        given = header.get(name)
        if name == "specs":
            _check_specs(given, path, layout.specs)
        elif type(given) is not type(wanted) or given != wanted:
            raise FileError(f"{path}: saved with {name} = {given}, this cache has {name} = {wanted}")
    saved = header.get("fingerprint")
    if not isinstance(saved, str) or (saved and fingerprint and saved != fingerprint):
        raise FileError(f"{path}: saved by another model: fingerprint {saved!r}, not {fingerprint!r}")


def _check_specs(given: Any, path: Path, specs: tuple[LayerSpec, ...]) -> None:
    if not isinstance(given, list) or len(given) != len(specs):
        raise FileError(f"{path}: the file is damaged: its header lacks the specs of the layers")
    for layer, (saved, spec) in enumerate(zip(given, specs, strict=True)):
        wanted = spec and asdict(spec)
        if saved != wanted:
            raise FileError(f"{path}: saved with {saved} in layer {layer}, this cache keeps {wanted}")


def _check_numbers(header: dict[str, Any], path: Path, layout: Layout) -> tuple[int, int, list[int]]:
    """The number of tokens, of those committed, and the first token of each attention group."""
    groups = [group for group in layout.groups if not group.is_recurrent]
    given = header.get("starts")
    numbers: list[Any] = [header.get("length"), header.get("tokens"), *(given if isinstance(given, list) else [None])]
    if any(type(number) is not int or number < 0 for number in numbers) or len(numbers) != 2 + len(groups):
        raise FileError(f"{path}: the file is damaged: its header lacks numbers of tokens")
    length, count, *starts = numbers
    if count > length or (layout.state_bytes and count < length):
        raise FileError(f"{path}: the file is damaged: {count} of {length} tokens cannot be committed")
    for group, start in zip(groups, starts, strict=True):
        if start > group.first_seen(count):
            raise FileError(f"{path}: tokens before {start} are missing, which a window of {group.window} sees")
    return length, count, starts


def _content_bytes(layout: Layout, length: int, starts: list[int]) -> int:
    """Bytes of all rows and states."""
    groups = zip(layout.groups, starts, strict=False)
    rows = (
        (length - start) * _row_bytes(layout, layout.attention(layer))
        for group, start in groups
        for layer in group.layers
    )
    return sum(rows) + layout.state_bytes


def _row_bytes(layout: Layout, spec: AttentionSpec) -> int:
    """Bytes of a token in a layer."""
    return spec.kv_heads * sum(layout.row_bytes(spec))


def _read(file: BinaryIO, path: Path, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise FileError(f"{path}: the file ends too early: expected {size} bytes, got {len(data)}")
    return data


def _checksum() -> blake2b:
    return blake2b(digest_size=CHECKSUM_BYTES)
