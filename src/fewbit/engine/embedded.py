"""Parts of a prompt that are embeddings and no tokens, such as images: what steps and the cache need of them.

A placeholder token stands for each row. The cache knows the rows by `keys`, which follow from a digest of what they
were made of: the same image in the same place is a prefix hit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Protocol

import numpy as np

from ..arrays import Floats, Ints, Longs
from ..devices.batch import RowInputs
from ..errors import RequestError

FIRST_KEY = 1 << 31  # keys of rows are no token ids


class Encoding(Protocol):
    """The work of an encoder on one input, done in slices."""

    def run(self, seconds: float) -> bool:
        """Go on for about so long. Whether it is done."""

    def rows(self) -> Sequence[Floats]:
        """Embeddings, then what is added between layers. It must be done."""


class EncoderInput:
    """An image, or whatever else an encoder makes embeddings of. It has `rows` once it was encoded.

    Args:
        digest: Identifies the image and the encoder.
        begin: Starts the work.
    """

    def __init__(self, digest: bytes, begin: Callable[[], Encoding]) -> None:
        self.digest, self.begin = digest, begin
        self.rows: Sequence[Floats] | None = None

    def encode(self) -> Sequence[Floats]:
        """Its rows, computed here and now if need be."""
        if self.rows is None:
            work = self.begin()
            while not work.run(1.0):
                pass
            self.rows = work.rows()
        return self.rows


@dataclass(frozen=True, slots=True, eq=False)
class EncodedRows:
    """Some of the rows of an input, from `first` on."""

    source: EncoderInput
    first: int
    count: int

    def values(self) -> list[Floats]:
        if self.source.rows is None:
            raise RequestError("an image of the prompt was not encoded")
        return [rows[self.first : self.first + self.count] for rows in self.source.rows]


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddedPart:
    """Consecutive tokens of a prompt whose embeddings come from outside.

    Args:
        start: Position of the first of them.
        rows: Their embeddings, (tokens, hidden); after these, rows that are added between layers. Or where these come
            from.
        digest: Identifies what they were made of.
        sees_all: Whether they see each other in both directions. Then they run in one step.
        reach: How many tokens back each of them sees then, itself included; 0: all.
    """

    start: int
    rows: Sequence[Floats] | EncodedRows
    digest: bytes
    sees_all: bool = False
    reach: int = 0

    @property
    def end(self) -> int:
        return self.start + (self.rows.count if isinstance(self.rows, EncodedRows) else len(self.rows[0]))

    def values(self) -> Sequence[Floats]:
        return self.rows.values() if isinstance(self.rows, EncodedRows) else self.rows

    def keys(self) -> list[int]:
        """A number for each row in the place of its token, for the cache: 31 bits of a hash each.

        >>> part = EmbeddedPart(0, [np.zeros((3, 4), np.float32)], b"")
        >>> len(part.keys()), min(part.keys()) >= FIRST_KEY
        (3, True)
        """
        count = self.end - self.start
        blocks = (blake2b(self.digest + bytes(str(i), "ascii")).digest() for i in range(-(-count // 16)))
        numbers: list[int] = (np.frombuffer(b"".join(blocks), np.uint32)[:count] | np.uint32(FIRST_KEY)).tolist()
        return numbers


class EmbeddedPrompt:
    """The parts of a prompt.

    Args:
        parts: In the order of their positions.
        tokens: The prompt, placeholders included.
        axes: (axes, tokens) positions for ropes that have axes; None: those of the tokens.
    """

    def __init__(self, parts: Sequence[EmbeddedPart], tokens: Sequence[int], axes: Ints | None = None) -> None:
        self.parts, self.axes, self.length = parts, axes, len(tokens)
        self.keys = list(tokens)
        ends = [0, *(part.end for part in parts)]
        if any(part.start < end for part, end in zip(parts, ends, strict=False)) or ends[-1] > len(tokens):
            raise RequestError("parts of a prompt that are embeddings must follow each other inside it")
        for part in parts:
            self.keys[part.start : part.end] = part.keys()

    def pending(self, first: int = 0) -> list[EncoderInput]:
        """What was not encoded yet and is needed to run the prompt from `first` on."""
        parts = [part for part in self.parts if part.end > first]
        sources = [part.rows.source for part in parts if isinstance(part.rows, EncodedRows)]
        return [source for source in dict.fromkeys(sources) if source.rows is None]

    def check(self, max_step: int) -> None:
        """Refuse parts that no step can run as a whole."""
        longest = max((part.end - part.start for part in self.parts if part.sees_all), default=0)
        if 2 * longest > max_step:
            raise RequestError(
                f"an image of {longest} tokens runs in one step: max_batched_tokens must be at least {2 * longest}"
            )

    def keyed(self, first: int, tokens: Sequence[int]) -> list[int]:
        """What the cache calls the tokens from a position on."""
        own = self.keys[first : first + len(tokens)]
        return [*own, *tokens[len(own) :]]

    def uncut(self, first: int, count: int) -> int:
        """At most `count` tokens from `first` on that end in no part that sees all of itself."""
        for part in self.parts:
            if part.sees_all and part.start < first + count < part.end:
                return max(part.start - first, 0)
        return count

    def needed(self, first: int) -> int:
        """Tokens from `first` on that must run together."""
        return max(
            (part.end - first for part in self.parts if part.sees_all and part.start <= first < part.end), default=1
        )

    def row_inputs(self, first: int, count: int) -> RowInputs:
        """What a row with so many tokens brings."""
        inserted = tuple(self._inserted(first, first + count))
        axes = None if self.axes is None else self._axes(self.axes, first, count)
        spans = self._spans[first : first + count] if self._spans is not None else None
        if spans is not None and len(spans) < count:
            own = np.arange(first + len(spans), first + count)
            spans = np.concatenate([spans, np.stack([own, own + 1], axis=1)])
        return RowInputs(inserted, axes, spans)

    def _inserted(self, first: int, end: int) -> Iterator[tuple[int, int, Floats]]:
        for part in self.parts:
            low, high = max(first, part.start), min(end, part.end)
            if low < high:
                for number, rows in enumerate(part.values()):
                    yield number, low - first, rows[low - part.start : high - part.start]

    def _axes(self, axes: Ints, first: int, count: int) -> Ints:
        """Tokens after the prompt count on from its largest position."""
        after = np.arange(max(first, self.length), first + count) - self.length + int(axes.max(initial=-1)) + 1
        return np.concatenate([axes[:, first : first + count], np.repeat(after[None], len(axes), axis=0)], axis=1)

    @cached_property
    def _spans(self) -> Longs | None:
        if not any(part.sees_all for part in self.parts):
            return None
        own = np.arange(self.length, dtype=np.int64)
        spans = np.stack([own, own + 1], axis=1)
        for part in self.parts:
            if part.sees_all:
                spans[part.start : part.end] = part.start, part.end
                if part.reach:
                    spans[part.start : part.end, 0] = np.maximum(
                        own[part.start : part.end] - part.reach + 1, part.start
                    )
        return spans
