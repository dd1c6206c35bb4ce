"""Sequences that are kept for waiting requests whose leaders have moved on (see sharing.py).

A request that has finished still has what its followers wait for. With recurrent layers, one that goes on has it no
longer: they get a snapshot. A donor is released when nobody follows its leader any more, or pages are short.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..cache.cache import Cache
from .request import Request


class Donor(NamedTuple):
    """The first `length` tokens of a request, in a sequence of the cache."""

    request: Request
    sequence: int
    length: int


class Donors:
    """Sources that belong to no active request."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._sources: list[Donor] = []

    def __iter__(self) -> Iterator[Donor]:
        return iter(self._sources)

    def retire(self, request: Request) -> None:
        """Keep the sequence of a request that has finished."""
        self._sources.append(Donor(request, request.sequence, request.num_computed))

    def snapshot(self, request: Request) -> None:
        """Keep what an active request has computed."""
        sequence, length = request.sequence, request.num_computed
        if all((source.request, source.length) != (request, length) for source in self._sources):
            self._sources.append(Donor(request, self._cache.fork(sequence, length), length))

    def prune(self, waiting: Iterable[Request]) -> None:
        """Release those that nobody follows."""
        if self._sources:
            leaders = {request.leader for request in waiting}
            self._release([source for source in self._sources if source.request not in leaders])

    def release(self) -> bool:
        """Release all. Were there any?"""
        return self._release([*self._sources])

    def _release(self, sources: list[Donor]) -> bool:
        for source in sources:
            self._cache.free(source.sequence)
            self._sources.remove(source)
        return bool(sources)
