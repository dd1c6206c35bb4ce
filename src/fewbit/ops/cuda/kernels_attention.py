"""The kernels of attention by name: entry points around the templates of csrc/cuda that read and write KV pages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .kernels import Entry, make_entry

PAIRS = 8  # pages that one launch copies
PLAIN_HEADS = 8  # query heads of a block
PLAIN_THREADS, WRITE_THREADS = 256, 512
MAX_MMA_DIM = 256


@dataclass(frozen=True)
class PageShape:
    """What kernels that touch pages are compiled for: names of the formats, values of a head."""

    k: str
    v: str
    k_dim: int
    v_dim: int

    @property
    def constants(self) -> str:
        return f"fewbit::Kv::{self.k}, fewbit::Kv::{self.v}, {self.k_dim}, {self.v_dim}"

    @property
    def tag(self) -> str:
        return f"{self.k}_{self.v}_{self.k_dim}_{self.v_dim}"

    @property
    def fits_mma(self) -> bool:
        dims = self.k_dim, self.v_dim
        return "f32" not in (self.k, self.v) and all(dim % 32 == 0 and dim <= MAX_MMA_DIM for dim in dims)


@cache
def copy_pages() -> Entry:
    names = [f"{what}{i}" for what in ("source", "destination") for i in range(PAIRS)]
    parameters = "const ulonglong2* arrays, " + ", ".join(f"int {name}" for name in names)
    given = f"{{{{{', '.join(names[:PAIRS])}}}, {{{', '.join(names[PAIRS:])}}}}}"
    return make_entry("kv_pages.h", "copy_pages", 256, parameters, f"copy_pages(arrays, {given})")


ROPE = "const float2* rope, int pairs, int neox"
ROPE_GIVEN = "{rope, pairs, neox != 0}"
NEW_ROWS = "const float* k, const float* v, int k_stride, int v_stride"
ATTEND = (
    "const float* q, const float* k, const float* v, int q_stride, int k_stride, int v_stride, "
    f"{ROPE}, int rotate, uint8_t* k_pages, uint8_t* v_pages, const int* tables, const int* starts, const int* slots, "
    "const int* positions, const int* sequences, const int* lengths, const float* sinks, float scale, float softcap, "
    "int window, int kv_heads, int q_heads, int piece, int first_row, float* parts, int* tickets, void* out, int2* xm, "
    "int form, int out_stride"
)
ATTEND_GIVEN = (
    f"{{q, k, v, q_stride, k_stride, v_stride, {ROPE_GIVEN}, rotate != 0, k_pages, v_pages, tables, starts, slots, "
    "positions, sequences, lengths, sinks, scale, softcap, window, kv_heads, q_heads, piece, first_row, parts, "
    "tickets, out, xm, form, out_stride}"
)


@cache
def write_kv(pages: PageShape) -> Entry:
    """K and V of new tokens into pages."""
    parameters = (
        f"{NEW_ROWS}, {ROPE}, int rotate, uint8_t* k_pages, uint8_t* v_pages, const int* slots, const int* positions, "
        "int tokens, int kv_heads"
    )
    call = (
        f"write_kv<{pages.constants}>({{k, v, k_stride, v_stride}}, {ROPE_GIVEN}, rotate != 0, k_pages, v_pages, slots,"
        " positions, tokens, kv_heads)"
    )
    return make_entry("kv_write.h", f"write_kv_{pages.tag}", WRITE_THREADS, parameters, call)


@cache
def attend_plain(pages: PageShape, fused: bool) -> Entry:
    """Attention of single tokens for every format and size."""
    name = f"attend_plain_{pages.tag}_{'fused' if fused else 'kept'}"
    call = f"attend_plain<{pages.constants}, {str(fused).lower()}>({ATTEND_GIVEN})"
    return make_entry("attend_plain.h", name, PLAIN_THREADS, ATTEND, call)


@cache
def attend_mma(pages: PageShape, head_tiles: int, warps: int, fused: bool) -> Entry:
    """The same by mma, where `pages.fits_mma`."""
    name = f"attend_mma_{pages.tag}_{head_tiles}_{warps}_{'fused' if fused else 'kept'}"
    call = f"attend_mma<{pages.constants}, {head_tiles}, {warps}, {str(fused).lower()}>({ATTEND_GIVEN})"
    return make_entry("attend_mma.h", name, 32 * warps, ATTEND, call)
