"""Kernels of products: packed weights times rows, what makes these rows ready, and what comes after."""

from __future__ import annotations

from functools import cache
from typing import Any

from ...formats.spec import Format
from .kernels import (
    FIELDS,
    FIELDS_GIVEN,
    GRID_NAMES,
    Entry,
    GemvShape,
    SharedShape,
    SkinnyShape,
    make_entry,
    record_name,
    tag,
)

RESULT = "float* y, const float* bias, const float* residual, int stride, int residual_stride"
RESULT_GIVEN = "{y, bias, residual, stride, residual_stride}"
TOKENS = "const uint4* x, const float* token_scale, int tokens, int tiles"
TOKENS_GIVEN = "{x, token_scale, tokens, tiles}"
FORM_THREADS, FORM_VALUES = 512, 4096  # of a round, as in activations.h
Formats = tuple[Format, ...]  # one, or two in one kernel


def _matrix(name: str) -> tuple[str, str]:
    """Parameters of a `Matrix`, and the matrix."""
    planes = [f"{name}{plane}" for plane in ("_q0", "_q1", "_smalls", "_scales")]
    parameters = [f"uint8_t* {plane}" for plane in planes]
    text = ", ".join([*parameters, f"float {name}_gain", f"float {name}_down", f"int {name}_n"])
    return text, f"{{{{{', '.join(planes)}}}, {name}_gain, {name}_down, {name}_n}}"


def _product(
    header: str, one: str, two: str, formats: Formats, gate: str | None, numbers: tuple[Any, ...], threads: int,
    inputs: str, given: str, attributes: str = "",
) -> Entry:  # fmt: skip
    """A kernel of one matrix, or of two whose blocks lie one after the other."""
    tiles = ", ".join(f"fewbit::Tile<{record_name(fmt)}, {fmt.group}>" for fmt in formats)
    epilogue = f"fewbit::Gated<fewbit::Maths::{gate}>" if gate else "fewbit::Plain"
    written = ", ".join(str(n).lower() for n in numbers)
    tags = ["_".join(map(tag, formats)), *([gate] if gate else []), *(str(int(n)) for n in numbers)]
    matrices = [_matrix(name) for name in ("a", "b")[: len(formats)]]
    parameters = [text for text, _ in matrices] + ["int split, int column"] * (len(formats) - 1)
    arguments = [matrix for _, matrix in matrices] + ["split, column"] * (len(formats) - 1)
    template = one if len(formats) == 1 else two
    call = f"{template}<{tiles}, {epilogue}, {written}>({', '.join([*arguments, given])})"
    name = "_".join([template, *tags])
    return make_entry(header, name, threads, ", ".join([*parameters, inputs]), call, attributes=attributes)


@cache
def gemv(formats: Formats, columns: int, shape: GemvShape, parts: int, gate: str | None = None) -> Entry:
    numbers = (columns, shape.warps_rows, shape.warps_k, shape.in_flight, shape.row_tiles, parts)
    inputs, given = f"const int4* x, const int2* xm, {RESULT}", f"x, xm, {RESULT_GIVEN}"
    return _product("gemv.h", "gemv", "gemv_two", formats, gate, numbers, shape.threads, inputs, given)


@cache
def skinny(formats: Formats, shape: SkinnyShape, gate: str | None = None) -> Entry:
    numbers = (shape.columns, shape.warps_k, shape.in_flight, shape.row_pairs, shape.token_tiles, shape.is_many)
    inputs, given = f"int columns, {TOKENS}, {RESULT}", f"columns, {TOKENS_GIVEN}, {RESULT_GIVEN}"
    return _product("skinny.h", "skinny", "skinny_two", formats, gate, numbers, shape.threads, inputs, given)


@cache
def skinny_shared(formats: Formats, shape: SharedShape, gate: str | None = None) -> Entry:
    cluster = shape.blocks_k if shape.is_cluster or shape.blocks_k == 1 else 0
    numbers = (shape.columns, shape.warps, shape.row_pairs, shape.token_tiles, shape.stages, cluster)
    inputs = f"int columns, {TOKENS}, {RESULT}, float* parts, uint32_t* tickets"
    given = f"columns, {TOKENS_GIVEN}, {RESULT_GIVEN}, parts, tickets"
    attributes = f"FEWBIT_CLUSTER({cluster})" if cluster > 1 else ""
    return _product(
        "skinny_shared.h", "skinny_shared", "shared_two", formats, gate, numbers, shape.threads, inputs, given,
        attributes,
    )  # fmt: skip


@cache
def gemv_rows(fmt: Format) -> Entry:
    parameters = f"const uint8_t* data, {FIELDS}, int group, const float* x, int x_stride, {RESULT}, int n, int k"
    call = f"gemv_rows<{record_name(fmt)}>(data, {FIELDS_GIVEN}, group, x, x_stride, {RESULT_GIVEN}, n, k)"
    name = f"gemv_rows_{fmt.native_name}"
    return make_entry("rows.h", name, 128, parameters, call, fmt.native_name in GRID_NAMES)


def rounds(k: int) -> int:
    """How often the threads of a block take 8 values each of a row."""
    return max(1, -(-k // FORM_VALUES))


@cache
def quantize_row(dtype: str, parts: int) -> Entry:
    parameters = "const void* x, int8_t* q, int2* xm, int k, int padded"
    call = f"quantize_row<fewbit::Real::{dtype}, {parts}>(x, q, xm, k, padded)"
    return make_entry("activations.h", f"quantize_row_{dtype}_{parts}", 128, parameters, call)


@cache
def norm_quantize_row(dtype: str, rounds: int, parts: int) -> Entry:
    parameters = "const void* x, const float* weight, float eps, int8_t* q, int2* xm, int k, int padded"
    call = f"norm_quantize_row<fewbit::Real::{dtype}, {rounds}, {parts}>(x, weight, eps, q, xm, k, padded)"
    return make_entry("activations.h", f"norm_quantize_row_{dtype}_{rounds}_{parts}", FORM_THREADS, parameters, call)


@cache
def pack_fragments(dtype: str, rounds: int, norm: bool) -> Entry:
    parameters = (
        "const void* x, int stride, const float* weight, float eps, uint4* out, float* token_scale, int k, "
        "int padded, int tokens"
    )
    given = "x, stride, weight, eps, out, token_scale, k, padded, tokens"
    call = f"pack_fragments<fewbit::Real::{dtype}, {rounds}, {str(norm).lower()}>({given})"
    name = f"pack_fragments_{dtype}_{rounds}_{int(norm)}"
    return make_entry("activations.h", name, FORM_THREADS, parameters, call)


@cache
def form_rows(dtype: str, target: str, rounds: int, norm: bool) -> Entry:
    parameters = "const void* x, int stride, const float* weight, float eps, void* out, int k, int width"
    types = f"fewbit::Real::{dtype}, fewbit::Real::{target}"
    call = f"form_rows<{types}, {rounds}, {str(norm).lower()}>(x, stride, weight, eps, out, k, width)"
    name = f"form_rows_{dtype}_{target}_{rounds}_{int(norm)}"
    return make_entry("activations.h", name, FORM_THREADS, parameters, call)


@cache
def gate_rows(kind: str, target: str) -> Entry:
    parameters = "const float* x, int stride, int step, int apart, void* out, int width, int n"
    types = f"fewbit::Maths::{kind}, fewbit::Real::{target}"
    call = f"gate_rows<{types}>(x, stride, step, apart, out, width, n)"
    return make_entry("activations.h", f"gate_rows_{kind}_{target}", 128, parameters, call)


@cache
def begin_rows() -> Entry:
    parameters = "float* y, int stride, const float* bias, const float* residual, int residual_stride, int n"
    call = "begin_rows(y, stride, bias, residual, residual_stride, n)"
    return make_entry("activations.h", "begin_rows", 256, parameters, call)
