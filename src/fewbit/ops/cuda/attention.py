"""Attention of single tokens over KV pages, and K and V of new tokens into them.

Decoding takes one kernel a layer: it rotates q and k, writes K and V, attends, and gives rows or what the next product
takes. The same kernel serves rows of prompts, each of which sees what is before it, where results must not depend on
the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...arrays import Floats
from ...errors import ArgumentError, ShapeError
from ..graph import Rope
from . import kernels_rows
from .kernels import Entry
from .kernels_attention import PLAIN_HEADS, PLAIN_THREADS, WRITE_THREADS, PageShape, attend_mma, attend_plain, write_kv
from .kernels_rows import THREADS
from .memory import DeviceArray
from .pages import PAGE_TOKENS, LayerPages
from .session import Session
from .values import Launcher, Rows, StepInputs

FIXED_PIECE = 512  # tokens of a piece, and warps, where sums must not depend on the batch
FIXED_WARPS = 4
SHORT = 512  # tokens that one block attends to, where others would only wait for it
MIN_PIECE = 256
PARTS_BYTES = 1 << 26
WIDEST_PAIR = 128  # values of a head up to which registers hold two tiles of query heads
BLOCKS = {8: 1, 4: 2, 2: 4, 1: 8}  # of so many warps that a processor runs at once
LARGEST_POSITION = 1 << 24
FEW_TOKENS = 16  # new tokens of a sequence up to which each attends as a single one does
MAX_GRID = 65535  # blocks in the second and third dimension


class RopeTable(NamedTuple):
    """Cosines and sines, (positions, pairs, 2) floats on the device; with `by_row`, (rows of the step, pairs, 2)."""

    pointer: int
    pairs: int
    neox: bool
    positions: int
    buffer: Any
    axes: DeviceArray | None = None  # for each pair, which of a token's positions; None: there is one
    by_row: bool = False

    @property
    def at(self) -> tuple[int, int, bool, bool]:
        """As kernels take it."""
        return self.pointer, self.pairs, self.neox, self.by_row


class Int8Row(NamedTuple):
    """One token for the batch-1 product: codes, and {scale, sums of 16} of each 32."""

    codes: int
    scales: int


class Fragments(NamedTuple):
    """f16 in the order of fragments or panels (`pack_fragments`), not scaled.

    The memory is of zeros at first, since padding is not written.
    """

    pointer: int
    token_tiles: int
    is_panels: bool = False


Output = Rows | Int8Row | Fragments
_FORMS = {Rows: 0, Int8Row: 1, Fragments: 2}
_NO_ROPE = RopeTable(0, 0, False, LARGEST_POSITION, None)


def rope_values(rope: Rope, positions: int) -> Floats:
    """Cosine and sine of each pair at each position, as `ops.numpy.rope` has them: (positions, pairs, 2)."""
    angles = np.arange(positions)[:, None] * rope.inv_freq.astype(np.float64)
    return np.stack([np.float32(rope.scale) * f(angles).astype(np.float32) for f in (np.cos, np.sin)], axis=2)


def make_rope_table(device: Session, rope: Rope, positions: int) -> RopeTable:
    """The table of a rope for a context of so many tokens."""
    values = rope_values(rope, positions)
    buffer = device.allocate(values.nbytes)
    device.upload(values, int(buffer.handle))
    axes = None if rope.axes is None else device.array(np.array(rope.axes, np.int32))
    return RopeTable(int(buffer.handle), len(rope.inv_freq), rope.neox, positions, buffer, axes)


def gather_turns(run: Launcher, step: StepInputs, rope: RopeTable) -> None:
    """What each row is rotated by, if it has positions on several axes: once in a step, before all that rotates."""
    table = turns_of(run, step, rope)
    if rope.axes is not None and table is not rope:
        grid = step.num_tokens, -(-rope.pairs // THREADS)
        given = rope.pointer, rope.axes.pointer, step.axes, step.num_tokens, rope.pairs, table.pointer
        run.launch(kernels_rows.gather_turns(), grid, THREADS, *given)


def turns_of(run: Launcher, step: StepInputs, rope: RopeTable | None) -> RopeTable:
    """The table that the rows of a step are rotated by."""
    if rope is None:
        return _NO_ROPE
    if rope.axes is None or not step.num_axes:
        return rope
    pointer = run.scratch(f"turns.{rope.pointer}", 8 * step.num_tokens * rope.pairs)
    return rope._replace(pointer=pointer, by_row=True)


@dataclass(frozen=True)
class AttendShape:
    """How the work of a launch is cut: query heads of a block in tiles of 8, its warps, tokens of a piece, pieces."""

    head_tiles: int
    warps: int
    piece: int
    pieces: int
    rounds: int  # blocks for the query heads of a KV head
    is_mma: bool


def attend_shape(
    pages: PageShape, rows: int, max_length: int, window: int, kv_heads: int, q_heads: int, *, batch_invariant: bool,
    processors: int = 132,
) -> AttendShape:  # fmt: skip
    """Few rows: pieces for all processors; short contexts: one piece, since joining takes longer than it saves.

    >>> from fewbit.formats import get
    >>> llama = PageShape(get("q8_0"), get("q8_0"), 128, 128)
    >>> shape = attend_shape(llama, 1, 32768, 0, 8, 32, batch_invariant=False)
    >>> shape.warps, shape.piece, shape.pieces
    (8, 2048, 16)
    >>> attend_shape(llama, 1, 190, 0, 8, 32, batch_invariant=False).pieces
    1
    """
    each = q_heads // kv_heads
    is_mma = pages.fits_mma
    tiles = 2 if is_mma and each > 8 and max(pages.k_dim, pages.v_dim) <= WIDEST_PAIR else 1
    rounds = -(-each // (8 * tiles if is_mma else PLAIN_HEADS))
    blocks = rows * kv_heads * rounds
    warps = 8 if not is_mma or blocks <= processors else FIXED_WARPS
    seen = min(max_length, window or max_length)
    if batch_invariant:
        warps, piece = (FIXED_WARPS if is_mma else 8), FIXED_PIECE
    elif max_length <= SHORT:
        piece = SHORT
        if is_mma:  # the fewer warps share a context, the less they wait for each other
            warps = next((w for w, at_once in BLOCKS.items() if blocks <= processors * at_once), 1)
    else:
        wanted = max(1, processors * BLOCKS[warps] // blocks)
        step = PAGE_TOKENS * warps
        piece = max(MIN_PIECE, -(-seen // (wanted * step)) * step)
    pieces = -(-max_length // piece)
    if window:
        pieces = min(pieces, (window + piece - 2) // piece + 1)
    return AttendShape(tiles, warps, piece, max(pieces, 1), rounds, is_mma)


def page_shape(pages: LayerPages) -> PageShape:
    return PageShape(pages.k_format, pages.v_format, pages.spec.k_dim, pages.spec.v_dim)


def write_rows(
    run: Launcher, step: StepInputs, pages: LayerPages, k: Rows, v: Rows, *, rope: RopeTable | None = None
) -> None:
    """K and V of a step's tokens into their pages; K is rotated by `rope`, unless it was before."""
    spec, table = pages.spec, turns_of(run, step, rope)
    _check_rows(pages, k, v, table)
    grid = -(-step.num_tokens // PAGE_TOKENS), spec.kv_heads
    run.launch(
        write_kv(page_shape(pages)), grid, WRITE_THREADS, k.pointer, v.pointer, k.stride, v.stride,
        *table.at, pages.rotate, pages.k, pages.v, step.groups[pages.group].slots,
        step.positions, step.num_tokens, spec.kv_heads,
    )  # fmt: skip


def decode_attention(
    run: Launcher,
    step: StepInputs,
    pages: LayerPages,
    q: Rows,
    k: Rows,
    v: Rows,
    out: Output,
    *,
    scale: float,
    softcap: float = 0.0,
    sinks: int = 0,
    rope: RopeTable | None = None,
    keep: bool = True,
    batch_invariant: bool = False,
    rows: range | None = None,
) -> None:
    """Attention of each row to positions up to its own, after its K and V were kept; of some `rows` only, if given.

    `sinks` points to a float for each query head. `rope` rotates q and k. Without `keep` an attention before this one
    has kept K and V, and k and v are not read. Rows of a sequence of length 0, and with `keep` those without a slot,
    become zeros. With one new token a sequence all is one kernel, which reads the step's integers and older pages
    before the kernel before it has ended.
    """
    spec, table = pages.spec, turns_of(run, step, rope)
    if keep:
        _check_rows(pages, k, v, table)
    q_heads = _check_output(pages, q, out, step.num_tokens)
    if keep and step.max_q > 1:
        write_rows(run, step, pages, k, v, rope=rope)
        keep = False
    rows = range(step.num_tokens) if rows is None else rows
    shape = attend_shape(
        page_shape(pages), len(rows), step.max_length, spec.window, spec.kv_heads, q_heads,
        batch_invariant=batch_invariant, processors=processors(run.device),
    )  # fmt: skip
    entry = attend_entry(page_shape(pages), shape, keep)
    group, floats = step.groups[pages.group], q_heads * shape.pieces * (spec.v_dim + 2)
    at_once = max(1, min(len(rows), PARTS_BYTES // (4 * floats), MAX_GRID))
    parts = run.scratch("attend_parts", 4 * floats * at_once)
    tickets = run.scratch("attend_tickets", 4 * at_once * spec.kv_heads * shape.rounds, zeros=True)
    for first in rows[::at_once]:
        grid = shape.pieces, spec.kv_heads * shape.rounds, min(at_once, rows.stop - first)
        run.launch(
            entry, grid, 32 * shape.warps if shape.is_mma else PLAIN_THREADS, q.pointer, k.pointer, v.pointer,
            q.stride, k.stride, v.stride, *table.at, pages.rotate,
            pages.k, pages.v, group.tables, group.starts, group.slots, step.positions, step.sequences, step.lengths,
            sinks, scale, softcap,
            spec.signed_window, spec.kv_heads, q_heads, shape.piece, first, parts, tickets, *_output(out),
        )  # fmt: skip


def attend_entry(pages: PageShape, shape: AttendShape, fused: bool) -> Entry:
    if shape.is_mma:
        return attend_mma(pages, shape.head_tiles, shape.warps, fused)
    return attend_plain(pages, fused)


def _output(out: Output) -> tuple[Any, ...]:
    form = _FORMS[type(out)]
    if isinstance(out, Rows):
        return out.pointer, 0, form, out.stride
    if isinstance(out, Fragments):
        return out.pointer, 0, form + out.is_panels, out.token_tiles
    return out.codes, out.scales, form, 0


def _check_rows(pages: LayerPages, k: Rows, v: Rows, rope: RopeTable) -> None:
    spec = pages.spec
    if (k.width, v.width) != (spec.kv_heads * spec.k_dim, spec.kv_heads * spec.v_dim):
        raise ShapeError(f"rows of K and V have {k.width} and {v.width} values; the layer keeps {spec}")
    if 2 * rope.pairs > spec.k_dim:
        raise ShapeError(f"{2 * rope.pairs} values of a head are to be rotated, it has {spec.k_dim}")


def _check_output(pages: LayerPages, q: Rows, out: Output, tokens: int) -> int:
    """The number of query heads."""
    spec = pages.spec
    q_heads = q.width // spec.k_dim
    if q_heads == 0 or q.width % spec.k_dim or q_heads % spec.kv_heads:
        raise ShapeError(f"rows of q have {q.width} values: no whole number of heads for each of {spec.kv_heads}")
    if isinstance(out, Rows) and out.width != q_heads * spec.v_dim:
        raise ShapeError(f"rows of the result have {q_heads * spec.v_dim} values, not {out.width}")
    if isinstance(out, Int8Row) and (tokens != 1 or spec.v_dim % 32):
        raise ArgumentError("a result of 8 bits is of one token, whose heads are multiples of 32")
    if isinstance(out, Fragments) and tokens > 8 * out.token_tiles:
        raise ArgumentError(f"fragments of {8 * out.token_tiles} tokens cannot hold {tokens}")
    return q_heads


def processors(device: Session) -> int:
    return int(device.device.properties.multiprocessor_count)
