"""Kernels of experts by name: an entry point around each template of route.h, experts.h and experts_grouped.h."""

from __future__ import annotations

from functools import cache

from ...formats.spec import Format
from .kernels import FIELDS, FIELDS_GIVEN, GRID_NAMES, Entry, make_entry, record_name, tag
from .kernels_rows import OUT, OUT_GIVEN, THREADS, X_GIVEN, X

ROUTING = (
    "int experts, int top_k, int groups, int top_groups, int group_top, int normalize, float scale, "
    "const float* bias, const float* expert_scale"
)
ROUTING_GIVEN = "experts, top_k, groups, top_groups, group_top, normalize != 0, scale, bias, expert_scale"
CHOSEN = "const int* chosen, const float* weights"
INPUT = "const int4* x, const int2* xm"
WORK = "const int* lists, const int* counts, int experts, int tokens, int shared"
WORK_GIVEN = "{lists, counts, experts, tokens, shared}"
WARPS_UP, WARPS_DOWN = 4, 8  # along k, of kernels for pairs
ROWS_UP, ROWS_DOWN = 64, 128  # of a block of grouped products


def _matrices(name: str) -> str:
    planes = ", ".join(f"uint8_t* {name}{plane}" for plane in range(4))
    return f"{planes}, const float* {name}_bias, int {name}_pitch"


def _matrices_given(name: str) -> str:
    return f"{{{{{', '.join(f'{name}{plane}' for plane in range(4))}}}, {name}_bias, {name}_pitch}}"


def _tile(fmt: Format) -> str:
    return f"fewbit::Tile<{record_name(fmt)}, {fmt.group}>"


@cache
def route(score: str, lane_experts: int, parts: int) -> Entry:
    """Experts of tokens, and their 8-bit activations where there are parts."""
    parameters = (
        f"const float* scores, int scores_stride, {ROUTING}, int* chosen, float* weights, {X}, int8_t* q, int2* xm, "
        "int k, int granules"
    )
    given = f"{{scores, scores_stride}}, {{fewbit::Score::{score}, {ROUTING_GIVEN}}}, chosen, weights, {X_GIVEN}"
    call = f"route<{lane_experts}, {parts}>({given}, q, xm, k, granules)"
    return make_entry("route.h", f"route_{score}_{lane_experts}_{parts}", THREADS, parameters, call)


@cache
def list_pairs() -> Entry:
    parameters = "const int* chosen, int* lists, int* counts, int tokens, int top_k"
    return make_entry("route.h", "list_pairs", THREADS, parameters, "list_pairs(chosen, lists, counts, tokens, top_k)")


@cache
def combine_pairs() -> Entry:
    parameters = f"const float* y, const float* weights, {OUT}, int width, int top_k"
    call = f"combine_pairs(y, weights, {OUT_GIVEN}, width, top_k)"
    return make_entry("route.h", "combine_pairs", THREADS, parameters, call)


@cache
def pack_rows() -> Entry:
    parameters = f"{X}, uint16_t* out, float* row_scale, int k, int columns"
    return make_entry(
        "experts_grouped.h", "pack_rows", THREADS, parameters, f"pack_rows({X_GIVEN}, out, row_scale, k, columns)"
    )


@cache
def pairs_up(gate: Format | None, up: Format, maths: str, parts: int) -> Entry:
    """Without a gate its arguments are those of up."""
    parameters = (
        f"{_matrices('gate')}, {_matrices('up')}, {CHOSEN}, {INPUT}, int8_t* q, int2* qm, int top_k, int n, int columns"
    )
    given = f"{_matrices_given('gate')}, {_matrices_given('up')}, chosen, weights, x, xm, q, qm, top_k, n, columns"
    call = f"pairs_up<{_two(gate, up, maths)}, {WARPS_UP}, {parts}>({given})"
    return make_entry("experts.h", f"pairs_up_{_tags(gate, up)}_{maths}_{parts}", 128 * WARPS_UP, parameters, call)


@cache
def pairs_down(down: Format, parts: int) -> Entry:
    parameters = f"{_matrices('down')}, {CHOSEN}, {INPUT}, {OUT}, int top_k, int n, int columns"
    given = f"{_matrices_given('down')}, chosen, weights, x, xm, {OUT_GIVEN}, top_k, n, columns"
    call = f"pairs_down<{_tile(down)}, {WARPS_DOWN}, {parts}>({given})"
    return make_entry("experts.h", f"pairs_down_{tag(down)}_{parts}", 32 * WARPS_DOWN, parameters, call)


@cache
def grouped_up(gate: Format | None, up: Format, maths: str, token_tiles: int) -> Entry:
    parameters = (
        f"{_matrices('gate')}, float gate_gain, {_matrices('up')}, float up_gain, {WORK}, const uint4* x, "
        "const float* x_scale, float* h, int n, int columns"
    )
    matrices = f"{_matrices_given('gate')}, gate_gain, {_matrices_given('up')}, up_gain"
    given = f"{matrices}, {WORK_GIVEN}, x, x_scale, h, n, columns"
    call = f"grouped_up<{_two(gate, up, maths)}, {token_tiles}>({given})"
    name = f"grouped_up_{_tags(gate, up)}_{maths}_{token_tiles}"
    return make_entry("experts_grouped.h", name, 128, parameters, call)


@cache
def grouped_down(down: Format, token_tiles: int) -> Entry:
    parameters = (
        f"{_matrices('down')}, float gain, {WORK}, const uint4* x, const float* x_scale, float* y, int n, int columns"
    )
    given = f"{_matrices_given('down')}, gain, {WORK_GIVEN}, x, x_scale, y, n, columns"
    call = f"grouped_down<{_tile(down)}, {token_tiles}>({given})"
    return make_entry("experts_grouped.h", f"grouped_down_{tag(down)}_{token_tiles}", 128, parameters, call)


@cache
def grouped_rows(fmt: Format) -> Entry:
    parameters = f"const uint8_t* data, {FIELDS}, int group, const float* bias, {WORK}, {X}, float* y, int n, int k"
    call = f"grouped_rows<{record_name(fmt)}>(data, {FIELDS_GIVEN}, group, bias, {WORK_GIVEN}, {X_GIVEN}, y, n, k)"
    name = f"grouped_rows_{fmt.native_name}"
    return make_entry("experts_grouped.h", name, 128, parameters, call, fmt.native_name in GRID_NAMES)


def _two(gate: Format | None, up: Format, maths: str) -> str:
    return f"{_tile(gate or up)}, {_tile(up)}, {str(gate is not None).lower()}, fewbit::Maths::{maths}"


def _tags(gate: Format | None, up: Format) -> str:
    return f"{tag(gate) if gate else 'none'}_{tag(up)}"
