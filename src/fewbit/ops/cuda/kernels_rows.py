"""Kernels of row operations by name: an entry point around each template of row_maths.h and embed.h."""

from __future__ import annotations

from functools import cache

from ...formats.spec import Format
from .kernels import FIELDS, FIELDS_GIVEN, GRID_NAMES, PLANES, PLANES_GIVEN, Entry, make_entry, record_name, tag

OUT, OUT_GIVEN = "float* out, int out_stride", "{out, out_stride}"
X, X_GIVEN = "const float* x, int x_stride", "{x, x_stride}"
IDS = "const int* ids, const int* previous, float scale"
THREADS = 256


@cache
def elementwise(maths: str, is_gate: bool) -> Entry:
    """A kind of `Maths`: f(x), or of two inputs, f(gate) * up and a + b."""
    two = "const float* a, int a_stride, const float* b, int b_stride"
    parameters = f"{two}, {OUT}, int width, float by, int interleaved, int by4"
    given = f"fewbit::Maths::{maths}, {str(is_gate).lower()}"
    call = f"elementwise<{given}>({{a, a_stride}}, {{b, b_stride}}, {OUT_GIVEN}, width, by, interleaved, by4)"
    return make_entry("row_maths.h", f"{'gate' if is_gate else 'rows'}_{maths}", THREADS, parameters, call)


@cache
def join_heads(unit: int) -> Entry:
    """Four values at once, or one."""
    parameters = (
        f"const float* a, int a_stride, int a_dim, int a_width, const float* b, int b_stride, int b_dim, int b_width, "
        f"{OUT}, int heads"
    )
    given = f"{{a, a_stride}}, a_dim, a_width, {{b, b_stride}}, b_dim, b_width, {OUT_GIVEN}, heads"
    return make_entry("row_maths.h", f"join_heads_{unit}", THREADS, parameters, f"join_heads<{_unit(unit)}>({given})")


@cache
def gather_rows(unit: int) -> Entry:
    parameters = f"{X}, const int* indices, {OUT}, int width"
    call = f"gather_rows<{_unit(unit)}>({X_GIVEN}, indices, {OUT_GIVEN}, width)"
    return make_entry("row_maths.h", f"gather_rows_{unit}", THREADS, parameters, call)


@cache
def norm_rows(centered: bool, warp_rows: bool) -> Entry:
    parameters = (
        f"{X}, const float* y, int y_stride, float* sum, int sum_stride, const float* weight, const float* bias, "
        f"float eps, {OUT}, int rows, int heads, int dim"
    )
    given = f"{X_GIVEN}, {{y, y_stride}}, {{sum, sum_stride}}, weight, bias, eps, {OUT_GIVEN}, rows, heads, dim"
    name = f"{'layer_norm' if centered else 'norm'}_{'warps' if warp_rows else 'blocks'}"
    call = f"norm_rows<{str(centered).lower()}, {str(warp_rows).lower()}>({given})"
    return make_entry("row_maths.h", name, THREADS if warp_rows else 1024, parameters, call)


@cache
def rotate_rows() -> Entry:
    parameters = f"{X}, const int* positions, const float2* table, {OUT}, int heads, int dim, int pairs, int neox"
    call = f"rotate_rows({X_GIVEN}, positions, table, {OUT_GIVEN}, heads, dim, pairs, neox)"
    return make_entry("row_maths.h", "rotate_rows", THREADS, parameters, call)


@cache
def embed_tiles(fmt: Format) -> Entry:
    given = f"{PLANES_GIVEN}, ids, previous, scale, {OUT_GIVEN}, n, k, columns"
    call = f"embed_tiles<{record_name(fmt)}, {fmt.group}>({given})"
    parameters = f"{PLANES}, {IDS}, {OUT}, int n, int k, int columns"
    return make_entry("embed.h", f"embed_{tag(fmt)}", 128, parameters, call)


@cache
def embed_rows(fmt: Format) -> Entry:
    parameters = f"const uint8_t* data, {FIELDS}, int group, {IDS}, {OUT}, int n, int k"
    call = f"embed_rows<{record_name(fmt)}>(data, {FIELDS_GIVEN}, group, ids, previous, scale, {OUT_GIVEN}, n, k)"
    name = f"embed_rows_{fmt.native_name}"
    return make_entry("embed.h", name, THREADS, parameters, call, fmt.native_name in GRID_NAMES)


@cache
def heads_tiles(fmt: Format) -> Entry:
    parameters = f"{PLANES}, {X}, {OUT}, int tokens, int heads, int n, int pitch, int k, int columns"
    given = f"{PLANES_GIVEN}, {X_GIVEN}, {OUT_GIVEN}, tokens, heads, n, pitch, k, columns"
    call = f"heads_tiles<{record_name(fmt)}, {fmt.group}>({given})"
    return make_entry("embed.h", f"heads_{tag(fmt)}", 128, parameters, call)


@cache
def heads_rows(fmt: Format) -> Entry:
    parameters = f"const uint8_t* data, {FIELDS}, int group, {X}, {OUT}, int tokens, int heads, int n, int pitch, int k"
    given = f"data, {FIELDS_GIVEN}, group, {X_GIVEN}, {OUT_GIVEN}, tokens, heads, n, pitch, k"
    name = f"heads_rows_{fmt.native_name}"
    return make_entry(
        "embed.h", name, 128, parameters, f"heads_rows<{record_name(fmt)}>({given})", fmt.native_name in GRID_NAMES
    )


def _unit(unit: int) -> str:
    return "float4" if unit == 4 else "float"
