"""Attention of prompts: K and V from their pages to f16 tiles, then mma over those.

What a token gets depends on the tokens that it sees alone, not on the others of the step nor on how its prompt was cut.
"""

from __future__ import annotations

from typing import NamedTuple

from ...errors import ArgumentError, ShapeError
from ..specs import AttentionSpec
from .attention import MAX_GRID, RopeTable, processors, turns_of
from .kernels_prompt import GATHER_THREADS, PromptShape, attend_prompt, gather_kv, prompt_shape
from .pages import LayerPages
from .session import Session
from .values import Launcher, Rows, StepInputs

MAX_SCRATCH = 1 << 30  # bytes of tiles at once, as long as one sequence fits
FAR = 1 << 30  # tokens away: all that there are


class Reach(NamedTuple):
    """How many tokens before and behind it a token sees."""

    back: int
    ahead: int

    def capacity(self, max_length: int, max_q: int, keys: int) -> int:
        """Tiles that the keys of a sequence can lie in.

        >>> Reach(FAR, 0).capacity(130, 10, 64), Reach(31, 0).capacity(4096, 10, 64)
        (3, 2)
        """
        spanned = (max_q + self.back + keys - 2) // keys + 1
        return max(1, min(-(-max_length // keys), spanned))


def reach(window: int, causal: bool, radius: int, spans: bool = False) -> Reach:
    """Beside the span that a token is part of, with `spans`: if not causal, nothing else.

    >>> reach(8, True, 0), reach(0, False, 3)
    (Reach(back=7, ahead=0), Reach(back=3, ahead=3))
    """
    if causal:
        return Reach(window - 1 if window else FAR, 0)
    return Reach(0, 0) if spans else Reach(radius or FAR, radius or FAR)


def card_shape(device: Session, spec: AttentionSpec) -> PromptShape:
    """The shape of blocks on a card."""
    has = device.device.properties
    limits = has.max_shared_memory_per_block_optin, has.max_shared_memory_per_multiprocessor
    return prompt_shape(spec.k_dim, spec.v_dim, *limits)


def prompt_attention(
    run: Launcher,
    step: StepInputs,
    pages: LayerPages,
    q: Rows,
    out: Rows,
    *,
    scale: float,
    softcap: float = 0.0,
    sinks: int = 0,
    causal: bool = True,
    radius: int = 0,
    rope: RopeTable | None = None,
    dtype: str = "f32",
    sequences: range | None = None,
    least: int = 1,
    spans: bool = False,
    spans_only: bool = False,
) -> None:
    """Attention of the new tokens of `sequences` (all of the step), whose K and V are in the pages already.

    Sequences with fewer than `least` new tokens are left alone: their rows of `out` are not written. `rope` rotates q
    by the tokens' positions. `sinks` points to a float for each head. `out` has rows of `dtype`, "f32", "f16" or
    "bf16", its stride counts those; columns behind the heads become zeros. With `spans` tokens see all of their spans,
    too; with `spans_only` those whose span is their own are left alone.
    """
    heads = _heads(pages, q, out, dtype)
    _check_scale(scale, softcap)
    spec, shape = pages.spec, card_shape(run.device, pages.spec)
    sees = reach(spec.window, causal, radius, spans)
    back = spec.signed_window if spec.chunked else sees.back
    farthest = Reach(max(sees.back, step.max_span - 1), sees.ahead) if spans else sees
    capacity = farthest.capacity(step.max_length, step.max_q, shape.keys)
    k_bytes, v_bytes = (capacity * spec.kv_heads * size for size in shape.tile_bytes)
    todo = range(step.num_sequences) if sequences is None else sequences
    if step.max_q < max(least, 1):
        return
    at_once = max(1, min(len(todo), MAX_SCRATCH // (k_bytes + v_bytes), MAX_GRID))
    gather = gather_kv(pages.k_format, pages.v_format, spec.k_dim, spec.v_dim, shape)
    rotated = spec.k_dim & -spec.k_dim if pages.rotate else 0
    group, table = heads // spec.kv_heads, step.groups[pages.group]
    queries = *q.at, spec.k_dim, heads, group, *turns_of(run, step, rope).at
    if -(-step.max_q * group // shape.rows) * len(todo) * spec.kv_heads * shape.parts < 2 * processors(run.device):
        shape = shape.small
    tiles = _num_tiles(step.max_q, group, shape.rows)
    attend = attend_prompt(shape, rotated, softcap > 0, dtype, spans)
    seen = back, sees.ahead, step.spans if spans else 0, spans_only
    for first in todo[::at_once]:
        count = min(at_once, todo.stop - first)
        k = run.scratch("prompt_k", count * k_bytes)
        v = run.scratch("prompt_v", count * v_bytes)
        prompts = step.q_starts, step.lengths, first, least, *seen
        run.launch(
            gather, (capacity, 2 * spec.kv_heads, count), GATHER_THREADS, pages.k, pages.v, spec.kv_heads,
            table.tables, table.starts, *prompts, k, v, capacity,
        )  # fmt: skip
        run.launch(
            attend, (spec.kv_heads * shape.parts, tiles, count), shape.threads, *queries, *prompts, k, v, capacity,
            shape.parts, scale, softcap, sinks, *out.at, spec.v_dim, out.width,
        )  # fmt: skip


def _check_scale(scale: float, softcap: float) -> None:
    if not (scale > 0 and softcap >= 0):
        raise ArgumentError(f"attention needs a scale above 0 and a soft cap of 0 or more, not {scale} and {softcap}")


def _num_tiles(max_q: int, group: int, rows: int) -> int:
    """Tiles of query rows of the longest sequence, as far as a grid has room for them."""
    tiles = -(-max_q * group // rows)
    if tiles > MAX_GRID:
        most = MAX_GRID * rows // group
        raise ArgumentError(f"a GPU takes {most} tokens of a prompt at once, not {max_q}; lower max_batched_tokens")
    return tiles


def _heads(pages: LayerPages, q: Rows, out: Rows, dtype: str) -> int:
    """How many heads q has, if all fits."""
    spec = pages.spec
    heads = q.width // spec.k_dim
    if q.width != heads * spec.k_dim or heads == 0 or heads % spec.kv_heads:
        raise ShapeError(f"q has rows of {q.width} values, not heads of {spec.k_dim} that share {spec.kv_heads} of K")
    if out.width < heads * spec.v_dim or out.stride < out.width:
        raise ShapeError(f"out has rows of {out.width} values, {heads} heads of {spec.v_dim} do not fit")
    if dtype not in ("f32", "f16", "bf16"):
        raise ArgumentError(f"out holds f32, f16 or bf16, not {dtype}")
    return heads
