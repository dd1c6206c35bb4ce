"""Counts of pages and events."""

from __future__ import annotations

from dataclasses import dataclass


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

    @property
    def hit_rate(self) -> float:
        return self.hits / self.lookups if self.lookups else 0.0

    @property
    def savings(self) -> float:
        """The fraction of the f32 bytes that is saved."""
        return 1 - self.nbytes / self.f32_bytes if self.f32_bytes else 0.0
