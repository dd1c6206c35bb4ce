"""Routed experts on a GPU: the operation `experts` of `ops/recorder.py`.

Few tokens are taken in 8 bits, each pair of a token and an expert by itself: three kernels. Of many tokens the pairs
are listed by expert, and multiplied in f16 with the matrix of theirs, some at a time. Weights that stay as in files
take the second way always, in f32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import ArgumentError
from ..shape_rules import ACTIVATIONS, GATES, SCORES
from ..specs import Routing
from . import kernels_experts as kernels
from .kernels_rows import THREADS
from .layout import padded, tile_columns
from .row_maths import activate as activate_rows
from .row_maths import expect_width
from .row_maths import gate as gate_rows
from .stack import Stack
from .values import Launcher, Rows, StepInputs

MAX_EXPERTS, MAX_GROUPS, MAX_TOP_K = 1024, 32, 32
CHUNK_PAIRS = 16384  # that are in scratch memory at once
MANY_PAIRS = 12  # of an expert, on average, from which on 32 are multiplied at once


@dataclass(frozen=True)
class Layer:
    """The weights of a layer's experts; vectors are pointers to f32, biases (experts, rows), 0 where there is none."""

    up: Stack
    down: Stack
    routing: Routing
    gate: Stack | None = None
    kind: str = "silu"
    up_bias: int = 0
    gate_bias: int = 0
    down_bias: int = 0
    routing_bias: int = 0  # where `routing.bias` is on the GPU
    expert_scale: int = 0

    def __post_init__(self) -> None:
        known = GATES if self.gate else ACTIVATIONS
        if self.kind not in known or self.routing.score not in SCORES:
            raise ArgumentError(f"experts: there is no {self.kind!r} with a score of {self.routing.score!r}")
        count, routing = self.up.count, self.routing
        if count > MAX_EXPERTS or routing.top_k > MAX_TOP_K or routing.groups > MAX_GROUPS:
            raise ArgumentError(
                f"experts: {routing.top_k} of {count} experts in {routing.groups} groups are too many for a GPU, which "
                f"routes to {MAX_TOP_K} of {MAX_EXPERTS} in {MAX_GROUPS} groups"
            )

    @property
    def has_tiles(self) -> bool:
        return all(stack.tensor.tiles for stack in (self.up, self.down, self.gate) if stack)


def experts(
    run: Launcher, step: StepInputs, out: Rows, x: Rows, scores: Rows, *, tokens: int, layer: Layer,
    activations: str = "int8", batch_invariant: bool = False,
) -> None:  # fmt: skip
    """What the chosen experts make of x, weighted. `batch_invariant`: the same way for any number of tokens."""
    expect_width("experts", x, layer.up.k)
    expect_width("experts", out, layer.down.n)
    expect_width("experts", scores, layer.up.count)
    top_k = layer.routing.top_k
    few = tokens * top_k <= max(layer.up.count // 2, 2 * top_k)
    if few and layer.has_tiles and not batch_invariant and activations != "f16":
        _few(run, out, x, scores, tokens, layer, 2 if activations == "int16" else 1)
        return
    size = max(1, CHUNK_PAIRS // top_k)
    for first in range(0, tokens, size):
        count = min(size, tokens - first)
        part, own, rated = (_rows_from(rows, first) for rows in (out, x, scores))
        _many(run, step, part, own, rated, count, layer)


def _rows_from(rows: Rows, first: int) -> Rows:
    return Rows(rows.pointer + 4 * rows.stride * first, rows.width, rows.stride)


def _few(run: Launcher, out: Rows, x: Rows, scores: Rows, tokens: int, layer: Layer, parts: int) -> None:
    """Each pair by itself: what up makes goes to down in 8 bits, with the pair's weight in it."""
    if not tokens:
        return
    top_k, up, down = layer.routing.top_k, layer.up, layer.down
    granules, between = padded(up.k, 128) // 32, padded(down.k, 128) // 32
    q, xm = (run.scratch(f"experts_x{n}", tokens * parts * granules * n) for n in (32, 8))
    h, hm = (run.scratch(f"experts_h{n}", tokens * top_k * parts * between * n) for n in (32, 8))
    chosen, weights = _route(run, x, scores, tokens, layer, parts, q, xm)
    gate = layer.gate or up
    matrices = (*_matrices(gate, layer.gate_bias), *_matrices(up, layer.up_bias))
    entry = kernels.pairs_up(gate.tensor.format if layer.gate else None, up.tensor.format, layer.kind, parts)
    sizes = (top_k, up.n, up.tensor.columns)
    grid, threads = (between, tokens * top_k), 128 * kernels.WARPS_UP
    run.launch(entry, grid, threads, *matrices, chosen, weights, q, xm, h, hm, *sizes)
    entry = kernels.pairs_down(down.tensor.format, parts)
    given = (chosen, weights, h, hm, *out.at, top_k, down.n, down.tensor.columns)
    grid, threads = (-(-down.n // 8), tokens), 32 * kernels.WARPS_DOWN
    run.launch(entry, grid, threads, *_matrices(down, layer.down_bias), *given)


def _route(
    run: Launcher, x: Rows, scores: Rows, tokens: int, layer: Layer, parts: int, q: int = 0, xm: int = 0
) -> tuple[int, int]:
    """Experts of each token, int32, and their weights, f32: (tokens, top_k) in scratch memory."""
    routing, count = layer.routing, layer.up.count
    top = min(routing.group_top, count // routing.groups)
    chosen, weights = (run.scratch(f"experts_{name}", 4 * tokens * routing.top_k) for name in ("chosen", "weights"))
    sizes = (count, routing.top_k, routing.groups, routing.top_groups, top, routing.normalize)
    given = (*sizes, routing.scale, layer.routing_bias, layer.expert_scale)
    rest = (chosen, weights, *x.at, q, xm, x.width, padded(x.width, 128) // 32)
    entry = kernels.route(routing.score, -(-count // 32), parts)
    run.launch(entry, tokens, THREADS if parts else 32, *scores.at, *given, *rest)
    return chosen, weights


@dataclass(frozen=True)
class _Pairs:
    """Pairs listed by expert."""

    lists: int
    counts: int
    experts: int
    tokens: int
    top_k: int

    def parts(self, size: int) -> int:
        """At most so many parts of `size` pairs of one expert are there."""
        pairs = self.tokens * self.top_k
        return pairs // size + min(self.experts, pairs)

    def given(self, shared: bool) -> tuple[Any, ...]:
        top_k = self.top_k if shared else 1  # pairs of a token that have one input
        return self.lists, self.counts, self.experts, self.tokens, top_k


def _many(run: Launcher, step: StepInputs, out: Rows, x: Rows, scores: Rows, tokens: int, layer: Layer) -> None:
    """Pairs by expert, 16 or 32 at a time; rows of all pairs are in scratch memory between the kernels."""
    top_k, up, down = layer.routing.top_k, layer.up, layer.down
    count = tokens * top_k
    chosen, weights = _route(run, x, scores, tokens, layer, 0)
    lists, counts = run.scratch("experts_lists", 4 * up.count * tokens), run.scratch("experts_counts", 4 * up.count)
    run.launch(kernels.list_pairs(), up.count, THREADS, chosen, lists, counts, tokens, top_k)
    pairs = _Pairs(lists, counts, up.count, tokens, top_k)
    h = Rows(run.scratch("experts_h", 4 * count * up.n), up.n, up.n)
    y = Rows(run.scratch("experts_y", 4 * count * down.n), down.n, down.n)
    _up(run, step, h, x, pairs, layer)
    _product(run, y, h, pairs, down, layer.down_bias, shared=False)
    grid = -(-down.n // THREADS), tokens
    run.launch(kernels.combine_pairs(), grid, THREADS, y.pointer, weights, *out.at, down.n, top_k)


def _up(run: Launcher, step: StepInputs, h: Rows, x: Rows, pairs: _Pairs, layer: Layer) -> None:
    """h = kind(gate) * up, or kind(up)."""
    up, gate, count = layer.up, layer.gate, pairs.tokens * pairs.top_k
    if up.tensor.tiles and (gate is None or gate.tensor.tiles):
        _grouped_up(run, h, x, pairs, up, layer.up_bias, gate, layer.gate_bias, layer.kind)
        return
    _product(run, h, x, pairs, up, layer.up_bias, shared=True)
    if gate is None:
        activate_rows(run, step, h, h, tokens=count, kind=layer.kind)
        return
    other = Rows(run.scratch("experts_gate", 4 * count * up.n), up.n, up.n)
    _product(run, other, x, pairs, gate, layer.gate_bias, shared=True)
    gate_rows(run, step, h, other, h, tokens=count, kind=layer.kind)


def _product(run: Launcher, y: Rows, x: Rows, pairs: _Pairs, w: Stack, bias: int, *, shared: bool) -> None:
    """y = x w^T + bias for each pair; `shared`: x has a row for each token, else for each pair."""
    if w.tensor.tiles and shared:
        _grouped_up(run, y, x, pairs, w, bias, None, 0, "none")
    elif w.tensor.tiles:
        tiles = _token_tiles(pairs)
        packed, scale = _pack(run, x, pairs.tokens * pairs.top_k)
        rest = (w.tensor.gain, *pairs.given(shared), packed, scale, y.pointer, w.n, w.tensor.columns)
        grid = -(-w.n // kernels.ROWS_DOWN), pairs.parts(8 * tiles)
        run.launch(kernels.grouped_down(w.tensor.format, tiles), grid, 128, *_matrices(w, bias), *rest)
    else:
        rest = (bias, *pairs.given(shared), *x.at, y.pointer, w.n, w.k)
        grid = -(-w.n // 4), pairs.parts(8)
        run.launch(kernels.grouped_rows(w.tensor.format), grid, 128, *w.tensor.in_rows(), *rest)


def _grouped_up(
    run: Launcher, h: Rows, x: Rows, pairs: _Pairs, up: Stack, up_bias: int, gate: Stack | None, gate_bias: int,
    kind: str,
) -> None:  # fmt: skip
    tiles, other = _token_tiles(pairs), gate or up
    packed, scale = _pack(run, x, pairs.tokens)
    first = (*_matrices(other, gate_bias), other.tensor.gain, *_matrices(up, up_bias), up.tensor.gain)
    rest = (*pairs.given(True), packed, scale, h.pointer, up.n, up.tensor.columns)
    entry = kernels.grouped_up(other.tensor.format if gate else None, up.tensor.format, kind, tiles)
    run.launch(entry, (-(-up.n // kernels.ROWS_UP), pairs.parts(8 * tiles)), 128, *first, *rest)


def _pack(run: Launcher, x: Rows, count: int) -> tuple[int, int]:
    """Rows in f16, padded to whole tiles, and what each must be multiplied by."""
    columns = tile_columns(x.width)
    packed, scale = run.scratch("experts_packed", count * columns * 256), run.scratch("experts_scale", 4 * count)
    args = (*x.at, packed, scale, x.width, columns)
    run.launch(kernels.pack_rows(), count, THREADS, *args)
    return packed, scale


def _token_tiles(pairs: _Pairs) -> int:
    return 4 if pairs.tokens * pairs.top_k > MANY_PAIRS * pairs.experts else 2


def _matrices(w: Stack, bias: int) -> tuple[Any, ...]:
    return *w.tensor.planes, bias, w.pitch
