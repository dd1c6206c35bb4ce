"""Counts of pages and events."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import NamedTuple

DIVERGENCE_BUCKETS = (0, 64, 256, 1024, 4096, 16384, 65536)  # tokens


@dataclass(frozen=True, slots=True)
class PageCounts:
    """Pages of one group, or of all groups."""

    total: int
    free: int  # total = free + used + cached
    used: int
    cached: int
    shared: int = 0  # used by more than one sequence
    pinned: int = 0  # used or cached, and not to be evicted
    references: int = 0  # pages that the sequences would use if none was shared
    evictions: int = 0


class PrefixDivergence(NamedTuple):
    """Where prompts left the cached text that they began like: prompts by that position, in tokens.

    A prompt that goes on where a cached text ends is not counted, only one that differs from how it goes on.

    >>> PrefixDivergence().added(0).added(100)
    PrefixDivergence(counts=(1, 0, 1, 0, 0, 0, 0, 0), tokens=100)
    """

    counts: tuple[int, ...] = (0,) * (len(DIVERGENCE_BUCKETS) + 1)  # up to each of the buckets, and beyond the last
    tokens: int = 0  # the sum of all positions

    def added(self, position: int) -> PrefixDivergence:
        counts = [*self.counts]
        counts[bisect_left(DIVERGENCE_BUCKETS, position)] += 1
        return PrefixDivergence(tuple(counts), self.tokens + position)


@dataclass(frozen=True, slots=True)
class CacheStats(PageCounts):
    """Pages of all groups now, and events since the start. A slot of the recurrent group counts as a page.

    >>> CacheStats(total=8, free=2, used=4, cached=2, nbytes=60, f32_bytes=240).savings
    0.75
    """

    lookups: int = 0  # full pages of prompts that were looked up
    hits: int = 0
    copies: int = 0  # copy-on-write
    nbytes: int = 0  # of the pages that hold something
    f32_bytes: int = 0  # that the same pages would take in f32
    groups: tuple[PageCounts, ...] = ()
    divergence: PrefixDivergence = field(default_factory=PrefixDivergence)

    @property
    def hit_rate(self) -> float:
        return self.hits / self.lookups if self.lookups else 0.0

    @property
    def savings(self) -> float:
        """The fraction of the f32 bytes that is saved."""
        return 1 - self.nbytes / self.f32_bytes if self.f32_bytes else 0.0
