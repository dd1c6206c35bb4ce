"""Guesses from text that was there before: what followed the last tokens the time before.

Looked up are the text of the request itself, and what other requests of its namespace have written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from ..request import Generation
from .drafter import Prospect

SIZES = (4, 2)  # tokens that must match, the most first
MAX_MATCH = 16  # tokens that are compared to tell how good a match is
POOL_TOKENS = 200_000  # of all texts that are kept
LEAST_POOLED = 16  # tokens of a text that is worth keeping

Key = tuple[int, ...]


class NgramIndex:
    """Where each run of a few tokens was last, in a text that grows.

    >>> index = NgramIndex()
    >>> text = [1, 2, 3, 4, 5, 1, 2]
    >>> index.update(text)
    >>> index.find(text)
    2
    """

    def __init__(self) -> None:
        self.ends: dict[Key, int] = {}  # the token after each run
        self._num_tokens = 0  # that were looked at

    def update(self, text: Sequence[int]) -> None:
        """Take in what is new in the text: runs that something follows."""
        for end in range(max(self._num_tokens, 1), len(text)):
            for size in SIZES:
                if size <= end:
                    self.ends[tuple(text[end - size : end])] = end
        self._num_tokens = max(self._num_tokens, len(text))

    def find(self, text: Sequence[int]) -> int | None:
        """The place after the last occurrence of the text's end."""
        for size in SIZES:
            if size <= len(text) and (end := self.ends.get(tuple(text[-size:]))) is not None:
                return end
        return None


class TextPool:
    """What requests have written, by namespace, and where each run of a few tokens is in it.

    Args:
        max_tokens: Tokens that are kept; the oldest texts are dropped.
    """

    def __init__(self, max_tokens: int = POOL_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._texts: deque[tuple[str, list[int]]] = deque()
        self._places: dict[tuple[str, Key], tuple[list[int], int]] = {}
        self._num_tokens = 0

    def add(self, namespace: str, text: list[int]) -> None:
        """Keep a text."""
        text = text[-self._max_tokens :]
        if len(text) < LEAST_POOLED:
            return
        self._texts.append((namespace, text))
        self._num_tokens += len(text)
        for key, end in _runs(text).items():
            self._places[namespace, key] = text, end
        while self._num_tokens > self._max_tokens:
            self._drop_oldest()

    def find(self, namespace: str, text: Sequence[int]) -> tuple[list[int], int] | None:
        """A text that contains the end of this one, and the place after it."""
        for size in SIZES:
            if size <= len(text) and (place := self._places.get((namespace, tuple(text[-size:])))):
                return place
        return None

    def _drop_oldest(self) -> None:
        namespace, text = self._texts.popleft()
        self._num_tokens -= len(text)
        for key in _runs(text):
            if self._places.get((namespace, key), (None, 0))[0] is text:
                del self._places[namespace, key]


class LookupDrafter:
    """Guesses that the text goes on as it did where its last tokens occurred before.

    Args:
        max_tokens: Most tokens of a draft.
        pool: Texts of other requests.
    """

    def __init__(self, max_tokens: int = 8, pool: TextPool | None = None) -> None:
        self.max_tokens = max_tokens
        self._pool = pool or TextPool()
        self._indices: WeakKeyDictionary[Generation, NgramIndex] = WeakKeyDictionary()

    def prospect(self, request: Generation) -> Prospect:
        found = self._find(request)
        if found is None:
            return Prospect(0, "")
        source, place = found
        return Prospect(self.max_tokens, _kind(_match_length(source, place, request.tokens)))

    def seconds(self, length: int) -> float:
        return 0.0

    def propose(self, requests: Sequence[Generation], lengths: Sequence[int]) -> list[Sequence[int]]:
        return [self._continuation(request, length) for request, length in zip(requests, lengths, strict=True)]

    def finish(self, request: Generation) -> None:
        self._indices.pop(request, None)
        self._pool.add(request.cache_namespace, request.output_tokens)

    def _find(self, request: Generation) -> tuple[list[int], int] | None:
        index = self._indices.get(request)
        if index is None:
            index = self._indices[request] = NgramIndex()
        index.update(request.tokens)
        own = index.find(request.tokens)
        if own is not None and _match_length(request.tokens, own, request.tokens) >= SIZES[0]:
            return request.tokens, own
        pooled = self._pool.find(request.cache_namespace, request.tokens)
        if pooled is not None and (own is None or _match_length(*pooled, request.tokens) >= SIZES[0]):
            return pooled
        return None if own is None else (request.tokens, own)

    def _continuation(self, request: Generation, length: int) -> list[int]:
        found = self._find(request)
        if found is None:
            return []
        source, place = found
        if source is not request.tokens:
            return source[place : place + length]
        draft = source[place : place + length]
        period = len(source) - place  # a text that repeats itself goes on doing so
        while len(draft) < length:
            draft.append(draft[len(draft) - period])
        return draft


def _runs(text: Sequence[int]) -> dict[Key, int]:
    index = NgramIndex()
    index.update(text)
    return index.ends


def _match_length(source: Sequence[int], place: int, text: Sequence[int]) -> int:
    """How many tokens before a place are those at the end of the text."""
    length, most = 0, min(place, len(text), MAX_MATCH)
    while length < most and source[place - 1 - length] == text[-1 - length]:
        length += 1
    return length


def _kind(match_length: int) -> str:
    """Long matches are better guesses: each class has a rate of its own.

    >>> _kind(2), _kind(9)
    ('match of 2', 'match of 8')
    """
    return f"match of {max(size for size in (2, 3, 4, 6, 8, MAX_MATCH) if size <= max(2, match_length))}"
