"""Rows of a step in the forms that products take: 8 bits, f16 in the order of fragments or panels, or plain rows."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from ...errors import ArgumentError
from . import kernels_products as kernels
from .layout import padded
from .shapes import MAX_PANELS, MAX_ROWS_GEMV, MIN_PANELS, form_kind, panel_tiles, token_tiles
from .values import Launcher, Rows


class Form(NamedTuple):
    """Rows as a product takes them.

    "bytes" (one token), "fragments" or "panels" (f16), "rows16" (`dtype`) or "rows32".
    """

    kind: str
    pointer: int
    scales: int = 0  # of granules, with sums (bytes), or of tokens (0: they are not scaled)
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
        return form_rows32(run, source, tokens)
    kind = _kind(run, tokens, f16, invariant)
    if kind == "bytes":
        return _bytes(run, source, 2 if int16 else 1)
    return _rows(run, source, tokens, kind) if kind == "rows16" else pack_rows(run, source, tokens, kind, invariant)


def _kind(run: Launcher, tokens: int, f16: bool = False, invariant: bool = False) -> str:
    """How a product takes so many rows on this GPU. Those that never need panels do not ask whether it takes them."""
    is_some = MIN_PANELS <= tokens <= MAX_PANELS and not invariant
    return form_kind(tokens, f16, invariant, is_some and run.device.takes_panels)


def takes_rows(run: Launcher, tokens: int) -> bool:
    """Whether products of so many tokens take rows in f16 or bf16."""
    return _kind(run, tokens) == "rows16"


def empty_form(run: Launcher, width: int, tokens: int, name: str = "given") -> Form | None:
    """Memory for rows that another kernel writes in their form: one token in 8 bits, some in f16 without scales.

    None: it should write rows.
    """
    kind, size = _kind(run, tokens), padded(width, 128)
    if kind == "bytes":
        return Form(kind, run.scratch(f"{name}.codes", size), run.scratch(f"{name}.scales", size // 4))
    if kind == "rows16":
        return None
    tiles = _tiles(kind, tokens, False)
    own = f"{name}.{kind}.{width}.{tiles}"  # nobody writes the padding, which others have elsewhere
    return Form(kind, run.scratch(own, tiles * 8 * size * 2, zeros=True), tiles=tiles)


def _tiles(kind: str, tokens: int, invariant: bool) -> int:
    return prod(panel_tiles(tokens)) if kind == "panels" else token_tiles(tokens, invariant)


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


def pack_rows(run: Launcher, source: RowSource, tokens: int, kind: str, invariant: bool = False) -> Form:
    """Rows as "fragments" or "panels", which choose the kernel that multiplies them."""
    (x, k, stride), norm, dtype, name, _ = source
    size, (weight, eps), tiles = padded(k, 128), norm or (0, 0.0), _tiles(kind, tokens, invariant)
    packed = run.scratch(f"{name}.fragments", tiles * 8 * size * 2)
    scales = run.scratch(f"{name}.token_scales", tiles * 8 * 4)
    entry = kernels.pack_fragments(dtype, kernels.rounds(size), norm is not None, kind == "panels")
    args = (x, stride, weight, eps, packed, scales, k, size, tokens)
    run.launch(entry, tiles * 8, kernels.FORM_THREADS, *args)
    return Form(kind, packed, scales, tiles=tiles, source=source)


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


def form_of_rows(run: Launcher, form: Form, tokens: int, invariant: bool) -> Form:
    """What formats take that stay as in files."""
    kind = "rows32" if invariant or tokens <= MAX_ROWS_GEMV else "rows16"
    if form.kind == kind:
        return form
    source = source_of(form)
    return form_rows32(run, source, tokens) if kind == "rows32" else _rows(run, source, tokens, kind)


def source_of(form: Form) -> RowSource:
    if form.source is None:
        raise ArgumentError("a form without its rows serves no formats that stay as in files")
    return form.source


def form_rows32(run: Launcher, source: RowSource, tokens: int) -> Form:
    """Rows of f32, as they are if nothing has to be done."""
    if source.norm or source.dtype != "f32":
        return _rows(run, source, tokens, "rows32")
    return Form("rows32", source.rows.pointer, stride=source.rows.stride, source=source)
