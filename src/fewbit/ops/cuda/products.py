"""Products of a step: rows in a form (`forms.py`), multiplied by one matrix or by several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...errors import ArgumentError
from . import kernels_products as kernels
from .forms import (
    Form,
    RowSource,
    empty_form,
    form_of_rows,
    form_rows32,
    make_form,
    pack_rows,
    source_of,
    takes_rows,
)
from .fused import Fused
from .kernels import Entry
from .layout import ROWS, padded
from .shapes import (
    MAX_ROWS_GEMV,
    MAX_SKINNY,
    gemv_shape,
    invariant_shape,
    panel_shape,
    shared_shape,
    skinny_shape,
)
from .tensor import CudaTensor
from .values import Launcher, Rows

__all__ = ["Form", "Fused", "RowSource", "begin_rows", "empty_form", "make_form", "multiply", "multiply_gated",
           "multiply_then_gate", "pack_rows", "takes_rows"]  # fmt: skip

Weights = CudaTensor | Fused
MAX_DECODED = 1 << 28  # bytes of a matrix at once


class _Output(NamedTuple):
    """Where a product goes, and what is added to it."""

    rows: Rows
    bias: int = 0
    residual: Rows | None = None

    def args(self) -> tuple[Any, ...]:
        other = self.residual or Rows(0, 0, 0)
        return self.rows.pointer, self.bias, other.pointer, self.rows.stride, other.stride

    def at(self, column: int, width: int) -> _Output:
        other = self.residual and self.residual.columns(column, width)
        return _Output(self.rows.columns(column, width), self.bias and self.bias + 4 * column, other)


def multiply(
    run: Launcher,
    w: Weights,
    form: Form,
    tokens: int,
    out: Rows,
    bias: int = 0,
    residual: Rows | None = None,
    invariant: bool = False,
) -> None:
    """out = rows w^T + bias + residual; `bias` points to a row of out's width, `residual` may be out itself.

    Gated weights give function(gate) * up, to which nothing is added. `invariant` as in `make_form`.
    """
    w = Fused.of(w)
    if w.gate and (bias or residual):
        raise ArgumentError("nothing can be added to a gated product")
    if not w.gate or (w.is_interleaved and form.kind != "rows16"):
        _multiply(run, w, form, tokens, _Output(out, bias, residual), invariant)
        return
    rows = _ungated(run, w, form, tokens, invariant)
    _gate(run, w, rows, tokens, *out.at, "f32")


def multiply_gated(run: Launcher, w: Fused, form: Form, tokens: int, out: Rows, name: str = "gated") -> Form | None:
    """A gated product as the form of the next one, where that is made without `out`: bf16 rows of many tokens.

    Else the product is in `out`, and None comes back.
    """
    if form.kind != "rows16":
        multiply(run, w, form, tokens, out)
        return None
    width = padded(w.width, 8)
    rows = run.scratch(f"{name}.rows16", 2 * tokens * width)
    _gate(run, w, _ungated(run, w, form, tokens, False), tokens, rows, width, "bf16")
    return Form("rows16", rows, stride=width)


def multiply_then_gate(
    run: Launcher, w: Fused, form: Form, tokens: int, out: Rows, change: Callable[[Rows, int, int], None],
    *, invariant: bool = False,
) -> None:  # fmt: skip
    """A gated product; `change` gets the rows before the gate.

    Column c of the gate is at c // 8 * columns + c % 8 of these, that of what it multiplies `apart` after it; `change`
    is called with the rows, `columns` and `apart`.
    """
    plain = Fused(w.tensors, w.firsts, w.offsets, w.sizes)
    rows = _ungated(run, plain, form, tokens, invariant)
    change(rows, *_interleaving(w))
    _gate(run, w, rows, tokens, *out.at, "f32")


def _interleaving(w: Fused) -> tuple[int, int]:
    return (16, 8) if w.is_interleaved else (8, w.offsets[1])


def _ungated(run: Launcher, w: Fused, form: Form, tokens: int, invariant: bool) -> Rows:
    width = padded(w.product_width, 8)
    rows = Rows(run.scratch("ungated", 4 * tokens * width), width, width)
    _multiply(run, w, form, tokens, _Output(rows), invariant)
    return rows


def _gate(run: Launcher, w: Fused, rows: Rows, tokens: int, out: int, width: int, dtype: str) -> None:
    assert w.gate
    args = (*rows.at, *_interleaving(w), out, width, w.width)
    run.launch(kernels.gate_rows(w.gate, dtype), (tokens, -(-padded(w.width, 8) // 1024)), 128, *args)


def _multiply(run: Launcher, w: Fused, form: Form, tokens: int, out: _Output, invariant: bool) -> None:
    every = list(zip(w.tensors, w.firsts, strict=True))
    exact = [pair for pair in every if pair[0].is_exact]
    if exact:
        _exact(run, exact, form, tokens, out, invariant)
        every = [pair for pair in every if not pair[0].is_exact]
    if form.kind == "rows16":
        together = every if tokens > MAX_ROWS_GEMV else [pair for pair in every if pair[0].tiles]
        for adjacent in _adjacent(together, w.firsts):
            _many(run, adjacent, form, tokens, out)
        every = [pair for pair in every if pair not in together]
    tiled = [pair for pair in every if pair[0].tiles]
    for i in range(0, len(tiled), 2):
        _packed(run, w, tiled[i : i + 2], form, tokens, out, invariant)
    in_rows = [pair for pair in every if not pair[0].tiles]
    if not in_rows:
        return
    taken = form_of_rows(run, form, tokens, invariant)
    for t, first in in_rows:
        if taken.kind == "rows16":
            _many(run, [(t, first)], taken, tokens, out)
        else:
            _plain(run, t, taken, tokens, out.at(first, t.shape[0]))


def _adjacent(pairs: list[tuple[CudaTensor, int]], firsts: Sequence[int]) -> list[list[tuple[CudaTensor, int]]]:
    """Tensors whose outputs follow each other, without those of another one of all `firsts` between them."""
    found: list[list[tuple[CudaTensor, int]]] = []
    before = None
    for t, first in pairs:
        number = firsts.index(first)
        if before is None or number != before + 1:
            found.append([])
        found[-1].append((t, first))
        before = number
    return found


def _packed(
    run: Launcher, w: Fused, pairs: list[tuple[CudaTensor, int]], form: Form, tokens: int, out: _Output, invariant: bool
) -> None:
    """One or two tensors in tiles, by one kernel."""
    tensors, firsts = [t for t, _ in pairs], [first for _, first in pairs]
    first, columns = tensors[0], tensors[0].columns
    rows, formats = sum(t.shape[0] for t in tensors), tuple(t.format for t in tensors)
    gate = w.gate if w.is_interleaved else None
    assert first.tiles
    tail: tuple[Any, ...] = out.at(firsts[0], rows).args()
    if form.kind == "bytes":
        narrow = gemv_shape(rows, columns, first.tiles, gate is not None)
        entry = kernels.gemv(formats, columns, narrow, form.parts, gate)
        _launch(run, entry, narrow, 0, w, tensors, firsts, (form.pointer, form.scales, *tail))
        return
    given = (columns, form.pointer, form.scales, tokens, form.tiles, *tail)
    if form.kind == "panels":
        panel = panel_shape(tokens, rows, columns, run.device.has_wgmma)
        panels = form.tiles // panel.token_tiles
        sums = shared_scratch(run, panel, tensors, panels)
        _launch(
            run, kernels.panel(formats, panel, gate), panel, panel.blocks_k, w, tensors, firsts, (*given, *sums), panels
        )
        return
    if invariant or tokens <= MAX_SKINNY:
        choose = invariant_shape if invariant else skinny_shape
        skinny = choose(tokens, rows, columns)
        blocks_y = form.tiles // skinny.token_tiles if invariant else 0
        _launch(run, kernels.skinny(formats, skinny, gate), skinny, blocks_y, w, tensors, firsts, given)
        return
    shared = shared_shape(tokens, rows, columns, all(t.tiles and t.tiles.is_light for t in tensors))
    parts, tickets = shared_scratch(run, shared, tensors)
    entry = kernels.skinny_shared(formats, shared, gate)
    _launch(run, entry, shared, shared.blocks_k, w, tensors, firsts, (*given, parts, tickets))


def shared_scratch(run: Launcher, shape: Any, tensors: list[CudaTensor], panels: int = 1) -> tuple[int, int]:
    """Memory for the sums of blocks that share k, and for counting them, where they do not share it as a cluster."""
    if shape.blocks_k == 1 or (shape.is_cluster and run.device.has_dependent_launches):
        return 0, 0
    blocks = panels * sum(-(-t.shape[0] // shape.rows) for t in tensors)
    size = 4 * shape.blocks_k * blocks * shape.rows * shape.token_tiles * 8
    return run.scratch("parts", size), run.scratch("tickets", max(4 * blocks, 1 << 16), zeros=True)


def _launch(
    run: Launcher, entry: Entry, shape: Any, blocks_y: int, w: Fused, tensors: list[CudaTensor],
    firsts: list[int], args: tuple[Any, ...], panels: int = 1,
) -> None:  # fmt: skip
    """A kernel of one matrix or two; blocks_y 0: its grid has one dimension. `panels`: blocks of the same rows."""
    blocks = [-(-t.shape[0] // shape.rows) for t in tensors]
    given: list[Any] = []
    for t in tensors:
        n = w.width if w.is_interleaved else t.shape[0]
        given += [*t.planes, t.gain, 1 / t.gain, n]
    if len(tensors) == 2:
        given += [blocks[0], firsts[1] - firsts[0]]
    grid: Any = (panels * sum(blocks), blocks_y) if blocks_y else sum(blocks)
    run.launch(entry, grid, shape.threads, *given, *args)


def _plain(run: Launcher, t: CudaTensor, form: Form, tokens: int, out: _Output) -> None:
    """Weights that stay as in files, read once for each token."""
    n, k = t.shape
    args = (*t.in_rows(), form.pointer, form.stride, *out.args(), n, k)
    run.launch(kernels.gemv_rows(t.format), tokens * -(-n // 4), 128, *args)


def _exact(
    run: Launcher, pairs: list[tuple[CudaTensor, int]], form: Form, tokens: int, out: _Output, invariant: bool
) -> None:
    """Weights of f32 times rows of f32: the scores of routers, where a rounding chooses another expert."""
    rows = form if form.kind == "rows32" else form_rows32(run, source_of(form), tokens)
    for t, first in pairs:
        n, k = t.shape
        to = out.at(first, n)
        if invariant or tokens <= MAX_ROWS_GEMV:
            _plain(run, t, rows, tokens, to)
            continue
        beta, given = begin_rows(run, to.rows, tokens, *to[1:]), (rows.pointer, t.planes[0], to.rows.pointer)
        run.multiply(*given, tokens, n, k, "f32", beta=beta, x_stride=rows.stride, stride=to.rows.stride)


def begin_rows(run: Launcher, y: Rows, tokens: int, bias: int = 0, residual: Rows | None = None) -> float:
    """Write what is added to a product where it will be. Returns what that must be multiplied by."""
    if bias or (residual and residual != y):
        args = (*y.at, bias, *(residual or Rows(0, 0, 0)).at, y.width)
        run.launch(kernels.begin_rows(), (tokens, -(-y.width // 256)), 256, *args)
    return 1.0 if bias or residual else 0.0


def end_rows(run: Launcher, x: Rows, scales: int, tokens: int, out: _Output) -> None:
    """Write products of scaled rows, and what is added to them, where they will be."""
    args = (*x.at, scales, *out.rows.at, out.bias, *(out.residual or Rows(0, 0, 0)).at, x.width)
    run.launch(kernels.end_rows(), (tokens, -(-x.width // 256)), 256, *args)


def _many(run: Launcher, pairs: list[tuple[CudaTensor, int]], form: Form, tokens: int, out: _Output) -> None:
    """The matrices decoded to a scratch, one behind the other, then cuBLAS; large ones some rows at a time."""
    width, start = form.stride, pairs[0][1]
    end = pairs[-1][1] + pairs[-1][0].shape[0]
    whole = out.at(start, end - start)
    is_scaled = form.kind == "rows16" and form.scales != 0
    y, beta = (whole.rows, 0.0) if is_scaled else (whole.rows, begin_rows(run, whole.rows, tokens, *whole[1:]))
    most = max(1, MAX_DECODED // (2 * width) // ROWS) * ROWS
    for first in range(start, end, most):
        n = min(most, end - first)
        decoded = run.scratch("decoded", 2 * n * width)
        for t, own in pairs:
            rows = range(max(first - own, 0), min(first + n - own, t.shape[0]))
            t.decode_into(decoded + 2 * (own + rows.start - first) * width, width, form.dtype, run.launch, rows)
        to = Rows(run.scratch("unscaled", 4 * tokens * n), n, n) if is_scaled else y.columns(first - start, n)
        given = (form.pointer, decoded, to.pointer, tokens, n, width, form.dtype)
        run.multiply(*given, beta=beta, x_stride=width, stride=to.stride)
        if is_scaled:
            end_rows(run, to, form.scales, tokens, whole.at(first - start, n))
