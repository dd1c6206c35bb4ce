"""The scheduler: which requests run in the next step, with how many tokens, and who gives way when pages run out.

Active requests hold pages of the cache, waiting ones hold none. Both lines are in the order of arrival, and every
active request came before every waiting one: the one that gives way is the youngest active one, and it goes to the
front of the waiting line. So the oldest always gets on, and each has its turn. What a request has written stays in its
tokens; when it is taken up again, they are run like a prompt, as far as the cache does not know them.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter

from ..cache.kv import KVCache
from .contract import Chunk
from .request import Request, Scoring

MOST_ROWS = 128  # of logits for one text that is scored, in one step


class Scheduler:
    """Two lines of requests over one cache."""

    def __init__(self, cache: KVCache, most_tokens: int, most_wanted: int, most_requests: int) -> None:
        self.active: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.most_tokens = most_tokens
        self.most_wanted = most_wanted
        self.most_requests = min(most_requests, most_tokens, most_wanted)
        self.preemptions = 0
        self._cache = cache
        self._page_tokens = cache.page_tokens
        self._wait_for = 0  # available pages below which the first of the waiting line need not be tried again

    def schedule(self) -> tuple[list[Request], list[Chunk]]:
        """The requests of the next step and their tokens; texts that are scored come last."""
        if len(self.active) == 1 and not self.waiting:
            alone = self.active[0]
            if alone.left == 1 and not alone.siblings and not isinstance(alone, Scoring) and self._cache.available > 1:
                return [alone], [Chunk(alone.sequence, alone.tokens[-1:], 1)]  # the usual step, quickly
        budget = _Budget(self.most_tokens, self.most_wanted, self.active)
        counts = [budget.take(request) for request in self.active]
        needed = sum(map(self._pages_for, self.active, counts))
        while needed > self._cache.available and len(self.active) > 1:
            needed -= self._pages_for(self.active[-1], counts.pop())
            self.preempt()
        while self.waiting and budget.tokens and budget.rows and self._take_up(needed):
            counts.append(budget.take_new(self.active[-1]))
            needed += self._pages_for(self.active[-1], counts[-1])
        return self._chunks(counts)

    def preempt(self) -> None:
        """The youngest active request gives its pages back, to go on later."""
        request = self.active.pop()
        self._give_back(request)
        self.waiting.appendleft(request)
        self._wait_for = 0
        self.preemptions += 1

    def wait_for_more(self) -> None:
        """Take up no other request before there are more pages than now."""
        self._wait_for = self._cache.available + 1

    def split(self, leader: Request) -> None:
        """The prompt of several answers was run: from here on they are requests of their own that share its pages."""
        members = leader.members()
        sequences = [leader.sequence, *(self._cache.fork(leader.sequence) for _ in members[1:])]
        leader.sequence = 0  # it may have been cancelled, and the others not
        for member, sequence in zip(members, sequences, strict=True):
            member.follow(leader, sequence)
        leader.siblings = []
        place = self.active.index(leader)
        self.active[place : place + 1] = members

    def sweep(self) -> None:
        """Let go of the requests that are over."""
        for request in self.active:
            if request.is_over:
                self._give_back(request)
        self.active = [request for request in self.active if request.sequence]
        if any(request.is_over for request in self.waiting):
            self.waiting = deque(request for request in self.waiting if not request.is_over)
            self._wait_for = 0

    def _take_up(self, needed: int) -> bool:
        """Make the first of the waiting line active, if its prompt fits beside what this step needs."""
        request, available = self.waiting[0], self._cache.available
        if self._width(request) + sum(map(self._width, self.active)) > self.most_requests:
            return False
        if self.active and available < self._wait_for:
            return False
        request.sequence = self._cache.new(request.known())
        request.done = self._cache.length(request.sequence)
        needed += len(self.active) + self._pages_for(request, request.left + 1)  # one to spare for each of the others
        if self.active and needed > self._cache.available:  # the only one is tried anyway: nobody could make room
            self._wait_for = available + needed - self._cache.available
            self._give_back(request)
            return False
        if not request.started:
            request.started, request.cached_tokens = perf_counter(), request.done
        self.active.append(self.waiting.popleft())
        self._wait_for = 0
        return True

    def _give_back(self, request: Request) -> None:
        self._cache.free(request.sequence)
        request.sequence = request.done = 0
        request.shares_page = False

    def _pages_for(self, request: Request, count: int) -> int:
        """Pages that a request takes from the cache to run its next tokens."""
        if not count:
            return 0
        done, size = request.done, self._page_tokens
        copies = request.shares_page and done % size > 0
        return (done + count + size - 1) // size - (done + size - 1) // size + copies

    def _chunks(self, counts: list[int]) -> tuple[list[Request], list[Chunk]]:
        work = [(request, count) for request, count in zip(self.active, counts, strict=True) if count]
        work.sort(key=lambda one: isinstance(one[0], Scoring))
        chunks = [
            Chunk(request.sequence, request.tokens[request.done : request.done + count], request.wanted(count))
            for request, count in work
        ]
        return [request for request, _ in work], chunks

    @staticmethod
    def _width(request: Request) -> int:
        """Places in the batch that a request takes when its prompt was run."""
        return 1 + len(request.siblings)


class _Budget:
    """What is left of a step. A row of logits is set aside for each active request, and a token if it needs no more."""

    __slots__ = ("rows", "tokens")

    def __init__(self, tokens: int, rows: int, active: list[Request]) -> None:
        self.tokens = tokens - sum(request.left == 1 for request in active)
        self.rows = rows - len(active)

    def take(self, request: Request) -> int:
        """The number of tokens that a request may run."""
        left = request.left
        if left == 1:
            return 1
        count = min(left, self.tokens)
        if isinstance(request, Scoring) and count:
            count = min(count, self.rows + 1, MOST_ROWS)
            self.rows -= count - 1
        self.tokens -= count
        return count

    def take_new(self, request: Request) -> int:
        """The same for one for which nothing was set aside."""
        self.rows -= 1
        self.tokens -= request.left == 1
        return self.take(request)
