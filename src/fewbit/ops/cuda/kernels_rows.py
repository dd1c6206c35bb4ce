"""Kernels of row operations: templates of row_maths.h and embed.h."""

from __future__ import annotations

from ...formats.spec import Format
from .kernels import Constant, Entry, entry, named, record, tile

THREADS = 256
UNITS = {4: Constant("float4", "4"), 1: Constant("float", "1")}  # values that a thread takes at once


def elementwise(maths: str, is_gate: bool) -> Entry:
    """A kind of `Maths`: f(x), or of two inputs, f(gate) * up and a + b."""
    return entry("elementwise", (named(f"Maths::{maths}"), is_gate), THREADS)


def join_heads(unit: int) -> Entry:
    return entry("join_heads", (UNITS[unit],), THREADS)


def gather_rows(unit: int) -> Entry:
    return entry("gather_rows", (UNITS[unit],), THREADS)


def sum_parts() -> Entry:
    return entry("sum_parts", (), THREADS)


def norm_rows(centered: bool, warp_rows: bool) -> Entry:
    return entry("norm_rows", (centered, warp_rows), THREADS if warp_rows else 1024)


def insert_rows(adds: bool) -> Entry:
    return entry("insert_rows", (adds,), THREADS)


def gather_turns() -> Entry:
    return entry("gather_turns", (), THREADS)


def rotate_rows() -> Entry:
    return entry("rotate_rows", (), THREADS)


def embed_tiles(fmt: Format) -> Entry:
    return entry("embed_tiles", (tile(fmt),), 128)


def embed_rows(fmt: Format) -> Entry:
    return entry("embed_rows", (record(fmt),), THREADS)


def heads_tiles(fmt: Format) -> Entry:
    return entry("heads_tiles", (tile(fmt),), 128)


def heads_rows(fmt: Format) -> Entry:
    return entry("heads_rows", (record(fmt),), 128)
