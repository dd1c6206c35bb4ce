"""K, V and recurrent states in a GPU's memory: pages as csrc/cuda/kv_pages.h says, and rows of them for the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...arrays import Bytes
from ...errors import ArgumentError, FormatError, OutOfMemory, PositionError
from ...formats import Format, all_formats, get
from ...formats.spec import Integers
from ..memory import readable
from ..specs import AttentionSpec, LayerSpec, RecurrentSpec
from .kernels_attention import PAIRS, copy_pages
from .session import Session

if TYPE_CHECKING:
    from ...cache.layout import Layout

PAGE_TOKENS = 32
STATE_ALIGN = 16
COPY_THREADS = 256


def fits_pages(fmt: Format) -> bool:
    """Whether K and V can be kept in a format: floats, or blocks of 32 codes of 4 or 8 bits after an f16 scale."""
    if fmt.is_scalar:
        return fmt.name.startswith(("f", "bf")) and fmt.block_bytes <= 4
    fields = [kind for _, kind, _ in fmt.fields]
    codes, is_plain = fmt.codes, fields == ["f16", "u8"] and not fmt.codebook
    return isinstance(codes, Integers) and is_plain and fmt.group == 32 and codes.bits == (8 if codes.signed else 4)


FORMATS = tuple(name for name in all_formats() if fits_pages(get(name)))


class LayerPages(NamedTuple):
    """K and V of a layer: pointers to (pages, kv_heads, bytes of a head's page)."""

    k: int
    v: int
    k_format: Format
    v_format: Format
    spec: AttentionSpec
    group: int
    rotate: bool  # K is rotated (Hadamard) before it is packed, and so are queries


class LayerStates(NamedTuple):
    """States of a recurrent layer: slot i begins at pointer + i * slot_bytes."""

    pointer: int
    slot_bytes: int
    group: int


class _Array(NamedTuple):
    """Pages of one layer's K or V, or its states."""

    buffer: Any
    page_bytes: int

    @property
    def pointer(self) -> int:
        return int(self.buffer.handle)


class DeviceStore:
    """A `cache.store.KVStore` on a GPU. All is done on the stream of the session."""

    def __init__(self, device: Session, layout: Layout, pages: Sequence[int]) -> None:
        check_layout(layout)
        self.device, self.layout, self.pages = device, layout, tuple(pages)
        self._sizes = {layer: _page_sizes(layout, layer) for layer in layout.group_of}
        self._refuse_too_large()
        self._arrays: dict[int, list[_Array]] = {}
        for layer, group in layout.group_of.items():
            self._arrays[layer] = [self._zeros(self.pages[group], size) for size in self._sizes[layer]]
        self._tables = [self._table(group.layers) for group in layout.groups]

    @property
    def nbytes(self) -> int:
        return sum(self.pages[self.layout.group_of[layer]] * sum(sizes) for layer, sizes in self._sizes.items())

    @property
    def rotate(self) -> bool:
        return self.layout.rotate

    def group_of(self, layer: int) -> int:
        return self.layout.group_of[layer]

    def kv(self, layer: int) -> LayerPages:
        spec = self._spec(layer)
        if not isinstance(spec, AttentionSpec):
            raise PositionError(f"layer {layer} keeps no K and V")
        k, v = (array.pointer for array in self._arrays[layer])
        return LayerPages(k, v, self.layout.k, self.layout.v, spec, self.group_of(layer), self.layout.rotate)

    def states(self, layer: int) -> LayerStates:
        if not isinstance(self._spec(layer), RecurrentSpec):
            raise PositionError(f"layer {layer} keeps no state")
        (array,) = self._arrays[layer]
        return LayerStates(array.pointer, array.page_bytes, self.group_of(layer))

    def copy(self, group: int, pairs: Iterable[tuple[int, int]]) -> None:
        layers = self.layout.groups[group].layers
        sizes = [size for layer in layers for size in self._sizes[layer]]
        if not sizes:  # these layers are elsewhere
            return
        blocks = min(64, -(-max(sizes, default=0) // (16 * COPY_THREADS)))
        for batch in independent(pairs, PAIRS):
            numbers = np.zeros((2, PAIRS), np.int32)
            numbers[:, : len(batch)] = np.array(batch, np.int32).T
            self.device.launch(
                copy_pages(), (blocks, len(sizes), len(batch)), COPY_THREADS, int(self._tables[group].handle),
                *numbers.reshape(-1).tolist(),
            )  # fmt: skip

    def read(self, layer: int, page: int, count: int) -> list[Bytes]:
        found = [self._download(array, page) for array in self._arrays[layer]]
        spec = self._spec(layer)
        if isinstance(spec, RecurrentSpec):
            return [found[0][: spec.nbytes]]
        assert isinstance(spec, AttentionSpec)
        return [
            to_rows(fmt, data.reshape(spec.kv_heads, -1), is_value)[:, :count].swapaxes(0, 1)
            for data, fmt, is_value in zip(found, (self.layout.k, self.layout.v), (False, True), strict=True)
        ]

    def write(self, layer: int, page: int, parts: Sequence[Bytes], first: int = 0) -> None:
        """Tokens before the first and after the last become zeros."""
        spec = self._spec(layer)
        if isinstance(spec, RecurrentSpec):
            self._upload(self._arrays[layer][0], page, parts[0])
            return
        assert isinstance(spec, AttentionSpec)
        formats = self.layout.k, self.layout.v
        for array, part, fmt, is_value in zip(self._arrays[layer], parts, formats, (False, True), strict=True):
            rows = np.zeros((spec.kv_heads, PAGE_TOKENS, part.shape[2]), np.uint8)
            rows[:, first : first + len(part)] = part.swapaxes(0, 1)
            self._upload(array, page, to_pages(fmt, rows, is_value))

    def _spec(self, layer: int) -> LayerSpec:
        return self.layout.specs[layer] if layer in self._sizes else None

    def _zeros(self, pages: int, page_bytes: int) -> _Array:
        array = _Array(self.device.allocate(pages * page_bytes), page_bytes)
        self.device.fill(array.pointer, 0, pages * page_bytes)
        return array

    def _table(self, layers: Iterable[int]) -> Any:
        """Where the arrays of a group are, for `copy_pages`."""
        arrays = [array for layer in layers for array in self._arrays[layer]]
        numbers = np.array([(array.pointer, array.page_bytes) for array in arrays], np.uint64)
        buffer = self.device.allocate(numbers.nbytes)
        self.device.upload(numbers, int(buffer.handle))
        return buffer

    def _download(self, array: _Array, page: int) -> Bytes:
        return self.device.download(array.pointer + page * array.page_bytes, np.empty(array.page_bytes, np.uint8))

    def _upload(self, array: _Array, page: int, data: Bytes) -> None:
        self.device.upload(data.reshape(-1), array.pointer + page * array.page_bytes)

    def _refuse_too_large(self) -> None:
        free = self.device.free_bytes()
        if self.nbytes > free:
            raise OutOfMemory(
                f"a KV cache of {readable(self.nbytes)} does not fit; the GPU has {readable(free)} free: "
                "take fewer tokens, or a format with fewer bits"
            )


def check_layout(layout: Layout) -> None:
    """Whether pages on a GPU can have a layout; one sentence where they cannot."""
    for what, fmt in (("k", layout.k), ("v", layout.v)):
        if fmt.name not in FORMATS:
            raise FormatError(f"on a GPU {what} cannot be {fmt.name}; a KV cache there takes: {', '.join(FORMATS)}")
    if layout.page_tokens != PAGE_TOKENS:
        raise ArgumentError(f"pages on a GPU have {PAGE_TOKENS} tokens, not {layout.page_tokens}")


def independent(pairs: Iterable[tuple[int, int]], limit: int) -> Iterator[list[tuple[int, int]]]:
    """Copies that can be done at once, at most so many; what reads or writes a page written before comes later.

    >>> list(independent([(0, 1), (2, 3), (3, 4), (0, 5)], 8))
    [[(0, 1), (2, 3)], [(3, 4), (0, 5)]]
    """
    batch: list[tuple[int, int]] = []
    read: set[int] = set()
    written: set[int] = set()
    for source, destination in pairs:
        if len(batch) == limit or source in written or destination in written or destination in read:
            yield batch
            batch, read, written = [], set(), set()
        batch.append((source, destination))
        read.add(source)
        written.add(destination)
    if batch:
        yield batch


def to_pages(fmt: Format, rows: Bytes, is_value: bool) -> Bytes:
    """Rows as the host has them, (kv_heads, tokens, bytes of a row), to heads of a page, (kv_heads, bytes)."""
    blocks = rows.reshape(len(rows), PAGE_TOKENS, -1, fmt.block_bytes)
    scale_bytes, code_bytes = _part_bytes(fmt)
    codes, scales = blocks[..., scale_bytes:], blocks[..., :scale_bytes]
    parts = [codes.reshape(*codes.shape[:2], -1, code_bytes), scales]
    return np.concatenate([(p.swapaxes(1, 2) if is_value else p).reshape(len(rows), -1) for p in parts], axis=1)


def to_rows(fmt: Format, pages: Bytes, is_value: bool) -> Bytes:
    """The other way."""
    heads, blocks = len(pages), pages.shape[1] // (PAGE_TOKENS * fmt.block_bytes)
    scale_bytes, code_bytes = _part_bytes(fmt)
    codes_bytes = fmt.block_bytes - scale_bytes

    def by_token(part: Bytes, item: int, of_block: int) -> Bytes:
        count = blocks * of_block // item
        shape = (heads, count, PAGE_TOKENS, item) if is_value else (heads, PAGE_TOKENS, count, item)
        items = part.reshape(shape)
        return (items.swapaxes(1, 2) if is_value else items).reshape(heads, PAGE_TOKENS, blocks, of_block)

    codes, scales = np.split(pages, [PAGE_TOKENS * blocks * codes_bytes], axis=1)
    parts = [by_token(codes, code_bytes, codes_bytes)]
    if scale_bytes:
        parts.insert(0, by_token(scales, scale_bytes, scale_bytes))
    return np.concatenate(parts, axis=3).reshape(heads, PAGE_TOKENS, -1)


def _part_bytes(fmt: Format) -> tuple[int, int]:
    """Bytes of a block's scale (0: there is none) and of a code, which no two tokens share."""
    return (0, fmt.block_bytes) if fmt.is_scalar else (fmt.field_offset(fmt.fields[1][0]), 1)


def _page_sizes(layout: Layout, layer: int) -> list[int]:
    """Bytes of a page of K and of V, or of a slot of states."""
    spec = layout.specs[layer]
    if isinstance(spec, AttentionSpec):
        return [spec.kv_heads * layout.page_tokens * size for size in layout.row_bytes(spec)]
    assert isinstance(spec, RecurrentSpec)
    return [-(-spec.nbytes // STATE_ALIGN) * STATE_ALIGN]
