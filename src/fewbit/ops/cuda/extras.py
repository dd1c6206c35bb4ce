"""What a step brings beside its tokens: rows from outside, positions on several axes, spans.

Steps of text alone have none of them, and launch nothing for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...arrays import Ints, Longs
from ...errors import RequestError, ShapeError
from ..graph import Graph, Rope
from ..inserts import Inserted
from .values import InsertedPart

if TYPE_CHECKING:
    from ...cache.view import View
    from ...devices.batch import Batch


@dataclass(frozen=True)
class StepExtras:
    """Those of a step, as far as its graph takes them.

    Args:
        inserted: Rows from outside, at most one array of a part.
        axes: (axes, tokens) positions; None: all are the tokens' own.
        spans: (tokens, 2) first position and end of the span of each token; None: each is its own.
    """

    inserted: tuple[Inserted, ...] = ()
    axes: Ints | None = None
    spans: Ints | None = None

    @property
    def is_empty(self) -> bool:
        return not self.inserted and self.axes is None and self.spans is None

    @property
    def num_axes(self) -> int:
        return 0 if self.axes is None else len(self.axes)

    @property
    def max_span(self) -> int:
        """Tokens of the longest span; 0: there are none."""
        return 0 if self.spans is None else int((self.spans[:, 1] - self.spans[:, 0]).max(initial=1))

    @property
    def inserts(self) -> tuple[InsertedPart, ...]:
        """Where the rows of each part are, if all lie behind each other."""
        return tuple(self._places())

    def _places(self) -> Iterator[InsertedPart]:
        tokens = values = 0
        for one in self.inserted:
            yield InsertedPart(one.part, len(one.tokens), tokens, values)
            tokens, values = tokens + len(one.tokens), values + one.rows.size

    def pack(self, place: Callable[[str], npt.NDArray[np.int32]], tokens: int) -> None:
        """Write the integers to their places, in which there may be room for more tokens."""
        if self.axes is not None:
            axes = place("axes").reshape(self.num_axes, -1)
            axes[:, :tokens], axes[:, tokens:] = self.axes, 0
        if self.spans is not None:
            place("spans")[:] = self.spans.reshape(-1)
        if self.inserted:
            place("insert_tokens")[:] = np.concatenate([one.tokens for one in self.inserted])


NO_EXTRAS = StepExtras()


@dataclass(frozen=True)
class ExtraUses:
    """What the operations of a graph take.

    Args:
        parts: The width of the rows that each part inserts.
        axes: Axes of ropes; 0: none has any.
        spans: Whether the tokens of a span see each other.
        own_spans: Whether a token sees nothing but its span, somewhere.
        positions: How many positions ropes have tables for.
    """

    parts: dict[int, int]
    axes: int
    spans: bool
    own_spans: bool
    positions: int

    def of(self, batch: Batch) -> StepExtras:
        """The extras of a step, checked."""
        if not (batch.inserted or batch.axes is not None or batch.spans is not None or self.own_spans):
            return NO_EXTRAS
        tokens = len(batch.tokens)
        inserted = tuple(one for one in batch.inserted if one.part in self.parts and len(one.tokens))
        for one in inserted:
            self._check_rows(one, tokens)
        axes = batch.axes if self.axes and batch.axes is not None else None
        if axes is not None:
            axes = self._checked_axes(axes, tokens)
        spans = _checked_spans(batch.spans, batch.view, self.own_spans) if self.spans else None
        return StepExtras(inserted, axes, spans)

    def _check_rows(self, one: Inserted, tokens: int) -> None:
        width = self.parts[one.part]
        if one.rows.shape != (len(one.tokens), width):
            raise ShapeError(
                f"part {one.part} inserts {len(one.tokens)} rows of {width} values, not an array of {one.rows.shape}"
            )
        if one.tokens.min() < 0 or one.tokens.max() >= tokens:
            raise RequestError(f"rows can be inserted for tokens 0 to {tokens - 1} of the step, not for others")

    def _checked_axes(self, axes: Ints, tokens: int) -> Ints:
        if axes.ndim != 2 or len(axes) < self.axes or axes.shape[1] != tokens:
            raise ShapeError(f"positions must be an array of {self.axes} axes and {tokens} tokens, not {axes.shape}")
        own = axes[: self.axes]
        if own.size and (own.min() < 0 or own.max() >= self.positions):
            raise RequestError(f"positions on axes must be from 0 to {self.positions - 1}")
        return own


def uses_of(graph: Graph, positions: int) -> ExtraUses:
    """What a graph takes; `positions`: how many its ropes have tables for."""
    inserts = [node for node in graph.nodes if node.operation == "insert"]
    attends = [node.attributes for node in graph.nodes if node.operation == "attend" and node.attributes["spans"]]
    return ExtraUses(
        parts={node.attributes["part"]: node.inputs[0].width for node in inserts},
        axes=max((_axes_of(node.attributes["rope"]) for node in graph.nodes if node.operation == "rope"), default=0),
        spans=bool(attends),
        own_spans=any(not one["causal"] for one in attends),
        positions=positions,
    )


def _axes_of(rope: Rope) -> int:
    return 0 if rope.axes is None else max(rope.axes, default=-1) + 1


def _checked_spans(spans: Longs | None, view: View, is_needed: bool) -> Ints | None:
    """Spans that hold their tokens and begin and end one after another, as kernels need them; None: each token is its
    own, and nobody needs to be told."""
    positions = view.positions()
    if spans is None:
        return _own_spans(positions) if is_needed else None
    if spans.shape != (len(positions), 2):
        raise ShapeError(f"spans must be an array of {len(positions)} tokens and 2 values, not {spans.shape}")
    counts = np.diff(view.q_starts)
    sequences = np.repeat(np.arange(len(counts)), counts)
    begins, ends = spans[:, 0], spans[:, 1]
    holds = (begins >= 0) & (begins <= positions) & (positions < ends) & (ends <= view.lengths[sequences])
    follows = (np.diff(spans, axis=0) >= 0).all(axis=1) | (np.diff(sequences) > 0)
    if not (holds.all() and follows.all()):
        raise RequestError("a span holds the position of its token, and the next one begins and ends later")
    if not is_needed and (ends - begins <= 1).all():
        return None
    return spans.astype(np.int32)


def _own_spans(positions: Longs) -> Ints:
    return np.stack([positions, positions + 1], axis=1).astype(np.int32)


def packed_rows(inserted: Sequence[Inserted]) -> npt.NDArray[np.float32]:
    """The rows of all parts behind each other, as `StepExtras.inserts` tells where they are."""
    return np.concatenate([np.ascontiguousarray(one.rows, np.float32).reshape(-1) for one in inserted])
