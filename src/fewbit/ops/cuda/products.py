"""Products of a step: rows in the form that a kernel takes, multiplied by one matrix or by several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...errors import ArgumentError
from . import kernels_products as kernels
from .fused import Fused
from .kernels import Entry
from .layout import ROWS, padded
from .shapes import (
    MAX_ROWS_GEMV,
    MAX_SKINNY,
    form_kind,
    gemv_shape,
    invariant_shape,
    shared_shape,
    skinny_shape,
    token_tiles,
)
from .tensor import CudaTensor
from .values import Launcher, Rows

__all__ = ["Form", "Fused", "RowSource", "begin_rows", "empty_form", "make_form", "multiply", "multiply_gated",
           "multiply_then_gate"]  # fmt: skip

Weights = CudaTensor | Fused
MAX_DECODED = 1 << 28  # bytes of a matrix at once


class Form(NamedTuple):
    """Rows as a product takes them: "bytes" (one token), "fragments" (f16), "rows16" (`dtype`) or "rows32"."""

    kind: str
    pointer: int
    scales: int = 0  # of granules, with sums (bytes), or of tokens (fragments, rows16; 0: they are not scaled)
    stride: int = 0  # of rows
    parts: int = 1  # of 8 bits
    tiles: int = 0  # of 8 tokens
    dtype: str = "bf16"  # of rows16: that or f16
    source: RowSource | None = None  # for formats that stay as in files; None: they are not asked for


class RowSource(NamedTuple):
    """Rows before they have their form; norm: a pointer to the weight, and epsilon, of x / rms(x) * weight."""

    rows: Rows
    norm: tuple[int, float] | None = None
    dtype: str = "f32"
    name: str = "x"
    many: str = "bf16"  # the type of rows16; "scaled": f16


def make_form(
    run: Launcher,
    rows: Rows,
    tokens: int,
    norm: tuple[int, float] | None = None,
    int16: bool = False,
    f16: bool = False,
    invariant: bool = False,
    name: str = "x",
    dtype: str = "f32",
    exact: bool = False,
    many: str = "bf16",
) -> Form:
    """Rows of `rows.width` values, normed first where a norm is given, for products that come next.

    One token is taken in 8 bits, in 16 (`int16`) or in f16; some tokens in f16, more in `many`: "bf16", "f16", or
    "scaled", which is f16 with a power of two for each token. With `invariant` all are taken in f16, and a token's
    product has the same bits whatever the others are. With `exact` they stay f32, for weights that are multiplied so.
    The form lies in scratch memory under `name`, until the next of that name is made.
    """
    source = RowSource(rows, norm, dtype, name, many)
    if exact:
        return _rows32(run, source, tokens)
    kind = form_kind(tokens, f16, invariant)
    if kind == "bytes":
        return _bytes(run, source, 2 if int16 else 1)
    if kind == "fragments":
        return _fragments(run, source, tokens, token_tiles(tokens, invariant))
    return _rows(run, source, tokens, kind)


def empty_form(run: Launcher, width: int, tokens: int, name: str = "given") -> Form | None:
    """Memory for rows that another kernel writes in their form: one token in 8 bits, some in f16 without scales.

    None: it should write rows.
    """
    kind, size = form_kind(tokens, False, False), padded(width, 128)
    if kind == "bytes":
        return Form(kind, run.scratch(f"{name}.codes", size), run.scratch(f"{name}.scales", size // 4))
    if kind == "fragments":
        tiles = token_tiles(tokens, False)
        own = f"{name}.fragments.{width}.{tiles}"  # nobody writes the padding, which others have elsewhere
        return Form(kind, run.scratch(own, tiles * 8 * size * 2, zeros=True), tiles=tiles)
    return None


def _bytes(run: Launcher, source: RowSource, parts: int) -> Form:
    (x, k, _), norm, dtype, name, _ = source
    size = padded(k, 128)
    q, xm = run.scratch(f"{name}.codes", parts * size), run.scratch(f"{name}.scales", parts * size // 4)
    if norm:
        entry = kernels.norm_quantize_row(dtype, kernels.rounds(size), parts)
        run.launch(entry, 1, kernels.FORM_THREADS, x, norm[0], norm[1], q, xm, k, size)
    else:
        run.launch(kernels.quantize_row(dtype, parts), -(-size // 1024), 128, x, q, xm, k, size)
    return Form("bytes", q, xm, parts=parts, source=source)


def _fragments(run: Launcher, source: RowSource, tokens: int, tiles: int) -> Form:
    (x, k, stride), norm, dtype, name, _ = source
    size, (weight, eps) = padded(k, 128), norm or (0, 0.0)
    packed = run.scratch(f"{name}.fragments", tiles * 8 * size * 2)
    scales = run.scratch(f"{name}.token_scales", tiles * 8 * 4)
    entry = kernels.pack_fragments(dtype, kernels.rounds(size), norm is not None)
    args = (x, stride, weight, eps, packed, scales, k, size, tokens)
    run.launch(entry, tiles * 8, kernels.FORM_THREADS, *args)
    return Form("fragments", packed, scales, tiles=tiles, source=source)


def _rows(run: Launcher, source: RowSource, tokens: int, kind: str) -> Form:
    (x, k, stride), norm, dtype, name, many = source
    width, (weight, eps) = padded(k, 8), norm or (0, 0.0)
    if kind == "rows16" and many == "scaled":
        out, scales = run.scratch(f"{name}.{kind}", 2 * tokens * width), run.scratch(f"{name}.row_scales", 4 * tokens)
        entry = kernels.scale_rows(dtype, kernels.rounds(width), norm is not None)
        run.launch(entry, tokens, kernels.FORM_THREADS, x, stride, weight, eps, out, scales, k, width)
        return Form(kind, out, scales, width, dtype="f16", source=source)
    target, item = (many, 2) if kind == "rows16" else ("f32", 4)
    out = run.scratch(f"{name}.{kind}", item * tokens * width)
    entry = kernels.form_rows(dtype, target, kernels.rounds(width), norm is not None)
    run.launch(entry, tokens, kernels.FORM_THREADS, x, stride, weight, eps, out, k, width)
    return Form(kind, out, stride=width, dtype=many, source=source)


def _form_of_rows(run: Launcher, form: Form, tokens: int, invariant: bool) -> Form:
    """What formats take that stay as in files."""
    kind = "rows32" if invariant or tokens <= MAX_ROWS_GEMV else "rows16"
    if form.kind == kind:
        return form
    source = _source_of(form)
    return _rows32(run, source, tokens) if kind == "rows32" else _rows(run, source, tokens, kind)


def _source_of(form: Form) -> RowSource:
    if form.source is None:
        raise ArgumentError("a form without its rows serves no formats that stay as in files")
    return form.source


def _rows32(run: Launcher, source: RowSource, tokens: int) -> Form:
    """Rows of f32, as they are if nothing has to be done."""
    if source.norm or source.dtype != "f32":
        return _rows(run, source, tokens, "rows32")
    return Form("rows32", source.rows.pointer, stride=source.rows.stride, source=source)


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
    taken = _form_of_rows(run, form, tokens, invariant)
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


def shared_scratch(run: Launcher, shape: Any, tensors: list[CudaTensor]) -> tuple[int, int]:
    """Memory for the sums of blocks that share k, and for counting them, where they do not share it as a cluster."""
    if shape.blocks_k == 1 or (shape.is_cluster and run.device.has_dependent_launches):
        return 0, 0
    blocks = sum(-(-t.shape[0] // shape.rows) for t in tensors)
    size = 4 * shape.blocks_k * blocks * shape.rows * shape.token_tiles * 8
    return run.scratch("parts", size), run.scratch("tickets", max(4 * blocks, 1 << 16), zeros=True)


def _launch(
    run: Launcher, entry: Entry, shape: Any, blocks_y: int, w: Fused, tensors: list[CudaTensor],
    firsts: list[int], args: tuple[Any, ...],
) -> None:  # fmt: skip
    """A kernel of one matrix or two; blocks_y 0: its grid has one dimension."""
    blocks = [-(-t.shape[0] // shape.rows) for t in tensors]
    given: list[Any] = []
    for t in tensors:
        n = w.width if w.is_interleaved else t.shape[0]
        given += [*t.planes, t.gain, 1 / t.gain, n]
    if len(tensors) == 2:
        given += [blocks[0], firsts[1] - firsts[0]]
    grid: Any = (sum(blocks), blocks_y) if blocks_y else sum(blocks)
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
    rows = form if form.kind == "rows32" else _rows32(run, _source_of(form), tokens)
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
