"""K, V and recurrent states in a GPU's memory: pages as csrc/cuda/kv_pages.h says, and rows of them for the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...arrays import Bytes
from ...errors import ArgumentError, FormatError, OutOfMemory, PositionError
from ...formats import Format
from ..memory import readable
from ..specs import AttentionSpec, LayerSpec, RecurrentSpec
from .kernels_attention import PAIRS, copy_pages
from .session import Session

FORMATS = ("f32", "f16", "bf16", "f8_e4m3", "q8_0", "q4_0")  # those of the kernels
PAGE_TOKENS = 32
SCALE_BYTES = 2  # first in a block of a file; the codes follow
STATE_ALIGN = 16
COPY_THREADS = 256


class GroupLayers(Protocol):
    @property
    def layers(self) -> tuple[int, ...]: ...


class PageLayout(Protocol):
    """What is asked of `cache.layout.Layout`."""

    @property
    def specs(self) -> tuple[LayerSpec, ...]: ...
    @property
    def k(self) -> Format: ...
    @property
    def v(self) -> Format: ...
    @property
    def rotate(self) -> bool: ...
    @property
    def page_tokens(self) -> int: ...
    @property
    def groups(self) -> Sequence[GroupLayers]: ...
    @property
    def group_of(self) -> Mapping[int, int]: ...
    def row_bytes(self, spec: AttentionSpec) -> tuple[int, int]: ...


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
    """A `cache.store.KVStore` on a GPU. All is done on the device's stream, or on `stream`."""

    def __init__(self, device: Session, layout: PageLayout, pages: Sequence[int], stream: Any = None) -> None:
        check_layout(layout)
        self.device, self.layout, self.pages, self.stream = device, layout, tuple(pages), stream
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
                *numbers.reshape(-1), stream=self.stream,
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
        if self.stream is not None:
            self.stream.sync()
        out = np.empty(array.page_bytes, np.uint8)
        self.device.download(array.pointer + page * array.page_bytes, out)
        return out

    def _upload(self, array: _Array, page: int, data: Bytes) -> None:
        if self.stream is not None:
            self.stream.sync()
        self.device.upload(data.reshape(-1), array.pointer + page * array.page_bytes)

    def _refuse_too_large(self) -> None:
        free = self.device.free_bytes()
        if self.nbytes > free:
            raise OutOfMemory(
                f"a KV cache of {readable(self.nbytes)} does not fit; the GPU has {readable(free)} free: "
                "take fewer tokens, or a format with fewer bits"
            )


def check_layout(layout: PageLayout) -> None:
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


def to_rows(fmt: Format, pages: Bytes, is_value: bool) -> Bytes:
    """Heads of a page, (kv_heads, bytes), to rows as the host has them, (kv_heads, tokens, bytes of a row)."""
    heads = len(pages)
    if fmt.is_scalar:
        size = fmt.block_bytes
        return (
            _swapped(pages.reshape(heads, -1, PAGE_TOKENS, size)) if is_value else pages.reshape(heads, PAGE_TOKENS, -1)
        )
    size = fmt.block_bytes - SCALE_BYTES
    blocks = pages.shape[1] // (PAGE_TOKENS * fmt.block_bytes)
    codes, scales = np.split(pages, [PAGE_TOKENS * blocks * size], axis=1)
    rows = np.empty((heads, PAGE_TOKENS, blocks, fmt.block_bytes), np.uint8)
    if is_value:
        rows[..., :SCALE_BYTES] = scales.reshape(heads, blocks, PAGE_TOKENS, SCALE_BYTES).swapaxes(1, 2)
        rows[..., SCALE_BYTES:] = codes.reshape(heads, blocks, size, PAGE_TOKENS).transpose(0, 3, 1, 2)
    else:
        rows[..., :SCALE_BYTES] = scales.reshape(heads, PAGE_TOKENS, blocks, SCALE_BYTES)
        rows[..., SCALE_BYTES:] = codes.reshape(heads, PAGE_TOKENS, blocks, size)
    return rows.reshape(heads, PAGE_TOKENS, -1)


def to_pages(fmt: Format, rows: Bytes, is_value: bool) -> Bytes:
    """The other way."""
    heads = len(rows)
    if fmt.is_scalar:
        values = rows.reshape(heads, PAGE_TOKENS, -1, fmt.block_bytes)
        return (_swapped(values) if is_value else values).reshape(heads, -1)
    blocks = rows.reshape(heads, PAGE_TOKENS, -1, fmt.block_bytes)
    scales, codes = blocks[..., :SCALE_BYTES], blocks[..., SCALE_BYTES:]
    if is_value:
        scales, codes = scales.swapaxes(1, 2), codes.transpose(0, 2, 3, 1)
    return np.concatenate([codes.reshape(heads, -1), scales.reshape(heads, -1)], axis=1)


def _swapped(values: Bytes) -> Bytes:
    """(heads, a, b, bytes) to (heads, b, a * bytes)."""
    swapped = np.ascontiguousarray(values.swapaxes(1, 2))
    return swapped.reshape(*swapped.shape[:2], prod(swapped.shape[2:]))


def _page_sizes(layout: PageLayout, layer: int) -> list[int]:
    """Bytes of a page of K and of V, or of a slot of states."""
    spec = layout.specs[layer]
    if isinstance(spec, AttentionSpec):
        return [spec.kv_heads * layout.page_tokens * size for size in layout.row_bytes(spec)]
    assert isinstance(spec, RecurrentSpec)
    return [-(-spec.nbytes // STATE_ALIGN) * STATE_ALIGN]
