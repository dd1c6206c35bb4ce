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
    """Pages of K or V of a layer, (pages, kv_heads, tokens, row bytes), or its states."""

    memory: Memory
    page_bytes: int
    row_bytes: int = 0


class PageStore:
    """A `cache.store.KVStore` on an adapter: a buffer for K, for V or for the states of each layer."""

    def __init__(self, gpu: Gpu, layout: Layout, pages: Sequence[int]) -> None:
        check_layout(layout)
        self.gpu, self.layout, self.pages = gpu, layout, tuple(pages)
        self.arrays: dict[int, list[PageArray]] = {}
        for layer, group in layout.group_of.items():
            self.arrays[layer] = [self._allocate(self.pages[group], *sizes) for sizes in _sizes(layout, layer)]

    @property
    def nbytes(self) -> int:
        return sum(array.memory.nbytes for arrays in self.arrays.values() for array in arrays)

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
        moves = [
            (a.memory, source * a.page_bytes, target * a.page_bytes, a.page_bytes)
            for source, target in pairs
            for a in arrays
        ]
        if moves:
            self.gpu.move(moves)

    def read(self, layer: int, page: int, count: int) -> list[Bytes]:
        arrays = self.arrays[layer]
        raw = [self.gpu.download(a.memory, a.page_bytes, page * a.page_bytes) for a in arrays]
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
            self.gpu.upload(parts[0], array.memory, page * array.page_bytes)
            return
        assert isinstance(spec, AttentionSpec)
        for array, part, (fmt, dim) in zip(self.arrays[layer], parts, self._kinds(spec), strict=True):
            rows = np.zeros((spec.kv_heads, PAGE_TOKENS, part.shape[2]), np.uint8)
            rows[:, first : first + len(part)] = part.swapaxes(0, 1)
            self.gpu.upload(from_rows(fmt, dim, rows), array.memory, page * array.page_bytes)

    def _kinds(self, spec: AttentionSpec) -> tuple[tuple[Format, int], tuple[Format, int]]:
        return (self.layout.k, spec.k_dim), (self.layout.v, spec.v_dim)

    def _allocate(self, pages: int, page_bytes: int, row_bytes: int) -> PageArray:
        nbytes = pages * page_bytes
        if nbytes + 4 > self.gpu.binding_bytes:
            most = self.gpu.binding_bytes // max(1, page_bytes) * PAGE_TOKENS
            raise OutOfMemory(
                f"a layer's K or V of {readable(nbytes)} does not fit: {self.gpu.info.name} lets kernels see "
                f"{readable(self.gpu.binding_bytes)}, about {most} tokens; take a smaller ctx or cache_bytes"
            )
        return PageArray(self.gpu.allocate(nbytes + 4, "pages"), page_bytes, row_bytes)


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
