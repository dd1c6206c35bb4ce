"""What may follow depends on the tokens so far: DRY, n-grams that may not come twice, texts that may not occur.

Each class is told the tokens of an output as they come. What it computes for the next token is kept until then.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np

from ..arrays import Floats, Ints
from ..ops.sampler_chain import SamplerChain

MAX_EXPONENT = 80.0  # natural logarithm of the largest penalty: float32 ends at 88


class Bans(Protocol):
    """Tokens that may not come next."""

    def add(self, token: int) -> None:
        """A token of the output."""
        ...

    def banned(self) -> set[int]:
        """Those that may not follow."""
        ...


class RepeatPenalty:
    """DRY: tokens that would extend a repetition, the more the longer that is.

    After each token it knows for every earlier position how many tokens that end there are the same as those that end
    the text. A token at which repetitions begin anew, a breaker, is part of none.

    >>> found = RepeatPenalty([1, 2, 3, 1, 2], SamplerChain(dry_multiplier=1, dry_base=2), frozenset())
    >>> [part.tolist() for part in found.penalties()]
    [[3], [1.0]]
    """

    def __init__(self, tokens: Sequence[int], chain: SamplerChain, breakers: frozenset[int]) -> None:
        self._chain, self._breakers = chain, breakers
        self._tokens = np.array([*tokens, 0], np.int32)  # never empty, so that it can be doubled
        self._count = len(tokens)
        self._lengths = self._first_lengths()

    def add(self, token: int) -> None:
        """A token of the output."""
        if self._count == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
        before = self._tokens[: self._count]
        if token in self._breakers:
            lengths = np.zeros(self._count, np.int32)
        else:
            lengths = np.where(before == token, np.append(0, self._lengths).astype(np.int32) + 1, 0)[: self._count]
        self._tokens[self._count] = token
        self._count += 1
        self._lengths = lengths.astype(np.int32)

    def penalties(self) -> tuple[Ints, Floats] | None:
        """Tokens, and what is subtracted from their logits."""
        chain = self._chain
        first = 0 if chain.dry_penalty_last_n < 0 else max(0, self._count - chain.dry_penalty_last_n)
        places = first + np.flatnonzero(self._lengths[first:] >= max(1, chain.dry_allowed_length))
        if not len(places):
            return None
        lengths = np.minimum(self._lengths[places], places - first + 1)  # not beyond the window
        keep = lengths >= chain.dry_allowed_length
        ids, inverse = np.unique(self._tokens[places[keep] + 1], return_inverse=True)
        longest = np.zeros(len(ids), np.int32)
        np.maximum.at(longest, inverse, lengths[keep])
        exponents = np.minimum((longest - chain.dry_allowed_length) * np.log(chain.dry_base), MAX_EXPONENT)
        amounts = np.minimum(chain.dry_multiplier * np.exp(exponents), 1e30).astype(np.float32)
        return (ids, amounts) if len(ids) else None

    def _first_lengths(self) -> Ints:
        """For all positions before the last one, how long the repetition is that ends there."""
        tokens, end = self._tokens[: self._count], self._count - 1
        lengths = np.zeros(max(end, 0), np.int32)
        ends = np.arange(len(lengths))
        length = 0
        while len(ends) and int(tokens[end - length]) not in self._breakers:
            ends = ends[(ends >= length)]
            ends = ends[tokens[ends - length] == tokens[end - length]]
            length += 1
            lengths[ends] = length
        return lengths


class NgramBans:
    """No `size` tokens in a row come twice.

    >>> bans = NgramBans([1, 2, 3, 1, 2], 3)
    >>> bans.banned()
    {3}
    """

    def __init__(self, tokens: Sequence[int], size: int) -> None:
        self._size, self._last = size, list[int]()
        self._followers: dict[tuple[int, ...], set[int]] = {}
        for token in tokens:
            self.add(token)

    def add(self, token: int) -> None:
        if len(self._last) == self._size - 1:
            self._followers.setdefault(tuple(self._last), set()).add(token)
        self._last = [*self._last, token][-(self._size - 1) :] if self._size > 1 else []

    def banned(self) -> set[int]:
        return self._followers.get(tuple(self._last), set()) if len(self._last) == self._size - 1 else set()


class TokenIndex:
    """The bytes of all tokens of a vocabulary: which contain a text, which begin with one.

    >>> index = TokenIndex([b"a", b"ab", b"b", b""])
    >>> index.containing(b"b"), index.beginning(b"a")
    ({1, 2}, {0, 1})
    """

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens
        self._order = sorted(range(len(tokens)), key=tokens.__getitem__)
        self._sorted = [tokens[token] for token in self._order]
        self._joined = b"".join(self._sorted)
        self._ends = [*accumulate(map(len, self._sorted))]  # of each, in all of them joined

    def containing(self, text: bytes) -> set[int]:
        found, at = set[int](), self._joined.find(text)
        while at >= 0:
            place = bisect_right(self._ends, at)
            is_inside = at + len(text) <= self._ends[place]
            if is_inside:
                found.add(self._order[place])
            at = self._joined.find(text, self._ends[place] if is_inside else at + 1)
        return found

    def beginning(self, text: bytes) -> set[int]:
        first = bisect_left(self._sorted, text)
        end = bisect_left(self._sorted, True, first, key=lambda data: data[: len(text)] > text)
        return set(self._order[first:end])


class TextBans:
    """Texts that do not occur in the output, however they are cut into tokens.

    >>> bans = TextBans(TokenIndex([b"c", b"at", b"a", b"cat", b"t"]), [b"cat"])
    >>> sorted(bans.banned()), bans.add(0), sorted(bans.banned())
    ([3], None, [1, 3])
    """

    def __init__(self, index: TokenIndex, texts: Sequence[bytes]) -> None:
        self._index = index
        self._never = set[int]().union(*map(index.containing, texts))
        self._tail, self._room = b"", max(map(len, texts)) - 1
        self._rests: dict[bytes, set[bytes]] = {}  # of texts, by how they begin
        for text in texts:
            for length in range(1, len(text)):
                self._rests.setdefault(text[:length], set()).add(text[length:])
        self._endings: dict[bytes, set[int]] = {}  # tokens that complete a text that has begun

    def add(self, token: int) -> None:
        if self._room:
            self._tail = (self._tail + self._index.tokens[token])[-self._room :]

    def banned(self) -> set[int]:
        """Those that would complete a text."""
        begun = [self._rests.get(self._tail[at:], ()) for at in range(len(self._tail))]
        return self._never.union(*(self._ending(rest) for rests in begun for rest in rests))

    def _ending(self, rest: bytes) -> set[int]:
        if rest not in self._endings:
            self._endings[rest] = self._index.beginning(rest)
        return self._endings[rest]


MakeBans = Callable[[Sequence[int]], Bans]  # of the tokens of a prompt
