"""K, V and recurrent states in the memory of an adapter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...arrays import Bytes
from ...errors import ArgumentError, FormatError, OutOfMemory, PositionError
from ...formats import Format
from ..memory import readable
from ..specs import AttentionSpec, RecurrentSpec
from .device import Gpu, Memory
from .page_writers import FORMATS, PAGE_TOKENS, padded_dim, page_row_bytes

if TYPE_CHECKING:
    from ...cache.layout import Layout


class PageArray(NamedTuple):
    """Pages of K or V of a layer, (pages, kv_heads, tokens, row bytes), or its states; so many in each buffer."""

    memories: tuple[Memory, ...]
    pages_each: int
    page_bytes: int
    row_bytes: int = 0

    @property
    def memory(self) -> Memory:
        """The only buffer, that of states."""
        (memory,) = self.memories
        return memory

    def place(self, page: int) -> tuple[Memory, int]:
        """The buffer of a page, and where it begins there."""
        part, number = divmod(page, self.pages_each)
        return self.memories[part], number * self.page_bytes


class PageStore:
    """A `cache.store.KVStore` on an adapter: a buffer for K, for V or for the states of each layer."""

    def __init__(self, gpu: Gpu, layout: Layout, pages: Sequence[int]) -> None:
        check_layout(layout)
        self.gpu, self.layout, self.pages = gpu, layout, tuple(pages)
        self.arrays: dict[int, list[PageArray]] = {}
        for layer, group in layout.group_of.items():
            self.arrays[layer] = self._allocate(self.pages[group], _sizes(layout, layer))

    @property
    def nbytes(self) -> int:
        return sum(memory.nbytes for arrays in self.arrays.values() for a in arrays for memory in a.memories)

    def kv(self, layer: int) -> tuple[PageArray, PageArray, AttentionSpec]:
        spec = self.layout.specs[layer] if layer in self.arrays else None
        if not isinstance(spec, AttentionSpec):
            raise PositionError(f"layer {layer} keeps no K and V")
        k, v = self.arrays[layer]
        return k, v, spec

    def states(self, layer: int) -> PageArray:
        if layer not in self.arrays or not isinstance(self.layout.specs[layer], RecurrentSpec):
            raise PositionError(f"layer {layer} keeps no state")
        return self.arrays[layer][0]

    def group_of(self, layer: int) -> int:
        return self.layout.group_of[layer]

    def copy(self, group: int, pairs: Iterable[tuple[int, int]]) -> None:
        arrays = [array for layer in self.layout.groups[group].layers for array in self.arrays.get(layer, [])]
        moves = [(*a.place(source), *a.place(target), a.page_bytes) for source, target in pairs for a in arrays]
        if moves:
            self.gpu.move(moves)

    def read(self, layer: int, page: int, count: int) -> list[Bytes]:
        arrays = self.arrays[layer]
        places = [a.place(page) for a in arrays]
        raw = [self.gpu.download(m, a.page_bytes, at) for a, (m, at) in zip(arrays, places, strict=True)]
        spec = self.layout.specs[layer]
        if isinstance(spec, RecurrentSpec):
            return [raw[0][: spec.nbytes]]
        assert isinstance(spec, AttentionSpec)
        out = []
        for data, array, (fmt, dim) in zip(raw, arrays, self._kinds(spec), strict=True):
            rows = data.reshape(spec.kv_heads, PAGE_TOKENS, array.row_bytes)
            out.append(to_rows(fmt, dim, rows)[:, :count].swapaxes(0, 1))
        return out

    def write(self, layer: int, page: int, parts: Sequence[Bytes], first: int = 0) -> None:
        """Tokens before the first and after the last become zeros."""
        spec = self.layout.specs[layer]
        if isinstance(spec, RecurrentSpec):
            (array,) = self.arrays[layer]
            self.gpu.upload(parts[0], *array.place(page))
            return
        assert isinstance(spec, AttentionSpec)
        for array, part, (fmt, dim) in zip(self.arrays[layer], parts, self._kinds(spec), strict=True):
            rows = np.zeros((spec.kv_heads, PAGE_TOKENS, part.shape[2]), np.uint8)
            rows[:, first : first + len(part)] = part.swapaxes(0, 1)
            self.gpu.upload(from_rows(fmt, dim, rows), *array.place(page))

    def _kinds(self, spec: AttentionSpec) -> tuple[tuple[Format, int], tuple[Format, int]]:
        return (self.layout.k, spec.k_dim), (self.layout.v, spec.v_dim)

    def _allocate(self, pages: int, sizes: Sequence[tuple[int, int]]) -> list[PageArray]:
        """K and V, or states. K and V that are larger than a binding are in buffers of the same pages."""
        widest = max(page_bytes for page_bytes, _ in sizes)
        limit = min(self.gpu.binding_bytes, self.gpu.info.buffer_bytes) - 4
        each, is_whole = max(1, min(pages, limit // widest)), len(sizes) == 1
        if widest * (pages if is_whole else 1) > limit:
            what = f"{pages} states of a layer take" if is_whole else f"a page of {PAGE_TOKENS} tokens takes"
            raise OutOfMemory(
                f"{what} {readable(widest * (pages if is_whole else 1))}, but {self.gpu.info.name} lets kernels see "
                f"{readable(self.gpu.binding_bytes)} of a buffer; take a smaller cache_bytes or another device"
            )
        counts = [min(each, pages - first) for first in range(0, pages, each)] or [0]
        return [
            PageArray(tuple(self.gpu.allocate(n * size + 4, "pages") for n in counts), each, size, row_bytes)
            for size, row_bytes in sizes
        ]


def check_layout(layout: Layout) -> None:
    """Whether pages on an adapter can have a layout; one sentence where they cannot."""
    for what, fmt in (("k", layout.k), ("v", layout.v)):
        if fmt.name not in FORMATS:
            raise FormatError(f"on WebGPU {what} cannot be {fmt.name}; a KV cache there takes: {', '.join(FORMATS)}")
    if layout.page_tokens != PAGE_TOKENS:
        raise ArgumentError(f"pages on WebGPU have {PAGE_TOKENS} tokens, not {layout.page_tokens}")


def _sizes(layout: Layout, layer: int) -> list[tuple[int, int]]:
    """Bytes of a page and of a row, for each array of a layer."""
    spec = layout.specs[layer]
    if isinstance(spec, RecurrentSpec):
        return [(-(-spec.nbytes // 4) * 4, 0)]
    assert isinstance(spec, AttentionSpec)
    rows = [page_row_bytes(fmt, dim) for fmt, dim in ((layout.k, spec.k_dim), (layout.v, spec.v_dim))]
    return [(spec.kv_heads * PAGE_TOKENS * nbytes, nbytes) for nbytes in rows]


def from_rows(fmt: Format, dim: int, rows: Bytes) -> Bytes:
    """Rows of blocks, as hosts have them, (..., row bytes), to rows of pages."""
    if not fmt.is_scalar:
        blocks = rows.reshape(*rows.shape[:-1], -1, fmt.block_bytes)
        codes, scales = blocks[..., 2:], blocks[..., :2]
        rows = np.concatenate([p.reshape(*rows.shape[:-1], -1) for p in (codes, scales)], axis=-1)
    missing = page_row_bytes(fmt, dim) - rows.shape[-1]
    return np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, missing)])


def to_rows(fmt: Format, dim: int, rows: Bytes) -> Bytes:
    """The other way."""
    rows = rows[..., : fmt.row_bytes(dim)]
    if fmt.is_scalar:
        return rows
    count = padded_dim(fmt, dim) // fmt.block
    codes, scales = np.split(rows, [count * (fmt.block_bytes - 2)], axis=-1)
    parts = [part.reshape(*rows.shape[:-1], count, -1) for part in (scales, codes)]
    return np.concatenate(parts, axis=-1).reshape(rows.shape)
