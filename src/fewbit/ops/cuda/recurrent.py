"""Recurrent layers on a GPU: the operations `conv`, `delta_rule` and `scan` of `ops/recorder.py`."""

from __future__ import annotations

from itertools import chain
from typing import Any

from ...errors import ShapeError
from .kernels import Entry, entry, named
from .kernels_rows import THREADS
from .pages import LayerStates
from .row_maths import expect_width, head_dim
from .values import Launcher, Rows, StepInputs

MAX_TAPS, MAX_DIM = 33, 256
CONV_ROWS = 32  # kRows of recurrent.h


def _given(states: LayerStates, step: StepInputs, offset: int, tokens: int) -> tuple[int, ...]:
    slots = (step.reads, step.writes, step.q_starts, step.lengths)
    return states.pointer, states.slot_bytes, offset, *slots, step.num_sequences, tokens


def _conv(taps: int, kind: str) -> Entry:
    return entry("conv", (taps, named(f"Maths::{kind}")), THREADS)


def _recur(rows: int, is_delta: bool) -> Entry:
    """`rows` of the state a lane."""
    return entry("recur", (rows, is_delta), 128)


def conv(
    run: Launcher, step: StepInputs, out: Rows, x: Rows, *, tokens: int, states: LayerStates, offset: int, weight: int,
    taps: int, bias: int = 0, kind: str = "none",
) -> None:  # fmt: skip
    """A causal convolution of each column over tokens, weight (columns, taps), then kind. `out` must not be x."""
    expect_width("conv", out, x.width)
    if not 1 <= taps <= MAX_TAPS:
        raise ShapeError(f"conv: a GPU takes 1 to {MAX_TAPS} taps, not {taps}")
    grid = -(-x.width // THREADS), step.num_sequences, max(1, -(-step.max_q // CONV_ROWS))
    rest = (*x.at, weight, bias, *out.at, x.width)
    run.launch(_conv(taps, kind), grid, THREADS, *_given(states, step, offset, tokens), *rest)


def delta_rule(
    run: Launcher, step: StepInputs, out: Rows, q: Rows, k: Rows, v: Rows, a: Rows, b: Rows, *, tokens: int,
    states: LayerStates, offset: int, heads: int, v_heads: int, decay: int, dt_bias: int, scale: float,
    tiled: bool = False,
) -> None:  # fmt: skip
    """The gated delta rule; a head of v keeps a matrix (dim of k, dim of v)."""
    expect_width("delta_rule", q, k.width)
    expect_width("delta_rule", out, v.width)
    sizes = heads, v_heads, head_dim("delta_rule", q, heads), head_dim("delta_rule", v, v_heads)
    vectors = (decay, dt_bias, 0, scale)
    held = _given(states, step, offset, tokens)
    _launch(run, step, out, (q, k, v, a, b), held, vectors, sizes, tiled=tiled, is_delta=True)


def scan(
    run: Launcher, step: StepInputs, out: Rows, x: Rows, dt: Rows, b: Rows, c: Rows, *, tokens: int,
    states: LayerStates, offset: int, heads: int, groups: int, decay: int, skip: int, dt_bias: int,
) -> None:  # fmt: skip
    """A state-space scan; a head keeps a matrix (dim of b, dim of x)."""
    expect_width("scan", b, c.width)
    expect_width("scan", out, x.width)
    sizes = groups, heads, head_dim("scan", b, groups), head_dim("scan", x, heads)
    vectors = (decay, dt_bias, skip, 1)
    held = _given(states, step, offset, tokens)
    _launch(run, step, out, (c, b, x, dt, dt), held, vectors, sizes, tiled=False, is_delta=False)


def _launch(
    run: Launcher, step: StepInputs, out: Rows, inputs: tuple[Rows, ...], states: tuple[Any, ...],
    vectors: tuple[Any, ...], sizes: tuple[int, int, int, int], *, tiled: bool, is_delta: bool,
) -> None:  # fmt: skip
    heads, v_heads, dim, v_dim = sizes
    if dim > MAX_DIM or v_heads % heads:
        raise ShapeError(f"a GPU keeps states of heads of up to {MAX_DIM} rows, shared evenly; {dim} were given")
    rows = next(r for r in (16, 32, 64) if 4 * r >= dim)
    given = chain.from_iterable(x.at for x in inputs)
    args = (*states, *given, *vectors, *sizes, tiled, *out.at)
    run.launch(_recur(rows, is_delta), (-(-v_dim // 32), v_heads, step.num_sequences), 128, *args)
