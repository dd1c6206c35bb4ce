"""Requests whose texts begin alike: one of them computes the common prefix, the others fork its sequence.

A waiting request follows an active one, its leader, that is about to compute at least `MIN_PAGES` pages of its text
which the cache does not have; within a batch that was submitted together, `MIN_TOKENS` tokens. It is admitted when they
are computed. A prefix need not end with a page: the two sequences share its last page until one of them writes to it.

A request never follows one that would run after it, and nobody waits for a request that has finished: a follower waits
no longer than its prefix takes to compute. Recurrent layers have a state only where a step has ended: with them the
leader pauses at the end of the prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..cache.cache import Cache
from .donors import Donor
from .request import Request

MIN_PAGES = 2
MIN_TOKENS = 8


def is_following(request: Request, active: Iterable[Request], cache: Cache) -> bool:
    """Whether a waiting request should wait for an active one."""
    if request.leader is not None and _is_ahead(request.leader, request.shared):
        return True
    for leader in active:
        is_reading = leader.num_remaining > 1 or leader.num_in_flight > 1
        if is_reading and leader.level >= request.level and _follow(request, leader, cache):
            return True
    return False


def begin(request: Request, sources: Iterable[Donor], cache: Cache) -> int:
    """A sequence with as much of a text as the cache knows, or one of these sources has."""
    best, length = None, cache.lookup(request.reusable(), request.cache_namespace)
    for source in sources:
        count = _forkable(request, source)
        if count > length and cache.can_fork(source.sequence, count):
            best, length = source, count
    if best is None:
        return cache.new(request.reusable(), request.cache_namespace)
    if request.scores is not None and best.request.scores is not None:
        request.scores.copy(best.request.scores, length)
    return cache.fork(best.sequence, length)


def _forkable(request: Request, source: Donor) -> int:
    count = min(_shared(request, source.request), source.length)
    scores = source.request.scores
    return min(count, max(scores.num_scored, len(request.reusable()))) if scores is not None else count


def _follow(request: Request, leader: Request, cache: Cache) -> bool:
    """Follow a request, if that saves enough."""
    is_mate = request.batch is not None and request.batch is leader.batch
    least = MIN_TOKENS if is_mate else MIN_PAGES * cache.page_tokens
    shared = min(_shared(request, leader), _end(leader))
    if cache.wants_page_ends:
        tail = shared % cache.page_tokens
        shared -= 0 if is_mate and tail >= MIN_TOKENS else tail
    if shared - leader.num_computed < least or not _is_ahead(leader, shared):
        return False
    if shared - cache.lookup(request.reusable(), request.cache_namespace) < least:
        return False
    request.leader, request.shared = leader, shared
    if cache.wants_page_ends:
        leader.pauses.add(shared)  # where it has a state
    return True


def _is_ahead(leader: Request, shared: int) -> bool:
    """Whether a request is active and about to compute these tokens."""
    return bool(leader.sequence) and not leader.is_finished and leader.num_computed < shared <= _end(leader)


def _end(leader: Request) -> int:
    """How many tokens a request will have computed before it gets a new one."""
    return leader.num_computed + leader.num_in_flight + leader.num_remaining


def _shared(request: Request, leader: Request) -> int:
    """How many tokens a request need not run if another one does."""
    mine, other = request.keys, leader.keys
    if mine[:MIN_TOKENS] != other[:MIN_TOKENS] or request.cache_namespace != leader.cache_namespace:
        return 0
    return request.shareable(common_prefix(mine, other), leader)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of tokens that two texts begin with alike.

    >>> common_prefix([1, 2, 3, 4], [1, 2, 5])
    2
    """
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
