"""Operations on rows, by the names of `ops/recorder.py`: each launches one kernel.

A function takes the launcher, the step, the rows that it writes and those that it reads, `tokens` of each (at least
one), and the attributes of the operation. Vectors are pointers to f32 in the GPU's memory, tables packed tensors there.
Norms, maths of each value and rope may write the rows that they read.
"""

from __future__ import annotations

from ...errors import ArgumentError, ShapeError
from ..shape_rules import ACTIVATIONS, GATES
from . import kernels_rows as kernels
from .attention import RopeTable, turns_of
from .kernels_rows import THREADS
from .stack import Stack
from .tensor import CudaTensor
from .values import Launcher, Rows, StepInputs

WARP_DIM = 512  # values of a head that a warp norms alone
HEADS_TOKENS = 8  # kTokens of embed.h
NO_ROWS = Rows(0, 0, 0)


def norm(
    run: Launcher, step: StepInputs, out: Rows, x: Rows, *, tokens: int, weight: int, eps: float, heads: int = 1
) -> None:
    """x / sqrt(mean(x ** 2) + eps) * weight, for each head by itself."""
    _norm(run, out, x, tokens, weight, 0, eps, heads, centered=False)


def layer_norm(
    run: Launcher, step: StepInputs, out: Rows, x: Rows, *, tokens: int, weight: int, bias: int = 0, eps: float
) -> None:
    """(x - mean(x)) / sqrt(variance(x) + eps) * weight + bias; a bias of 0: none."""
    _norm(run, out, x, tokens, weight, bias, eps, 1, centered=True)


def _norm(
    run: Launcher, out: Rows, x: Rows, tokens: int, weight: int, bias: int, eps: float, heads: int, *, centered: bool
) -> None:
    dim = head_dim("norm", x, heads)
    expect_width("norm", out, x.width)
    warps = dim <= WARP_DIM
    threads = THREADS if warps else min(1024, -(-dim // 128) * 32)
    blocks = -(-tokens * heads // (THREADS // 32)) if warps else tokens * heads
    args = (*x.at, weight, bias, eps, *out.at, tokens, heads, dim)
    run.launch(kernels.norm_rows(centered, warps), blocks, threads, *args)


def gate(run: Launcher, step: StepInputs, out: Rows, gate: Rows, up: Rows, *, tokens: int, kind: str = "silu") -> None:
    """kind(gate) * up."""
    _elementwise(run, _known("gate", kind, GATES), out, gate, up, tokens, is_gate=True)


def add(run: Launcher, step: StepInputs, out: Rows, a: Rows, b: Rows, *, tokens: int) -> None:
    _elementwise(run, "add", out, a, b, tokens)


def shift(run: Launcher, step: StepInputs, out: Rows, x: Rows, *, tokens: int, by: int) -> None:
    """x + by, the same for every row."""
    _elementwise(run, "add", out, x, Rows(by, x.width, 0), tokens)


def activate(run: Launcher, step: StepInputs, out: Rows, x: Rows, *, tokens: int, kind: str) -> None:
    _elementwise(run, _known("activate", kind, ACTIVATIONS), out, x, None, tokens)


def scale(run: Launcher, step: StepInputs, out: Rows, x: Rows, *, tokens: int, by: float) -> None:
    _elementwise(run, "scale", out, x, None, tokens, by=by)


def softcap(run: Launcher, step: StepInputs, out: Rows, x: Rows, *, tokens: int, cap: float) -> None:
    """cap * tanh(x / cap)."""
    _elementwise(run, "softcap", out, x, None, tokens, by=cap)


def clamp(run: Launcher, step: StepInputs, out: Rows, x: Rows, *, tokens: int, low: float, high: float) -> None:
    """x, but at least low and at most high."""
    _elementwise(run, "at_least", out, x, None, tokens, by=low)
    _elementwise(run, "at_most", out, out, None, tokens, by=high)


def _elementwise(
    run: Launcher, maths: str, out: Rows, a: Rows, b: Rows | None, tokens: int, *, by: float = 0.0,
    is_gate: bool = False,
) -> None:  # fmt: skip
    other = b or NO_ROWS._replace(width=a.width)
    expect_width(maths, out, a.width, other.width)
    by4 = all(_by4(rows) for rows in (out, a, other))
    grid = tokens, -(-out.width // (4 * THREADS))
    args = (*a.at, *other.at, *out.at, out.width, by, by4)
    run.launch(kernels.elementwise(maths, is_gate), grid, THREADS, *args)


def columns(
    run: Launcher, step: StepInputs, out: Rows, x: Rows, *, tokens: int, start: int, width: int, heads: int = 1
) -> None:
    """Some columns of each head. With one head, `x.columns(start, width)` is the same without a copy."""
    dim = head_dim("columns", x, heads)
    expect_width("columns", out, heads * width)
    _join(run, out, x.columns(start, x.width - start), dim, width, NO_ROWS, 0, 0, heads, tokens)


def join(
    run: Launcher, step: StepInputs, out: Rows, a: Rows, b: Rows, *, tokens: int, heads: int, b_heads: int | None = None
) -> None:
    """Each head of a, and after it that of b, or the only one of b."""
    own = heads if b_heads is None else b_heads
    a_dim, b_dim = head_dim("join", a, heads), head_dim("join", b, own)
    expect_width("join", out, heads * (a_dim + b_dim))
    _join(run, out, a, a_dim, a_dim, b, b_dim if own == heads else 0, b_dim, heads, tokens)


def _join(
    run: Launcher, out: Rows, a: Rows, a_dim: int, a_width: int, b: Rows, b_dim: int, b_width: int, heads: int,
    tokens: int,
) -> None:  # fmt: skip
    unit = 4 if all(_by4(rows) for rows in (out, a, b)) and not any(n % 4 for n in (a_dim, a_width, b_width)) else 1
    first = (*a.at, a_dim // unit, a_width // unit)
    second = (*b.at, b_dim // unit, b_width // unit)
    grid = tokens, -(-out.width // (unit * THREADS))
    run.launch(kernels.join_heads(unit), grid, THREADS, *first, *second, *out.at, heads)


def gather(run: Launcher, step: StepInputs, out: Rows, x: Rows, *, tokens: int) -> None:
    """The rows whose logits are wanted; `tokens` of them."""
    expect_width("gather", out, x.width)
    unit = 4 if _by4(out) and _by4(x) and x.width % 4 == 0 else 1
    grid = tokens, -(-x.width // (unit * THREADS))
    args = (*x.at, step.logits_indices, *out.at, x.width // unit)
    run.launch(kernels.gather_rows(unit), grid, THREADS, *args)


def insert(run: Launcher, step: StepInputs, out: Rows, x: Rows, *, tokens: int, part: int, adds: bool) -> None:
    """x, with rows from outside in the place of those of some tokens, or added to them."""
    expect_width("insert", out, x.width)
    if out != x:
        columns(run, step, out, x, tokens=tokens, start=0, width=x.width)
    for one in step.inserts:
        if one.part == part:
            grid = one.rows, -(-x.width // THREADS)
            given = step.insert_tokens, one.first_token, step.insert_rows, one.first_value, *out.at, x.width
            run.launch(kernels.insert_rows(adds), grid, THREADS, *given)


def embed(run: Launcher, step: StepInputs, out: Rows, *, tokens: int, table: CudaTensor, scale: float = 1.0) -> None:
    """The row of the table for each token, times scale. Ids below 0 are tokens that the step before sampled."""
    _embed(run, out, step.tokens, step.previous, table, scale, tokens)


def positions(run: Launcher, step: StepInputs, out: Rows, *, tokens: int, table: CudaTensor) -> None:
    """The row of the table for each token's position."""
    _embed(run, out, step.positions, 0, table, 1.0, tokens)


def _embed(run: Launcher, out: Rows, ids: int, previous: int, table: CudaTensor, scale: float, tokens: int) -> None:
    n, k = table.shape
    expect_width("embed", out, k)
    given = (ids, previous, scale, *out.at, n, k)
    if table.tiles:
        entry, grid = kernels.embed_tiles(table.format), (tokens, -(-k // (32 * 128)))
        run.launch(entry, grid, 128, *table.planes, *given, table.columns)
    else:
        entry, grid = kernels.embed_rows(table.format), (tokens, -(-k // THREADS))
        run.launch(entry, grid, THREADS, *table.in_rows(), *given)


def rope(run: Launcher, step: StepInputs, out: Rows, x: Rows, *, tokens: int, heads: int, rope: RopeTable) -> None:
    """Heads rotated by their tokens' positions."""
    dim, pairs = head_dim("rope", x, heads), rope.pairs
    table = turns_of(run, step, rope)
    expect_width("rope", out, x.width)
    if 2 * pairs > dim:
        raise ShapeError(f"rope: {2 * pairs} values of a head are to be rotated, it has {dim}")
    grid = tokens, -(-heads * (dim - pairs) // THREADS)
    args = (*x.at, step.positions, table.pointer, *out.at, heads, dim, pairs, rope.neox, table.by_row)
    run.launch(kernels.rotate_rows(), grid, THREADS, *args)


def linear_heads(run: Launcher, step: StepInputs, out: Rows, x: Rows, *, tokens: int, w: Stack) -> None:
    """For each head h: x[h] @ w[h].T, in f32."""
    expect_width("linear_heads", x, w.count * w.k)
    expect_width("linear_heads", out, w.count * w.n)
    table, over = w.tensor, -(-tokens // HEADS_TOKENS)
    rows = (*x.at, *out.at)
    sizes = (tokens, w.count, w.n, w.pitch, w.k)
    if table.tiles:
        warps = w.count * -(-w.n // 8)
        entry = kernels.heads_tiles(table.format)
        run.launch(entry, (over, -(-warps // 4)), 128, *table.planes, *rows, *sizes, table.columns)
    else:
        entry = kernels.heads_rows(table.format)
        run.launch(entry, (over, -(-w.count * w.n // 4)), 128, *table.in_rows(), *rows, *sizes)


def _by4(rows: Rows) -> bool:
    """Whether every row begins where four floats can be read at once."""
    return rows.pointer % 16 == 0 and rows.stride % 4 == 0


def _known(what: str, kind: str, known: tuple[str, ...]) -> str:
    if kind not in known:
        raise ArgumentError(f"{what}: there is no {kind!r}; there are: {', '.join(known)}")
    return kind


def expect_width(what: str, rows: Rows, *widths: int) -> None:
    if any(rows.width != width for width in widths):
        raise ShapeError(f"{what}: rows of {rows.width} values do not fit rows of {', '.join(map(str, widths))}")


def head_dim(what: str, x: Rows, heads: int) -> int:
    if heads < 1 or x.width % heads:
        raise ShapeError(f"{what}: rows of {x.width} values are not {heads} heads")
    return x.width // heads
