"""The kernels of prompt attention by name, and the shapes of their blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from ...errors import ShapeError
from ...formats.spec import Format
from .kernels import Constant, Entry, entry, named, record

GATHER_THREADS = 256
MAX_PART = 256  # columns of V that one block can hold sums of
H200_SHARED = (232448, 233472)  # bytes of shared memory that a block can have, and that a multiprocessor has


@dataclass(frozen=True)
class PromptShape:
    """A block: padded dims of K and of its part of V, keys a tile, warps, 16 rows x tiles a warp, slots of the ring."""

    k_dim: int
    v_dim: int
    parts: int  # blocks that share the columns of V
    keys: int
    warps: int
    row_tiles: int
    slots: int

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def rows(self) -> int:
        return 16 * self.warps * self.row_tiles

    @property
    def shared(self) -> int:
        """Bytes: queries, the ring, positions of the rows."""
        return 2 * self.k_dim * self.rows + 2 * self.slots * self.keys * max(self.k_dim, self.v_dim) + 4 * self.rows

    @property
    def small(self) -> PromptShape:
        """Blocks of fewer rows, for prompts that would not fill a GPU. A row has the same bits."""
        return replace(self, row_tiles=1)

    @property
    def tile_bytes(self) -> tuple[int, int]:
        """Of K and of V of one head."""
        return 2 * self.keys * self.k_dim, 2 * self.keys * self.v_dim * self.parts


def round_up(n: int, to: int) -> int:
    return -(-n // to) * to


@cache
def prompt_shape(k_dim: int, v_dim: int, block_bytes: int, processor_bytes: int) -> PromptShape:
    """The first shape of which two blocks fit in a multiprocessor's shared memory, else the first that fits at all.

    >>> prompt_shape(128, 128, *H200_SHARED)
    PromptShape(k_dim=128, v_dim=128, parts=1, keys=64, warps=4, row_tiles=2, slots=4)
    """
    parts = -(-v_dim // MAX_PART)
    part = round_up(-(-v_dim // parts), 16)
    row_tiles = 2 if part <= 128 else 1
    base = PromptShape(round_up(k_dim, 16), part, parts, 64, 4, row_tiles, 4)
    shapes = [replace(base, slots=slots) for slots in (4, 3, 2)]
    small = replace(base, row_tiles=1)
    shapes += [replace(small, keys=keys, slots=slots) for keys in (64, 32) for slots in (3, 2)]
    shapes += [replace(small, keys=keys, warps=warps, slots=2) for keys in (32, 16) for warps in (2, 1)]
    for limit in (min(block_bytes, processor_bytes // 2 - 1024), block_bytes):
        for shape in shapes:
            if shape.shared <= limit:
                return shape
    raise ShapeError(f"heads of {k_dim} values in K and {v_dim} in V are too large for this GPU's shared memory")


def gather_kv(k: Format, v: Format, k_dim: int, v_dim: int, shape: PromptShape) -> Entry:
    """Pages to tiles."""
    pages = [_head_pages(fmt, dim, is_value) for fmt, dim, is_value in ((k, k_dim, False), (v, v_dim, True))]
    sizes = shape.k_dim, shape.v_dim * shape.parts, shape.keys, GATHER_THREADS
    return entry("gather_kv", (*pages, *sizes), GATHER_THREADS)


def _head_pages(fmt: Format, dim: int, is_value: bool) -> Constant:
    text = f"fewbit::HeadPages<{record(fmt).text}, {dim}, {str(is_value).lower()}>"
    return Constant(text, f"{fmt.native_name}_{dim}")


def attend_prompt(shape: PromptShape, rotated: int, has_softcap: bool, dtype: str, has_spans: bool = False) -> Entry:
    """Attention over tiles. `rotated`: values of a block of the Hadamard rotation, 0 if there is none."""
    sizes = list(map(str, (shape.k_dim, shape.v_dim, shape.keys, shape.warps, shape.row_tiles, shape.slots)))
    block = Constant(f"fewbit::PromptShape<{', '.join(sizes)}>", "_".join(sizes))
    constants = block, rotated, has_softcap, named(f"Real::{dtype}"), has_spans
    return entry("attend_prompt", constants, shape.threads, shared=shape.shared)
