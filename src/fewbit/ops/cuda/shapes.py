"""Which kernel, in which shape, for a product of (tokens, n, k): chosen here alone, from figures of an H200."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .layout import TileLayout

MAX_SKINNY, MAX_SHARED = 16, 64  # tokens
MIN_PANELS, MAX_PANELS = 33, 256  # tokens, where a GPU takes panels; more are multiplied by cuBLAS
PANEL_TILES = (6, 8, 12, 16)  # of 8 tokens
MANY_ROWS = 8192  # so many that blocks of few rows fill the GPU
MAX_ROWS_GEMV = 4  # tokens for which formats that stay as in files are read once for each
FIXED_COLUMNS = 16  # kernels are compiled for k where there are that many tiles along it
MAX_CLUSTER = 8  # blocks, on every GPU that has clusters
MAX_PANEL_BLOCKS = 100  # of 256 rows that share k in clusters, which cannot have all of 132 multiprocessors


@dataclass(frozen=True)
class GemvShape:
    """Warps by rows and along k, tiles in flight, row tiles of a warp."""

    warps_rows: int
    warps_k: int
    in_flight: int
    row_tiles: int

    @property
    def threads(self) -> int:
        return 32 * self.warps_rows * self.warps_k

    @property
    def rows(self) -> int:
        return 8 * self.warps_rows * self.row_tiles


@dataclass(frozen=True)
class SkinnyShape:
    """x from L1: warps along k, tiles in flight, pairs of row tiles of a warp, tiles of 8 tokens of a block."""

    warps_k: int
    in_flight: int
    row_pairs: int
    token_tiles: int
    columns: int = 0  # tiles along k that it is compiled for; 0: any
    is_many: bool = False  # blocks share the tokens, too

    @property
    def threads(self) -> int:
        return 32 * self.warps_k

    @property
    def rows(self) -> int:
        return 16 * self.row_pairs


@dataclass(frozen=True)
class SharedShape:
    """x through shared memory: warps by rows, pairs of row tiles, tiles of 8 tokens, stages, blocks along k."""

    warps: int
    row_pairs: int
    token_tiles: int
    stages: int
    blocks_k: int
    is_cluster: bool = False  # the blocks along k are a cluster (8 at most), where the GPU has clusters
    columns: int = 0  # tiles along k that it is compiled for; 0: any

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def rows(self) -> int:
        return 16 * self.warps * self.row_pairs


@dataclass(frozen=True)
class PanelShape:
    """x through shared memory: warps of 16 rows, tiles of 8 tokens of a panel, stages, blocks along k."""

    warps: int
    token_tiles: int
    stages: int
    blocks_k: int
    is_cluster: bool = False  # as in `SharedShape`
    has_wgmma: bool = False  # products of warpgroups, else of warps
    columns: int = 0  # tiles along k that it is compiled for; 0: any

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def rows(self) -> int:
        return 16 * self.warps

    @property
    def shared(self) -> int:
        return 2048 * self.token_tiles * self.stages * (2 if self.has_wgmma else 1)  # tile columns of a stage


@cache
def form_kind(tokens: int, f16: bool, invariant: bool, panels: bool = False) -> str:
    """How the rows of a product are taken: "bytes", "fragments" or "panels" (f16), or "rows16" (bf16).

    `panels`: whether the GPU takes them.

    >>> [form_kind(tokens, False, False) for tokens in (1, 2, 64, 65)]
    ['bytes', 'fragments', 'fragments', 'rows16']
    >>> [form_kind(tokens, False, False, True) for tokens in (32, 33, 256, 257)]
    ['fragments', 'panels', 'panels', 'rows16']
    >>> [form_kind(tokens, False, True, True) for tokens in (1, 1000)]
    ['fragments', 'fragments']
    """
    if invariant:
        return "fragments"
    if tokens == 1 and not f16:
        return "bytes"
    if panels and MIN_PANELS <= tokens <= MAX_PANELS:
        return "panels"
    return "fragments" if tokens <= MAX_SHARED else "rows16"


@cache
def panel_tiles(tokens: int) -> tuple[int, int]:
    """How many panels there are, and their tiles of 8 tokens.

    >>> panel_tiles(33), panel_tiles(64), panel_tiles(80), panel_tiles(200)
    ((1, 6), (1, 8), (1, 12), (2, 16))
    """
    panels = -(-tokens // (8 * PANEL_TILES[-1]))
    return panels, next(tiles for tiles in PANEL_TILES if 8 * tiles * panels >= tokens)


@cache
def token_tiles(tokens: int, invariant: bool) -> int:
    """Tiles of 8 tokens that fragments have, with padding; the same for every matrix that takes them.

    >>> token_tiles(9, False), token_tiles(40, False), token_tiles(40, True), token_tiles(1000, True)
    (2, 6, 8, 128)
    """
    if invariant:
        once = _tiles_at_once(tokens)
        return -(-tokens // (8 * once)) * once
    return -(-tokens // 8) if tokens <= MAX_SKINNY else next(t for t in (4, 6, 8) if 8 * t >= tokens)


def _tiles_at_once(tokens: int) -> int:
    return next((t for t in (1, 2, 4) if 8 * t >= tokens), 4)


@cache
def gemv_shape(n: int, columns: int, tiles: TileLayout, gated: bool = False) -> GemvShape:
    """For one token. Where there are few rows, all warps of a block share them; bytes take more registers."""
    if columns < 16:
        return GemvShape(1, 4, 2, 2 if gated else 1)
    if n > MANY_ROWS and columns <= 64:
        return GemvShape(1, 4, 4, 2)
    if columns > 64 and tiles.q0 == 32:
        return GemvShape(1, 14 if columns % 14 == 0 else 16, 2, 2)
    return GemvShape(1, 8, 4, 1) if tiles.q1 and columns <= 64 and not gated else GemvShape(1, 16, 2, 2)


def _fixed(columns: int) -> int:
    return columns if columns >= FIXED_COLUMNS else 0


@cache
def skinny_shape(tokens: int, n: int, columns: int) -> SkinnyShape:
    """For 2 to 16 tokens."""
    tiles, fixed = token_tiles(tokens, False), _fixed(columns)
    if columns < 16 or n > MANY_ROWS:
        return SkinnyShape(4, 1, 1, tiles, fixed)
    if columns % 14 == 0 and tiles == 1:
        return SkinnyShape(14, 2, 1, 1, fixed)
    return SkinnyShape(16, 1, 1, tiles, fixed)


@cache
def invariant_shape(tokens: int, n: int, columns: int) -> SkinnyShape:
    """For any number of tokens: the same warps share k whatever that number is, so a token has the same sums."""
    return SkinnyShape(4 if columns < 16 or n > MANY_ROWS else 16, 1, 1, _tiles_at_once(tokens), _fixed(columns), True)


@cache
def shared_shape(tokens: int, n: int, columns: int, is_light: bool) -> SharedShape:
    """For 17 to 64 tokens; blocks share k until there are enough of them. `is_light`: weights of 4 bits, of which
    registers hold more rows. Up to 32 tokens the figures are of every shape, beyond of a few."""
    tiles, fixed = token_tiles(tokens, False), _fixed(columns)
    share = next(s for s in (8, 4, 2, 1) if 4 * s <= max(columns, 4))
    if tiles == 4 and n <= MANY_ROWS // 2:
        is_long = columns > 64
        return SharedShape(4, 1, tiles, 3 if is_long else 4, share, share > 1 and not is_long, fixed)
    if n > MANY_ROWS:
        share = 1 if tiles == 8 else 2
    row_pairs = 4 if is_light and tiles == 4 else 2
    return SharedShape(4, row_pairs, tiles, 3 if tiles == 8 else 4, share, share > 1, fixed)


@cache
def panel_shape(tokens: int, n: int, columns: int, has_wgmma: bool) -> PanelShape:
    """For 33 to 256 tokens. Blocks share k until there is about one for each multiprocessor of a large GPU."""
    panels, tiles = panel_tiles(tokens)
    warps = 16 if has_wgmma and tiles > 8 else 8
    blocks, most = panels * -(-n // (16 * warps)), MAX_PANEL_BLOCKS * (16 // warps)
    share = next(s for s in (8, 6, 4, 3, 2, 1) if s == 1 or (s * blocks <= most and 2 * s <= columns))
    stages = 3 if (tiles > 8) == has_wgmma else 2
    return PanelShape(warps, tiles, stages, share, share > 1, has_wgmma, _fixed(columns))
