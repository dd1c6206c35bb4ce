"""The scheduler: which requests run in the next step, with how many tokens, and who is preempted when pages run out.

Active requests hold pages of the cache, waiting ones hold none. The queue says who is next (queue.py), past those that
follow an active request (sharing.py); if there is no room for it, nobody is admitted. Active requests are in the order
of their levels, then of arrival: the last one is preempted. So the first always gets on, and each comes to run.
What a request has written stays in its tokens; when it is admitted again, they are run like a prompt, as far as the
cache does not know them. The sequence of a finished request is kept for those that follow it, unless pages are short.

All places may be taken. Then one of a lower priority is preempted for the one that is next; or, if its client has no
active request, one of a client that has several and was served more.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable
from operator import add
from time import perf_counter

from ..cache.cache import Cache
from .budget import Budget, WholeBudget
from .donors import Donor, Donors
from .queue import WaitingQueue
from .request import Request, StepRows
from .sharing import begin, is_following

FETCH_SECONDS = 0.05  # for a part of a prompt on the disk, while others wait for the next step
MAX_FETCHES = 100

Pages = tuple[int, ...]  # by group of layers


class Scheduler:
    """A queue of requests and a list of active ones over one cache. `whole`: each runs in one step, all its tokens.

    Of `depth` steps that are in flight at a time each has its share of the active requests.
    """

    def __init__(
        self,
        cache: Cache,
        max_batched_tokens: int,
        max_logits: int,
        max_seqs: int,
        clock: Callable[[], float] = perf_counter,
        whole: bool = False,
        depth: int = 1,
    ) -> None:
        self.active: list[Request] = []
        self.waiting = WaitingQueue()
        self._donors = Donors(cache)
        self.max_batched_tokens = max_batched_tokens
        self.max_logits = max_logits
        self.max_seqs = min(max_seqs, max_batched_tokens, max_logits)
        self._depth = depth
        self.preemptions = 0
        self._cache = cache
        self._budget = WholeBudget if whole else Budget
        self._clock = clock
        self._none = (0,) * len(cache.available)
        self._blocked: Request | None = None  # the one that is next and was not admitted for want of pages
        self._wait_for = self._none  # available pages below which it need not be tried again
        self._unencoded: Request | None = None  # one that waits, and whose images must be encoded first
        self.last_output = "logits"  # of the last step that was launched

    def add(self, request: Request) -> None:
        """A request waits from now on."""
        self.waiting.push(request, self._clock())

    def schedule(self) -> StepRows:
        """The rows of the next step."""
        if (victim := self._victim()) is not None:
            self.active.remove(victim)
            self.active.append(victim)
            self.preempt()
        budget, counts, needed = self._count()
        if not self._fits(needed) and any(request.draft for request in self.active):
            for request in self.active:  # nobody makes room for a guess
                request.draft = ()
            budget, counts, needed = self._count()
        while not self._fits(needed) and len(self.active) > 1:
            counts.pop()
            self.preempt()
            needed = self._sum(counts)
        return self._fill(budget, counts, needed)

    def schedule_ahead(self) -> StepRows:
        """The same while a step is in flight. None if somebody would be preempted: that waits until it is fetched."""
        if self._victim() is not None:
            return []
        budget, counts, needed = self._count()
        return self._fill(budget, counts, needed) if self._fits(needed) else []

    def _count(self) -> tuple[Budget, list[int], Pages]:
        """What is left of a step when active requests run their tokens, how many those are, and pages for them."""
        limits, clients = (self.max_batched_tokens, self.max_logits), self._num_clients()
        budget = self._budget(*limits, self.active, self._output(), clients, self._cache)
        counts, share = list[int](), -(-len(self.active) // self._depth)
        for request in self.active:
            counts.append(budget.take(request) if share else 0)
            share -= counts[-1] > 0
        return budget, counts, self._sum(counts)

    def _fill(self, budget: Budget, counts: list[int], needed: Pages) -> StepRows:
        """Admit those that there is room for beside the active ones."""
        while self.waiting and (request := self._admit(needed, budget)):
            self._set_pauses(request)
            place = self.active.index(request)
            counts.insert(place, budget.take_new(request))
            if request.num_computed % self._cache.page_tokens:  # a fork: the one that it shares a page with may copy it
                needed = self._sum(counts)
            else:
                needed = _plus(needed, self._needed(request, counts[place]))
        self._donors.prune(self.waiting)
        self._take_snapshots(needed)
        rows: StepRows = []
        for request, count in zip(self.active, counts, strict=True):
            if count:
                request.add_rows(count, rows)
        return rows

    def preempt(self) -> None:
        """The last of the active requests releases its pages, to go on later."""
        request = self.active.pop()
        self._release(request)
        self.add(request)
        self._blocked = None
        self.preemptions += 1

    def take_unencoded(self) -> Request | None:
        """The request that could not be admitted since the cache has lost pages with its images, if there is one."""
        request, self._unencoded = self._unencoded, None
        if request is None or request not in self.waiting:
            return None
        self.waiting.remove(request, self._clock())
        return request

    def wait_for_more(self) -> None:
        """Admit no other request before there are more pages than now."""
        self._blocked = self._next()
        self._wait_for = tuple(pages + 1 for pages in self._cache.available)

    def expired(self, others: Iterable[Request] = ()) -> list[Request]:
        """Those, and of some others, that have not ended by their deadlines."""
        now = self._clock()
        requests = (request for queue in (self.active, self.waiting, others) for request in queue)
        return [one for request in requests for one in (request, *request.siblings) if one.expires <= now]

    def split(self, leader: Request) -> None:
        """The prompt of several outputs was run: from here on they are requests of their own that share its pages."""
        members = [one for one in (leader, *leader.siblings) if one.finish_reason is None]
        sequences = [leader.sequence, *(self._cache.fork(leader.sequence) for _ in members[1:])]
        leader.sequence = 0  # it may have been cancelled, and the others not
        for member, sequence in zip(members, sequences, strict=True):
            member.follow(leader, sequence)
        leader.siblings = []
        place = self.active.index(leader)
        self.active[place : place + 1] = members

    def drop_finished(self) -> None:
        if self.waiting.drop_finished():
            self._blocked = None
        for request in self.active:
            if request.is_finished:
                self._donors.retire(request)
                self._forget(request)
        self.active = [request for request in self.active if request.sequence]
        self._donors.prune(self.waiting)

    def release_donors(self) -> bool:
        """Release what is kept for waiting requests. Was there anything?"""
        return self._donors.release()

    def _output(self) -> str:
        """What the next step computes. Where requests want different things, they take turns."""
        wanted = {one.output for one in self.active if not one.is_blocked} or {
            one.output for one in filter(None, [self._next()])
        }
        if len(wanted) > 1:
            wanted.discard(self.last_output)
        return wanted.pop() if wanted else "logits"

    def _next(self) -> Request | None:
        """The next one that waits for nothing but its turn."""
        return self.waiting.choose(self._clock(), lambda one: not is_following(one, self.active, self._cache))

    def _has_place(self, request: Request) -> bool:
        return _width(request) + sum(map(_width, self.active)) <= self.max_seqs

    def _victim(self) -> Request | None:
        """If all places are taken: who gives way to a request that should not wait for the end of others."""
        if not self.waiting or len(self.active) < 2 or sum(map(_width, self.active)) < self.max_seqs:
            return None
        request = self._next()
        if request is None:
            return None
        if request.priority > self.active[-1].level:
            return self.active[-1]
        places = Counter(one.client for one in self.active)
        served = self.waiting.served(request.client)
        candidates = [
            one
            for one in self.active
            if one.level <= request.priority
            and places[one.client] > 1
            and self.waiting.served(one.client) > served
            and not places[request.client]
        ]
        return max(candidates, key=lambda one: (places[one.client], one.arrival), default=None)

    def _num_clients(self) -> int:
        """How many clients share the prompt tokens of a step: those of active requests, and of the one that is next."""
        clients = {one.client for one in self.active if one.num_remaining > 1 and not one.is_writing}
        if clients and (request := self._next()) and request is not self._blocked and self._has_place(request):
            clients.add(request.client)
        return len(clients)

    def _admit(self, needed: Pages, budget: Budget) -> Request | None:
        """Make the one that is next active, if its prompt fits beside what this step needs."""
        request, available = self._next(), self._cache.available
        if request is None or not budget.has_room(request) or not self._has_place(request):
            return None
        if self.active and request is self._blocked and not self._fits(self._wait_for):
            return None
        if not self._fetch(request):
            return None
        request.sequence = begin(request, self._sources(), self._cache)
        request.num_computed = self._cache.length(request.sequence)
        if request.embedded is not None and request.embedded.pending(request.num_computed):
            self._release(request)
            self._unencoded = request
            return None
        whole = _plus(needed, self._needed(request, request.num_remaining + 1))
        whole = tuple(pages + len(self.active) for pages in whole)  # one to spare for each of the others
        if not self._fits(whole) and self.active:  # the only one is tried anyway: nobody could make room
            self._wait_for = tuple(map(lambda a, w, now: a + w - now, available, whole, self._cache.available))
            self._blocked = request
            self._release(request)
            return None
        if not request.start_time:
            request.start_time, request.cached_tokens = perf_counter(), request.num_computed
            self.waiting.charge(request.client, request.num_remaining)
        self.waiting.remove(request, self._clock())
        request.leader = None
        insort(self.active, request, key=lambda one: (-one.level, one.arrival))
        self._blocked = None
        return request

    def _fetch(self, request: Request) -> bool:
        """Whether its prompt was looked for on the disk for long enough; others go on between two parts of it."""
        while request.fetches < MAX_FETCHES:
            request.fetches += 1
            seconds = FETCH_SECONDS if self.active else 20 * FETCH_SECONDS
            if self._cache.fetch(request.reusable(), request.cache_namespace, seconds):
                request.fetches = MAX_FETCHES
            elif self.active:
                return False
        return True

    def _set_pauses(self, leader: Request) -> None:
        """Let those that wait say where the prompt of a new leader is to be cut, before it runs."""
        if self._cache.wants_page_ends:
            for request in self.waiting:
                is_following(request, [leader], self._cache)

    def _take_snapshots(self, needed: Pages) -> None:
        """Keep the states at which leaders pause for those that could not be admitted now."""
        if not self._cache.wants_page_ends:
            return
        followed = {(request.leader, request.shared) for request in self.waiting}
        for leader in self.active:
            is_ragged = leader.num_computed % self._cache.page_tokens  # else the cache has one
            if is_ragged and (leader, leader.num_computed) in followed:
                needed = tuple(pages + 1 for pages in needed)  # the leader copies its last page
                if self._cache.fits(needed):
                    self._donors.snapshot(leader)

    def _sources(self) -> list[Donor]:
        return [*(Donor(one, one.sequence, one.num_computed) for one in self.active), *self._donors]

    def _fits(self, needed: Pages) -> bool:
        """Whether pages could be had now; finished requests are not kept at the cost of others."""
        return self._cache.fits(needed) or (self._donors.release() and self._cache.fits(needed))

    def _release(self, request: Request) -> None:
        self._cache.free(request.sequence)
        self._forget(request)

    @staticmethod
    def _forget(request: Request) -> None:
        """It has no sequence any more."""
        request.num_run = max(request.num_run, request.num_computed)
        request.sequence = request.num_computed = 0
        request.settle()

    def _needed(self, request: Request, count: int) -> Pages:
        return self._cache.needed(request.sequence, count) if count else self._none

    def _sum(self, counts: list[int]) -> Pages:
        pairs = zip(self.active, counts, strict=True)
        needed = [self._cache.needed(request.sequence, count) for request, count in pairs if count]
        return tuple(map(sum, zip(*needed, strict=True))) if needed else self._none


def _plus(a: Pages, b: Pages) -> Pages:
    return tuple(map(add, a, b))


def _width(request: Request) -> int:
    """Places in the batch that a request takes when its prompt was run."""
    return 1 + len(request.siblings)
