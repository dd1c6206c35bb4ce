"""The kernels of attention that read and write KV pages."""

from __future__ import annotations

from dataclasses import dataclass

from ...formats.spec import Format
from .kernels import Constant, Entry, entry, record

PAIRS = 8  # pages that one launch copies
PLAIN_HEADS = 8  # query heads of a block
PLAIN_THREADS, WRITE_THREADS = 256, 512
MAX_MMA_DIM = 256


@dataclass(frozen=True)
class PageShape:
    """What kernels that touch pages are compiled for: formats, and values of a head."""

    k: Format
    v: Format
    k_dim: int
    v_dim: int

    @property
    def constants(self) -> tuple[Constant | int, ...]:
        return record(self.k), record(self.v), self.k_dim, self.v_dim

    @property
    def fits_mma(self) -> bool:
        widest = max(fmt.block_bytes if fmt.is_scalar else 1 for fmt in (self.k, self.v))  # bytes of a value
        return widest <= 2 and all(dim % 32 == 0 and dim <= MAX_MMA_DIM for dim in (self.k_dim, self.v_dim))


def copy_pages() -> Entry:
    return entry("copy_pages", (), 256)


def write_kv(pages: PageShape) -> Entry:
    """K and V of new tokens into pages."""
    return entry("write_kv", pages.constants, WRITE_THREADS)


def attend_plain(pages: PageShape, fused: bool) -> Entry:
    """Attention of single tokens for every format and size."""
    return entry("attend_plain", (*pages.constants, fused), PLAIN_THREADS)


def attend_mma(pages: PageShape, head_tiles: int, warps: int, fused: bool) -> Entry:
    """The same by mma, where `pages.fits_mma`."""
    return entry("attend_mma", (*pages.constants, head_tiles, warps, fused), 32 * warps)
