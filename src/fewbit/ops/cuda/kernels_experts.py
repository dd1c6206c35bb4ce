"""Kernels of experts: templates of route.h, experts.h and experts_grouped.h."""

from __future__ import annotations

from ...formats.spec import Format
from .kernels import IN_ROWS, Constant, Entry, entry, named, record, tile
from .kernels_rows import THREADS

WARPS_UP, WARPS_DOWN = 4, 8  # along k, of kernels for pairs
ROWS_UP, ROWS_DOWN = 64, 128  # of a block of grouped products
_PAIRS = "const int* chosen, const float* weights, const int4* x, const int2* xm"
_PACKED = "Work work, const uint4* x, const float* x_scale"


def route(score: str, lane_experts: int, parts: int) -> Entry:
    """Experts of tokens, and their 8-bit activations where there are parts."""
    parameters = (
        "ConstRows scores, Routing routing, int* chosen, float* weights, ConstRows x, int8_t* q, int2* xm, int k, "
        "int granules"
    )
    return entry("route.h", "route", (named(f"Score::{score}"), lane_experts, parts), THREADS, parameters)


def list_pairs() -> Entry:
    parameters = "const int* chosen, int* lists, int* counts, int tokens, int top_k"
    return entry("route.h", "list_pairs", (), THREADS, parameters)


def combine_pairs() -> Entry:
    parameters = "const float* y, const float* weights, Rows out, int width, int top_k"
    return entry("route.h", "combine_pairs", (), THREADS, parameters)


def pack_rows() -> Entry:
    parameters = "ConstRows x, uint16_t* out, float* row_scale, int k, int columns"
    return entry("experts_grouped.h", "pack_rows", (), THREADS, parameters)


def pairs_up(gate: Format | None, up: Format, maths: str, parts: int) -> Entry:
    """Without a gate its arguments are those of up."""
    parameters = f"Matrices gate, Matrices up, {_PAIRS}, int8_t* q, int2* qm, int top_k, int n, int columns"
    return entry("experts.h", "pairs_up", (*_two(gate, up, maths), WARPS_UP, parts), 128 * WARPS_UP, parameters)


def pairs_down(down: Format, parts: int) -> Entry:
    parameters = f"Matrices down, {_PAIRS}, Rows out, int top_k, int n, int columns"
    return entry("experts.h", "pairs_down", (tile(down), WARPS_DOWN, parts), 32 * WARPS_DOWN, parameters)


def grouped_up(gate: Format | None, up: Format, maths: str, token_tiles: int) -> Entry:
    matrices = "Matrices gate, float gate_gain, Matrices up, float up_gain"
    parameters = f"{matrices}, {_PACKED}, float* h, int n, int columns"
    return entry("experts_grouped.h", "grouped_up", (*_two(gate, up, maths), token_tiles), 128, parameters)


def grouped_down(down: Format, token_tiles: int) -> Entry:
    parameters = f"Matrices down, float gain, {_PACKED}, float* y, int n, int columns"
    return entry("experts_grouped.h", "grouped_down", (tile(down), token_tiles), 128, parameters)


def grouped_rows(fmt: Format) -> Entry:
    parameters = f"{IN_ROWS}, const float* bias, Work work, ConstRows x, float* y, int n, int k"
    return entry("experts_grouped.h", "grouped_rows", (record(fmt),), 128, parameters)


def _two(gate: Format | None, up: Format, maths: str) -> tuple[Constant | int, ...]:
    return tile(gate or up), tile(up), gate is not None, named(f"Maths::{maths}")
