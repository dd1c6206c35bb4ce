"""The kernels of prompt attention by name, and the shapes of their blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from ...errors import ShapeError
from .kernels import Entry, make_entry

GATHER_THREADS = 256
MAX_PART = 256  # columns of V that one block can hold sums of
H200_SHARED = (232448, 233472)  # bytes of shared memory that a block can have, and that a multiprocessor has

_PROMPTS = "const int* q_starts, const int* lengths, int first, int least, int back, int ahead"
_PROMPTS_GIVEN = "{q_starts, lengths, first, least, back, ahead}"
_QUERIES = "const float* q, int q_stride, int k_dim, int heads, int group, const float2* rope, int pairs, int neox"
_QUERIES_GIVEN = "{q, q_stride, k_dim, heads, group, rope, pairs, neox}"
_RESULT = "void* out, int out_stride, int v_dim, int width"
_RESULT_GIVEN = "{out, out_stride, v_dim, width}"
_LOGITS = "float scale, float softcap, const float* sinks"
_LOGITS_GIVEN = "{scale, softcap, sinks}"


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


@cache
def gather_kv(k_format: str, v_format: str, k_dim: int, v_dim: int, shape: PromptShape) -> Entry:
    """Pages to tiles."""
    numbers = (k_dim, v_dim, shape.k_dim, shape.v_dim * shape.parts, shape.keys)
    name = f"gather_{k_format}_{v_format}_" + "_".join(map(str, numbers))
    k = f"fewbit::HeadPages<fewbit::Kv::{k_format}, {k_dim}, false>"
    v = f"fewbit::HeadPages<fewbit::Kv::{v_format}, {v_dim}, true>"
    parameters = (
        f"const uint8_t* k, const uint8_t* v, int kv_heads, const int* tables, const int* starts, {_PROMPTS}, "
        "uint4* k_out, uint4* v_out, int capacity"
    )
    constants = f"{k}, {v}, {shape.k_dim}, {shape.v_dim * shape.parts}, {shape.keys}, {GATHER_THREADS}"
    call = f"gather_kv<{constants}>(k, v, kv_heads, tables, starts, {_PROMPTS_GIVEN}, k_out, v_out, capacity)"
    return make_entry("gather_kv.h", name, GATHER_THREADS, parameters, call)


@cache
def attend_prompt(shape: PromptShape, rotated: int, has_softcap: bool, dtype: str) -> Entry:
    """Attention over tiles. `rotated`: values of a block of the Hadamard rotation, 0 if there is none."""
    sizes = (shape.k_dim, shape.v_dim, shape.keys, shape.warps, shape.row_tiles, shape.slots)
    given = ", ".join(map(str, sizes))
    name = f"attend_prompt_{'_'.join(map(str, sizes))}_{rotated}_{'cap_' if has_softcap else ''}{dtype}"
    parameters = (
        f"{_QUERIES}, {_PROMPTS}, const uint8_t* k, const uint8_t* v, int capacity, int parts, {_LOGITS}, {_RESULT}"
    )
    constants = f"fewbit::PromptShape<{given}>, {rotated}, {str(has_softcap).lower()}, fewbit::Real::{dtype}"
    arguments = f"{_QUERIES_GIVEN}, {_PROMPTS_GIVEN}, k, v, capacity, parts, {_LOGITS_GIVEN}, {_RESULT_GIVEN}"
    entry = make_entry("attend_prompt.h", name, shape.threads, parameters, f"attend_prompt<{constants}>({arguments})")
    return replace(entry, shared=shape.shared)
