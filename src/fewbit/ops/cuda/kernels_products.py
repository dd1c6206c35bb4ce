"""Kernels of products: packed weights times rows, what makes these rows ready, and what comes after."""

from __future__ import annotations

from ...formats.spec import Format
from .kernels import IN_ROWS, Constant, Entry, entry, named, record, tile
from .shapes import GemvShape, SharedShape, SkinnyShape

FORM_THREADS, FORM_VALUES = 512, 4096  # of a round, as in activations.h
Formats = tuple[Format, ...]  # one, or two in one kernel


def _product(
    header: str, templates: tuple[str, str], formats: Formats, gate: str | None, numbers: tuple[int, ...],
    threads: int, parameters: str, attributes: str = "",
) -> Entry:  # fmt: skip
    """A kernel of one matrix, or of two whose blocks lie one after the other."""
    epilogue = Constant(f"fewbit::Gated<fewbit::Maths::{gate}>", gate) if gate else named("Plain")
    constants = (*map(tile, formats), epilogue, *numbers)
    if len(formats) == 1:
        return entry(header, templates[0], constants, threads, f"Matrix a, {parameters}", attributes=attributes)
    two = f"Matrix a, Matrix b, int split, int column, {parameters}"
    return entry(header, templates[1], constants, threads, two, attributes=attributes)


def gemv(formats: Formats, columns: int, shape: GemvShape, parts: int, gate: str | None = None) -> Entry:
    numbers = (columns, shape.warps_rows, shape.warps_k, shape.in_flight, shape.row_tiles, parts)
    parameters = "const int4* x, const int2* xm, Result out"
    return _product("gemv.h", ("gemv", "gemv_two"), formats, gate, numbers, shape.threads, parameters)


def skinny(formats: Formats, shape: SkinnyShape, gate: str | None = None) -> Entry:
    numbers = (shape.columns, shape.warps_k, shape.in_flight, shape.row_pairs, shape.token_tiles, shape.is_many)
    parameters = "int columns, Tokens x, Result out"
    return _product("skinny.h", ("skinny", "skinny_two"), formats, gate, numbers, shape.threads, parameters)


def skinny_shared(formats: Formats, shape: SharedShape, gate: str | None = None) -> Entry:
    cluster = shape.blocks_k if shape.is_cluster or shape.blocks_k == 1 else 0
    numbers = (shape.columns, shape.warps, shape.row_pairs, shape.token_tiles, shape.stages, cluster)
    return _product(
        "skinny_shared.h", ("skinny_shared", "shared_two"), formats, gate, numbers, shape.threads,
        "int columns, Tokens x, Result out, float* parts, uint32_t* tickets",
        f"FEWBIT_CLUSTER({cluster})" if cluster > 1 else "",
    )  # fmt: skip


def gemv_rows(fmt: Format) -> Entry:
    parameters = f"{IN_ROWS}, const float* x, int x_stride, Result out, int n, int k"
    return entry("rows.h", "gemv_rows", (record(fmt),), 128, parameters)


def rounds(k: int) -> int:
    """How often the threads of a block take 8 values each of a row."""
    return max(1, -(-k // FORM_VALUES))


def quantize_row(dtype: str, parts: int) -> Entry:
    parameters = "const void* x, int8_t* q, int2* xm, int k, int padded"
    return entry("activations.h", "quantize_row", (named(f"Real::{dtype}"), parts), 128, parameters)


def norm_quantize_row(dtype: str, rounds: int, parts: int) -> Entry:
    constants = named(f"Real::{dtype}"), rounds, parts
    parameters = "const void* x, const float* weight, float eps, int8_t* q, int2* xm, int k, int padded"
    return entry("activations.h", "norm_quantize_row", constants, FORM_THREADS, parameters)


def pack_fragments(dtype: str, rounds: int, norm: bool) -> Entry:
    parameters = (
        "const void* x, int stride, const float* weight, float eps, uint4* out, float* token_scale, int k, "
        "int padded, int tokens"
    )
    constants = named(f"Real::{dtype}"), rounds, norm
    return entry("activations.h", "pack_fragments", constants, FORM_THREADS, parameters)


def form_rows(dtype: str, target: str, rounds: int, norm: bool) -> Entry:
    constants = named(f"Real::{dtype}"), named(f"Real::{target}"), rounds, norm
    parameters = "const void* x, int stride, const float* weight, float eps, void* out, int k, int width"
    return entry("activations.h", "form_rows", constants, FORM_THREADS, parameters)


def gate_rows(kind: str, target: str) -> Entry:
    constants = named(f"Maths::{kind}"), named(f"Real::{target}")
    parameters = "const float* x, int stride, int step, int apart, void* out, int width, int n"
    return entry("activations.h", "gate_rows", constants, 128, parameters)


def begin_rows() -> Entry:
    parameters = "float* y, int stride, const float* bias, const float* residual, int residual_stride, int n"
    return entry("activations.h", "begin_rows", (), 256, parameters)
