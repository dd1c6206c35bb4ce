"""Prompts that begin alike and come together: the first computes what they share, the others follow.

A request that waits follows an active one that is about to compute at least `MIN_PAGES` pages of its prompt which the
cache does not have. It is admitted when they are there. Nobody follows a request that would run after itself, and when
the leader is gone nobody follows it: so a follower waits no longer than it would take to compute the pages itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..cache.cache import Cache
from .request import Request

MIN_PAGES = 2


def is_following(request: Request, active: Iterable[Request], cache: Cache) -> bool:
    """Whether a request that waits had better wait for an active one."""
    if request.leader is not None and _is_ahead(request.leader, request.shared):
        return True
    request.leader = None
    least = MIN_PAGES * cache.page_tokens
    beginning = request.tokens[:least]
    for leader in active:
        is_reading = leader.num_remaining > 1 or leader.num_in_flight > 1
        if is_reading and leader.level >= request.level and leader.tokens[:least] == beginning:
            shared = _shared_pages(request, leader, cache.page_tokens) * cache.page_tokens
            if _is_ahead(leader, shared) and _follow(request, leader, shared, cache):
                return True
    return False


def _follow(request: Request, leader: Request, shared: int, cache: Cache) -> bool:
    """Follow, if that saves enough."""
    found = cache.lookup(request.reusable(), request.cache_namespace)
    if shared - max(found, leader.num_computed) < MIN_PAGES * cache.page_tokens:
        return False
    request.leader, request.shared = leader, shared
    if cache.wants_page_ends:
        leader.pauses.add(shared)  # for a snapshot of the state
    return True


def _is_ahead(leader: Request, shared: int) -> bool:
    """Whether a request is active and about to compute these tokens."""
    end = leader.num_computed + leader.num_in_flight + leader.num_remaining
    return bool(leader.sequence) and leader.num_computed < shared <= end


def _shared_pages(request: Request, leader: Request, page_tokens: int) -> int:
    """The full pages that two texts begin with alike."""
    if request.cache_namespace != leader.cache_namespace:
        return 0
    mine, other = request.reusable(), leader.tokens
    low, high = 0, min(len(mine), len(other)) // page_tokens
    while low < high:
        middle = (low + high + 1) // 2
        start, end = low * page_tokens, middle * page_tokens
        if mine[start:end] == other[start:end]:
            low = middle
        else:
            high = middle - 1
    return low
