"""Kernels of row operations: templates of row_maths.h and embed.h."""

from __future__ import annotations

from ...formats.spec import Format
from .kernels import IN_ROWS, Constant, Entry, entry, named, record, tile

THREADS = 256
UNITS = {4: Constant("float4", "4"), 1: Constant("float", "1")}  # values that a thread takes at once
_IDS = "const int* ids, const int* previous, float scale"
_HEADS = "ConstRows x, Rows out, int tokens, int heads, int n, int pitch, int k"


def elementwise(maths: str, is_gate: bool) -> Entry:
    """A kind of `Maths`: f(x), or of two inputs, f(gate) * up and a + b."""
    parameters = "ConstRows a, ConstRows b, Rows out, int width, float by, bool by4"
    return entry("row_maths.h", "elementwise", (named(f"Maths::{maths}"), is_gate), THREADS, parameters)


def join_heads(unit: int) -> Entry:
    a, b = (f"ConstRows {name}, int {name}_dim, int {name}_width" for name in "ab")
    return entry("row_maths.h", "join_heads", (UNITS[unit],), THREADS, f"{a}, {b}, Rows out, int heads")


def gather_rows(unit: int) -> Entry:
    parameters = "ConstRows x, const int* indices, Rows out, int width"
    return entry("row_maths.h", "gather_rows", (UNITS[unit],), THREADS, parameters)


def norm_rows(centered: bool, warp_rows: bool) -> Entry:
    parameters = (
        "ConstRows x, const float* weight, const float* bias, float eps, Rows out, int rows, int heads, int dim"
    )
    return entry("row_maths.h", "norm_rows", (centered, warp_rows), THREADS if warp_rows else 1024, parameters)


def rotate_rows() -> Entry:
    parameters = (
        "ConstRows x, const int* positions, const float2* table, Rows out, int heads, int dim, int pairs, bool neox"
    )
    return entry("row_maths.h", "rotate_rows", (), THREADS, parameters)


def embed_tiles(fmt: Format) -> Entry:
    return entry("embed.h", "embed_tiles", (tile(fmt),), 128, f"Planes w, {_IDS}, Rows out, int n, int k, int columns")


def embed_rows(fmt: Format) -> Entry:
    return entry("embed.h", "embed_rows", (record(fmt),), THREADS, f"{IN_ROWS}, {_IDS}, Rows out, int n, int k")


def heads_tiles(fmt: Format) -> Entry:
    return entry("embed.h", "heads_tiles", (tile(fmt),), 128, f"Planes w, {_HEADS}, int columns")


def heads_rows(fmt: Format) -> Entry:
    return entry("embed.h", "heads_rows", (record(fmt),), 128, f"{IN_ROWS}, {_HEADS}")
