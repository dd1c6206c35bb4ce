"""Kernels of products: packed weights times rows, what makes these rows ready, and what comes after."""

from __future__ import annotations

from ...formats.spec import Format
from .kernels import Constant, Entry, entry, named, record, tile
from .shapes import GemvShape, PanelShape, SharedShape, SkinnyShape

FORM_THREADS, FORM_VALUES = 512, 4096  # of a round, as in activations.h
Formats = tuple[Format, ...]  # one, or two in one kernel


def _product(
    templates: tuple[str, str], formats: Formats, gate: str | None, numbers: tuple[int, ...], threads: int,
    attributes: str = "", shared: int = 0,
) -> Entry:  # fmt: skip
    """A kernel of one matrix, or of two whose blocks lie one after the other."""
    epilogue = Constant(f"fewbit::Gated<fewbit::Maths::{gate}>", gate) if gate else named("Plain")
    constants = (*map(tile, formats), epilogue, *numbers)
    return entry(templates[len(formats) - 1], constants, threads, attributes=attributes, shared=shared)


def gemv(formats: Formats, columns: int, shape: GemvShape, parts: int, gate: str | None = None) -> Entry:
    numbers = (columns, shape.warps_rows, shape.warps_k, shape.in_flight, shape.row_tiles, parts)
    return _product(("gemv", "gemv_two"), formats, gate, numbers, shape.threads)


def skinny(formats: Formats, shape: SkinnyShape, gate: str | None = None) -> Entry:
    numbers = (shape.columns, shape.warps_k, shape.in_flight, shape.row_pairs, shape.token_tiles, shape.is_many)
    return _product(("skinny", "skinny_two"), formats, gate, numbers, shape.threads)


def skinny_shared(formats: Formats, shape: SharedShape, gate: str | None = None) -> Entry:
    cluster, attributes = _cluster(shape)
    numbers = (shape.columns, shape.warps, shape.row_pairs, shape.token_tiles, shape.stages, cluster)
    return _product(("skinny_shared", "shared_two"), formats, gate, numbers, shape.threads, attributes)


def panel(formats: Formats, shape: PanelShape, gate: str | None = None) -> Entry:
    cluster, attributes = _cluster(shape)
    numbers = (shape.columns, shape.warps, shape.token_tiles, shape.stages, cluster, shape.has_wgmma)
    return _product(("panel", "panel_two"), formats, gate, numbers, shape.threads, attributes, shape.shared)


def _cluster(shape: SharedShape | PanelShape) -> tuple[int, str]:
    """Blocks of a cluster, 0 where blocks that share k are none, and the attribute of the kernel."""
    cluster = shape.blocks_k if shape.is_cluster or shape.blocks_k == 1 else 0
    return cluster, f"FEWBIT_CLUSTER({cluster})" if cluster > 1 else ""


def gemv_rows(fmt: Format) -> Entry:
    return entry("gemv_rows", (record(fmt),), 128)


def rounds(k: int) -> int:
    """How often the threads of a block take 8 values each of a row."""
    return max(1, -(-k // FORM_VALUES))


def quantize_row(dtype: str, parts: int) -> Entry:
    return entry("quantize_row", (named(f"Real::{dtype}"), parts), 128)


def norm_quantize_row(dtype: str, rounds: int, parts: int) -> Entry:
    return entry("norm_quantize_row", (named(f"Real::{dtype}"), rounds, parts), FORM_THREADS)


def pack_fragments(dtype: str, rounds: int, norm: bool, panels: bool = False) -> Entry:
    return entry("pack_fragments", (named(f"Real::{dtype}"), rounds, norm, panels), FORM_THREADS)


def form_rows(dtype: str, target: str, rounds: int, norm: bool) -> Entry:
    return entry("form_rows", (named(f"Real::{dtype}"), named(f"Real::{target}"), rounds, norm), FORM_THREADS)


def scale_rows(dtype: str, rounds: int, norm: bool) -> Entry:
    return entry("scale_rows", (named(f"Real::{dtype}"), rounds, norm), FORM_THREADS)


def end_rows() -> Entry:
    return entry("end_rows", (), 256)


def gate_rows(kind: str, target: str) -> Entry:
    return entry("gate_rows", (named(f"Maths::{kind}"), named(f"Real::{target}")), 128)


def begin_rows() -> Entry:
    return entry("begin_rows", (), 256)


def backward_rows() -> Entry:
    return entry("backward_rows", (), 256)
