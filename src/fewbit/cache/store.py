"""Memory for K, V and recurrent states. Each kind of device has its own store; `Cache` tells it what to copy."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..arrays import Bytes
from ..errors import OutOfMemory, PositionError
from ..formats import Format
from ..ops import tiled
from ..ops.memory import address_space, available_memory, readable
from ..ops.specs import AttentionSpec, KVArrays, RecurrentSpec
from .layout import Layout

HUGE_FROM = 1 << 24  # bytes: smaller arrays would waste most of a huge page


class KVStore(Protocol):
    """The store of a cache. `pages` is the number of pages (or slots) of each group."""

    layout: Layout
    pages: tuple[int, ...]

    @property
    def nbytes(self) -> int: ...

    def copy(self, group: int, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy pages (source, destination), in this order, in all layers of a group."""

    def read(self, layer: int, page: int, count: int) -> list[Bytes]:
        """K and V of the first tokens of a page, (count, kv_heads, row bytes) each; or the state in a slot."""

    def write(self, layer: int, page: int, parts: Sequence[Bytes], first: int = 0) -> None:
        """Fill a page with what `read` returned, from token `first` on. The rest of the page is undefined."""


class HostStore:
    """Host memory: NumPy arrays, whose memory is committed when it is first written.

    `keeps_tiles` tells the layers whose K and V are kept in the order of matrix tiles, see `ops.tiled`. `place` is
    called with each array, before anybody touches it, to say where its memory is to come from.

    >>> from fewbit.cache.layout import make_layout
    >>> store = HostStore(make_layout([AttentionSpec(2, 64, 32), RecurrentSpec(100)], "q8_0"), (4, 3))
    >>> store.kv(0).k.shape, store.kv(0).v.shape, store.states(1).shape
    ((4, 2, 32, 68), (4, 2, 32, 34), (3, 100))
    """

    def __init__(
        self,
        layout: Layout,
        pages: Sequence[int],
        keeps_tiles: Callable[[AttentionSpec], bool] | None = None,
        place: Callable[[Bytes], None] | None = None,
    ) -> None:
        self.layout = layout
        self.pages = tuple(pages)
        _refuse_too_large(layout, self.pages)
        self._kv: dict[int, tuple[_Rows, _Rows]] = {}
        self._states: dict[int, Bytes] = {}
        for layer, group in layout.group_of.items():
            spec = layout.specs[layer]
            if isinstance(spec, AttentionSpec):
                is_tiled = keeps_tiles is not None and keeps_tiles(spec)
                k, v = (_make_rows(layout, spec, is_value, self.pages[group], is_tiled) for is_value in (False, True))
                self._kv[layer] = k, v
            elif isinstance(spec, RecurrentSpec):
                self._states[layer] = zeros((self.pages[group], spec.nbytes))
        if place is not None:
            for layer in layout.group_of:
                for array in self._arrays(layer):
                    place(array)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for layer in self.layout.group_of for array in self._arrays(layer))

    def group_of(self, layer: int) -> int:
        return self.layout.group_of[layer]

    def kv(self, layer: int) -> KVArrays:
        """K and V of a layer."""
        if layer not in self._kv:
            raise PositionError(f"layer {layer} keeps no K and V")
        k, v = self._kv[layer]
        return KVArrays(k.fmt, k.data, v.fmt, v.data, self.layout.rotate)

    def states(self, layer: int) -> Bytes:
        """States of a recurrent layer, (slots, nbytes)."""
        if layer not in self._states:
            raise PositionError(f"layer {layer} keeps no state")
        return self._states[layer]

    def copy(self, group: int, pairs: Iterable[tuple[int, int]]) -> None:
        arrays = [array for layer in self.layout.groups[group].layers for array in self._arrays(layer)]
        for source, destination in pairs:
            for array in arrays:
                array[destination] = array[source]

    def read(self, layer: int, page: int, count: int) -> list[Bytes]:
        if layer in self._states:
            return [self._states[layer][page]]
        return [rows.read(page, count) for rows in self._kv[layer]]

    def write(self, layer: int, page: int, parts: Sequence[Bytes], first: int = 0) -> None:
        if layer in self._states:
            self._states[layer][page] = parts[0]
            return
        for rows, part in zip(self._kv[layer], parts, strict=True):
            rows.write(page, part, first)

    def _arrays(self, layer: int) -> list[Bytes]:
        return [rows.data for rows in self._kv[layer]] if layer in self._kv else [self._states[layer]]


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """K or V of a layer: rows, (pages, kv_heads, page_tokens, row bytes), or slabs: see `ops.tiled`."""

    data: Bytes
    fmt: Format
    dim: int
    is_value: bool
    page_tokens: int

    @property
    def row_bytes(self) -> int:
        return self.fmt.row_bytes(self.dim)

    def read(self, page: int, count: int) -> Bytes:
        rows: Bytes = self.data[page]
        if self._is_tiled:
            rows = tiled.to_rows(self.fmt, rows, self.dim, self.is_value)
        return rows[:, :count].swapaxes(0, 1)

    def write(self, page: int, rows: Bytes, first: int) -> None:
        if not self._is_tiled:
            self.data[page, :, first : first + len(rows)] = rows.swapaxes(0, 1)
            return
        whole = np.zeros((self.data.shape[1], self.page_tokens, self.row_bytes), np.uint8)
        whole[:, first : first + len(rows)] = rows.swapaxes(0, 1)
        self.data[page] = tiled.to_slabs(self.fmt, whole, self.dim, self.is_value)

    @property
    def _is_tiled(self) -> bool:
        return bool(self.data.shape[3] != self.row_bytes)


def _make_rows(layout: Layout, spec: AttentionSpec, is_value: bool, pages: int, is_tiled: bool) -> _Rows:
    each = tiled.SLAB if is_tiled else 1
    shape = pages, spec.kv_heads, layout.page_tokens // each, each * layout.row_bytes(spec)[is_value]
    fmt, dim = (layout.v, spec.v_dim) if is_value else (layout.k, spec.k_dim)
    return _Rows(zeros(shape), fmt, dim, is_value, layout.page_tokens)


def _refuse_too_large(layout: Layout, pages: Sequence[int]) -> None:
    nbytes = sum(count * group.page_bytes for count, group in zip(pages, layout.groups, strict=True))
    if nbytes < HUGE_FROM:
        return
    memory = min(available_memory(), address_space())
    if nbytes > memory:
        tokens = f": room for about {memory // layout.token_bytes} tokens" if layout.token_bytes else ""
        raise OutOfMemory(
            f"a KV cache of {readable(nbytes)} does not fit; {readable(memory)} of memory is available{tokens}"
        )


def zeros(shape: tuple[int, ...]) -> Bytes:
    """An array of zeros, page-aligned. Memory is committed when it is first written.

    Large arrays use huge pages: decoding long contexts then takes 10-20% less time, with fewer TLB misses.
    """
    size = math.prod(shape)
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
    try:
        memory = mmap.mmap(-1, max(size, 1), **private)
    except (OSError, OverflowError, ValueError) as error:
        raise OutOfMemory(f"cannot allocate {readable(size)} for a KV cache; make it smaller") from error
    if size >= HUGE_FROM and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8, size).reshape(shape)
