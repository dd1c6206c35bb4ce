"""How K and V lie in memory: formats that a KV cache can use, and sizes that follow from them."""

from __future__ import annotations

import math
import mmap
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..errors import FormatError, ShapeError
from ..formats import Format, all_formats, get
from ..ops import tiled
from .arguments import to_size

Bytes = npt.NDArray[np.uint8]

MOST_PAGES = (1 << 31) - 1  # a page's number has 32 bits
HUGE_FROM = 1 << 24  # bytes: what is smaller would hold mostly air
F16_MOST = 65504.0
F32_MOST = 3.38e38  # a little less than bf16 can hold


@dataclass(frozen=True)
class Layout:
    """What must be the same for K and V to move from one cache to another, page sizes aside.

    >>> layout = Layout(layers=2, kv_heads=8, dim=128, k=get("q8_0"), v=get("q4_0"), rotate=False)
    >>> layout.token_bytes, 2 * 8 * 128 * (8.5 + 4.5) / 8
    (3328, 3328.0)
    """

    layers: int
    kv_heads: int
    dim: int
    k: Format
    v: Format
    rotate: bool  # whether K is rotated before it is packed

    @cached_property
    def row_bytes(self) -> tuple[int, int]:
        """Bytes of K and of V of one token and head."""
        return self.k.row_bytes(self.dim), self.v.row_bytes(self.dim)

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in all layers."""
        return self.layers * self.kv_heads * sum(self.row_bytes)

    @property
    def token_f32_bytes(self) -> int:
        return self.layers * self.kv_heads * self.dim * 2 * 4

    @cached_property
    def most(self) -> tuple[float, float]:
        """The greatest magnitudes in K and V that are sure not to become infinite."""
        rotation = math.sqrt(self.dim & -self.dim) if self.rotate else 1.0  # can pile up all values in one
        return _most(self.k) / rotation, _most(self.v)


def _most(fmt: Format) -> float:
    return F16_MOST if any(kind == "f16" for _, kind, _ in fmt.fields) else F32_MOST


def kv_format(name: str | Format, what: str) -> Format:
    """A format for K or V.

    >>> kv_format("q4_k", "k")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    fewbit.errors.FormatError: k cannot be q4_k; a KV cache takes: f32, f16, bf16, q4_0, q4_1, ..., iq4_nl
    """
    fmt = get(name)
    if not _fits(fmt):
        fitting = ", ".join(f.name for f in all_formats().values() if _fits(f))
        raise FormatError(f"{what} cannot be {fmt}; a KV cache takes: {fitting}")
    return fmt


def _fits(fmt: Format) -> bool:
    """Floats of at most 32 bits, and what can be packed in blocks of 32 values."""
    if fmt.is_scalar:
        return "f" in fmt.name and fmt.bits_per_weight <= 32
    return fmt.placement == "block" and fmt.block == 32 and fmt.rule != "none"


def total_pages(tokens: int | None, pages: int | None, page_tokens: int) -> int:
    if (tokens is None) == (pages is None):
        raise ShapeError("the size of a KV cache is given as `tokens` or as `pages`, one of them")
    if tokens is None:
        assert pages is not None
        total = to_size(pages, "pages", least=1)
    else:
        total = -(-to_size(tokens, "tokens", least=1) // page_tokens)
    if total > MOST_PAGES:
        raise ShapeError(f"a KV cache has at most {MOST_PAGES} pages, {total} were asked for")
    return total


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """K or V of a layer: rows, (pages, kv_heads, page_tokens, row bytes), or slabs: see `ops.tiled`."""

    data: Bytes
    layout: Layout
    is_value: bool
    page_tokens: int

    @property
    def row_bytes(self) -> int:
        return self.layout.row_bytes[self.is_value]

    def read(self, page: int, count: int) -> Bytes:
        """The rows of the first tokens of a page, (count, kv_heads, row bytes)."""
        rows: Bytes = self.data[page]
        if self._tiled:
            rows = tiled.to_rows(self._format, rows, self.layout.dim, self.is_value)
        return rows[:, :count].swapaxes(0, 1)

    def write(self, page: int, rows: Bytes) -> None:
        """Fill a page from its first token on; what it holds after them is anything."""
        if not self._tiled:
            self.data[page, :, : len(rows)] = rows.swapaxes(0, 1)
            return
        whole = np.zeros((self.layout.kv_heads, self.page_tokens, self.row_bytes), np.uint8)
        whole[:, : len(rows)] = rows.swapaxes(0, 1)
        self.data[page] = tiled.to_slabs(self._format, whole, self.layout.dim, self.is_value)

    @property
    def _tiled(self) -> bool:
        return bool(self.data.shape[3] != self.row_bytes)

    @property
    def _format(self) -> Format:
        return self.layout.v if self.is_value else self.layout.k


def make_store(layout: Layout, is_value: bool, pages: int, page_tokens: int, keeps_tiles: bool) -> Store:
    each = tiled.SLAB if keeps_tiles else 1
    shape = pages, layout.kv_heads, page_tokens // each, each * layout.row_bytes[is_value]
    return Store(zeros(shape), layout, is_value, page_tokens)


def zeros(shape: tuple[int, ...]) -> Bytes:
    """Zeros on a page of memory, straight from the system, which gives it when it is first written.

    A large one asks for huge pages: its rows lie all over the place, and decoding long contexts takes 10 to 20% less
    time when few pages have to be looked up.
    """
    size = math.prod(shape)
    if hasattr(mmap, "MAP_ANONYMOUS"):
        memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    else:
        memory = mmap.mmap(-1, max(size, 1))
    if size >= HUGE_FROM and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8, size).reshape(shape)
