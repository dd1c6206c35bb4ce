"""The scheduler: which requests run in the next step, with how many tokens, and who is preempted when pages run out.

Active requests hold pages of the cache, waiting ones hold none. Both queues are in the order of arrival, and every
active request came before every waiting one: the youngest active one is preempted, and it goes to the front of the
waiting queue. So the oldest always gets on, and each comes to run. What a request has written stays in its tokens; when
it is admitted again, they are run like a prompt, as far as the cache does not know them.
"""

from __future__ import annotations

from collections import deque
from operator import add
from time import perf_counter

from ..cache.cache import Cache
from ..devices.batch import Chunk
from .request import Generation, Request, Step

MAX_ROWS = 128  # for one request, in one step

Pages = tuple[int, ...]  # by group of layers


class Scheduler:
    """Two queues of requests over one cache."""

    def __init__(self, cache: Cache, max_batched_tokens: int, max_logits: int, max_seqs: int) -> None:
        self.active: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.max_batched_tokens = max_batched_tokens
        self.max_logits = max_logits
        self.max_seqs = min(max_seqs, max_batched_tokens, max_logits)
        self.preemptions = 0
        self._cache = cache
        self._none = (0,) * len(cache.available)
        self._wait_for = self._none  # available pages below which the first that waits need not be tried again
        self._output = "logits"  # of the last step

    def schedule(self) -> Step:
        """The requests of the next step and their tokens."""
        budget = _Budget(self)
        counts = [budget.take(request) for request in self.active]
        needed = self._sum(counts)
        while not self._cache.fits(needed) and len(self.active) > 1:
            counts.pop()
            self.preempt()
            needed = self._sum(counts)
        while self.waiting and budget.tokens and budget.rows and self._admit(needed):
            counts.append(budget.take_new(self.active[-1]))
            needed = _plus(needed, self._needed(self.active[-1], counts[-1]))
        return self._step(counts)

    def preempt(self) -> None:
        """The youngest active request releases its pages, to go on later."""
        request = self.active.pop()
        self._release(request)
        self.waiting.appendleft(request)
        self._wait_for = self._none
        self.preemptions += 1

    def wait_for_more(self) -> None:
        """Admit no other request before there are more pages than now."""
        self._wait_for = tuple(pages + 1 for pages in self._cache.available)

    def split(self, leader: Generation) -> None:
        """The prompt of several outputs was run: from here on they are requests of their own that share its pages."""
        members = leader.members()
        sequences = [leader.sequence, *(self._cache.fork(leader.sequence) for _ in members[1:])]
        leader.sequence = 0  # it may have been cancelled, and the others not
        for member, sequence in zip(members, sequences, strict=True):
            member.follow(leader, sequence)
        leader.siblings = []
        place = self.active.index(leader)
        self.active[place : place + 1] = members

    def drop_finished(self) -> None:
        for request in self.active:
            if request.is_finished:
                self._release(request)
        self.active = [request for request in self.active if request.sequence]
        if any(request.is_finished for request in self.waiting):
            self.waiting = deque(request for request in self.waiting if not request.is_finished)
            self._wait_for = self._none

    def output(self) -> str:
        """What the next step gives. Where requests want different things, they come by turns."""
        wanted = {request.output for request in self.active or [*self.waiting][:1]}
        if len(wanted) > 1:
            wanted.discard(self._output)
        self._output = wanted.pop() if wanted else "logits"
        return self._output

    def page_end(self, request: Request, count: int) -> int:
        """Fewer tokens of a prompt where snapshots of its state are kept at page ends: up to the last of them."""
        if count > 1 and self._cache.wants_page_ends:
            end = (request.num_computed + count) // self._cache.page_tokens * self._cache.page_tokens
            return end - request.num_computed if end > request.num_computed else count
        return count

    def _admit(self, needed: Pages) -> bool:
        """Make the first that waits active, if its prompt fits beside what this step needs."""
        request, available = self.waiting[0], self._cache.available
        if _width(request) + sum(map(_width, self.active)) > self.max_seqs:
            return False
        if self.active and not self._cache.fits(self._wait_for):
            return False
        request.sequence = self._cache.new(request.reusable(), request.cache_namespace)
        request.num_computed = self._cache.length(request.sequence)
        whole = _plus(needed, self._needed(request, request.num_remaining + 1))
        whole = tuple(pages + len(self.active) for pages in whole)  # one to spare for each of the others
        if self.active and not self._cache.fits(whole):  # the only one is tried anyway: nobody could make room
            self._wait_for = tuple(map(lambda a, w, now: a + w - now, available, whole, self._cache.available))
            self._release(request)
            return False
        if not request.start_time:
            request.start_time, request.cached_tokens = perf_counter(), request.num_computed
        self.active.append(self.waiting.popleft())
        self._wait_for = self._none
        return True

    def _release(self, request: Request) -> None:
        self._cache.free(request.sequence)
        request.sequence = request.num_computed = 0

    def _needed(self, request: Request, count: int) -> Pages:
        return self._cache.needed(request.sequence, count) if count else self._none

    def _sum(self, counts: list[int]) -> Pages:
        total = self._none
        for request, count in zip(self.active, counts, strict=True):
            total = _plus(total, self._needed(request, count))
        return total

    def _step(self, counts: list[int]) -> Step:
        step = Step(output=self._output)
        row = 0
        for request, count in zip(self.active, counts, strict=True):
            if not count:
                continue
            first, rows = request.num_computed, request.num_logits(count)
            step.requests.append(request)
            step.chunks.append(Chunk(request.sequence, request.tokens[first : first + count], rows))
            if rows:
                request.ask(step, row, rows)
                row += rows
        return step


def _plus(a: Pages, b: Pages) -> Pages:
    return tuple(map(add, a, b))


def _width(request: Request) -> int:
    """Places in the batch that a request takes when its prompt was run."""
    return 1 + len(request.siblings)


class _Budget:
    """What is left of a step. A row is set aside for each active request, and a token if it needs no more."""

    __slots__ = ("_of", "_output", "rows", "tokens")

    def __init__(self, of: Scheduler) -> None:
        self._of, self._output = of, of.output()
        self.tokens = of.max_batched_tokens - sum(request.num_remaining == 1 for request in of.active)
        self.rows = of.max_logits - len(of.active)

    def take(self, request: Request) -> int:
        """The number of tokens that a request may run."""
        if request.output != self._output:
            return 0
        remaining = request.num_remaining
        if remaining == 1:
            return 1
        count = self._of.page_end(request, min(remaining, self.tokens))
        rows = request.num_logits(count)
        if rows > 1:
            count -= max(0, rows - min(self.rows + 1, MAX_ROWS))
            self.rows -= max(0, request.num_logits(count) - 1)
        self.tokens -= count
        return count

    def take_new(self, request: Request) -> int:
        """The same for one for which nothing was set aside."""
        self.rows -= 1
        self.tokens -= request.num_remaining == 1
        return self.take(request)
