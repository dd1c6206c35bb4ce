"""Kernels of experts: templates of route.h, experts.h and experts_grouped.h."""

from __future__ import annotations

from ...formats.spec import Format
from .kernels import Constant, Entry, entry, named, record, tile
from .kernels_rows import THREADS

WARPS_UP, WARPS_DOWN = 4, 8  # along k, of kernels for pairs
ROWS_UP, ROWS_DOWN = 64, 128  # of a block of grouped products


def route(score: str, lane_experts: int, parts: int) -> Entry:
    """Experts of tokens, and their 8-bit activations where there are parts."""
    return entry("route", (named(f"Score::{score}"), lane_experts, parts), THREADS)


def list_pairs() -> Entry:
    return entry("list_pairs", (), THREADS)


def combine_pairs() -> Entry:
    return entry("combine_pairs", (), THREADS)


def pack_rows() -> Entry:
    return entry("pack_rows", (), THREADS)


def pairs_up(gate: Format | None, up: Format, maths: str, parts: int) -> Entry:
    """Without a gate its arguments are those of up."""
    return entry("pairs_up", (*_two(gate, up, maths), WARPS_UP, parts), 128 * WARPS_UP)


def pairs_down(down: Format, parts: int) -> Entry:
    return entry("pairs_down", (tile(down), WARPS_DOWN, parts), 32 * WARPS_DOWN)


def grouped_up(gate: Format | None, up: Format, maths: str, token_tiles: int) -> Entry:
    return entry("grouped_up", (*_two(gate, up, maths), token_tiles), 128)


def grouped_down(down: Format, token_tiles: int) -> Entry:
    return entry("grouped_down", (tile(down), token_tiles), 128)


def grouped_rows(fmt: Format) -> Entry:
    return entry("grouped_rows", (record(fmt),), 128)


def _two(gate: Format | None, up: Format, maths: str) -> tuple[Constant | int, ...]:
    return tile(gate or up), tile(up), gate is not None, named(f"Maths::{maths}")
