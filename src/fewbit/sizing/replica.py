"""A replica as the simulation knows it: the rules of the engine's scheduler, and figures in the place of a model.

The rules are those of `engine/scheduler.py`, `budget.py` and `sharing.py` for requests of one priority. A step takes
one token of each sequence that writes, then parts of prompts up to `max_batched_tokens`, shared by the clients whose
prompts run. A prompt is admitted if a place and pages for all of it are free. One that begins like a prompt that is
being read waits for that part. When pages run out, the youngest goes back to the queue. While nobody reads a prompt,
many steps are one event: their time is a sum in closed form.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from heapq import heapify, heappop, heappush
from math import ceil, sqrt

from .figures import ReplicaFigures
from .load import SimulatedRequest

MIN_SHARED_PAGES = 2  # that are worth waiting for, as in engine/sharing.py


class SimulatedReplica:
    """Requests go in by `add`; `begin` says when the steps that it runs end, `complete` what came out of them.

    Args:
        figures: Of the model and the machine.
        longest: Tokens of the longest sequence that can come: pages are counted where they may run out.
    """

    def __init__(self, figures: ReplicaFigures, longest: int) -> None:
        self.figures = figures
        self._waiting: list[tuple[int, int, SimulatedRequest]] = []  # sorted: tokens of the client, order of arrival
        self._served: dict[int, int] = {}  # tokens that were run for each client
        self._least_served = 0  # those of the client that was admitted last
        self._reading: list[SimulatedRequest] = []
        self._writing: list[tuple[int, int, SimulatedRequest]] = []  # a heap: last step, order
        self._context = 0  # tokens of all that write
        self._step = 0
        self._now = 0.0
        self._prefixes: OrderedDict[int, int] = OrderedDict()  # tokens that are cached, by group
        self._counts: list[int] = []  # tokens that the step runs of those that read; empty while many steps are one
        self._num_steps = 0  # that run now
        self.is_running = False
        self._is_short = False  # whether the pages of many steps are not there
        self.busy_seconds, self.steps, self.tokens_run, self.written, self.preemptions, self.hits = 0.0, 0, 0, 0, 0, 0
        self._is_tight = self._pages(longest + 1) * figures.max_seqs + figures.max_seqs > figures.pages

    def knows(self, group: int) -> bool:
        """Whether the prefix of a group is cached here, or read."""
        return group in self._prefixes or any(one.group == group and one.shared for one in self._reading)

    def add(self, request: SimulatedRequest) -> None:
        """A request waits from now on: the client that was served least comes first."""
        served = max(self._served.get(request.client, 0), self._least_served)
        self._served[request.client] = served  # an idle client earns no credit
        insort(self._waiting, (served, request.order, request))

    def begin(self, now: float) -> float | None:
        """Schedule the next steps. When they end; None if there is nothing to do."""
        self._now, self._counts = now, []
        if self._is_tight:
            self._make_room()
        self._counts = self._schedule()
        self._num_steps = 1 if self._reading else self._uniform_steps()
        self.is_running = bool(self._reading or self._writing)
        return now + self._seconds(self._num_steps) if self.is_running else None

    def interrupt(self, now: float) -> float:
        """A request came while many steps are one event: they end after the step that runs now. When that is."""
        if not self._reading and self._num_steps > 1:
            self._num_steps = min(self._num_steps, max(1, self._steps_until(now - self._now)))
        return self._now + self._seconds(self._num_steps)

    def complete(self) -> list[SimulatedRequest]:
        """The requests that ended with these steps."""
        count = self._num_steps
        end = self._now + self._seconds(count)
        self.busy_seconds += end - self._now
        self.steps += count
        self.written += count * len(self._writing)
        self._context += count * len(self._writing)
        self._step += count
        self.is_running = False
        finished = []
        while self._writing and self._writing[0][0] <= self._step:
            request = heappop(self._writing)[2]
            self._context -= request.prompt + request.output
            self._end(request, end)
            finished.append(request)
        return finished + self._read(end)

    def _read(self, end: float) -> list[SimulatedRequest]:
        """Move those whose prompts are complete on to writing; those that are done with their first token."""
        finished, reading = [], []
        for request, count in zip(self._reading, self._counts, strict=True):
            request.computed += count
            self.tokens_run += count
            if request.shared and request.computed >= request.shared:
                self._prefixes[request.group] = request.shared
                self._prefixes.move_to_end(request.group)
            if request.computed < request.prompt:
                reading.append(request)
                continue
            self.written += 1
            request.first_time = request.first_time or end
            request.last_step = self._step + request.output - 1
            if request.output == 1:
                self._end(request, end)
                finished.append(request)
            else:
                self._context += request.prompt + 1
                heappush(self._writing, (request.last_step, request.order, request))
        self._reading = reading
        return finished

    def _end(self, request: SimulatedRequest, now: float) -> None:
        request.finish_time = now
        self._served[request.client] += request.output

    def _schedule(self) -> list[int]:
        """How many tokens of each prompt the next step runs; those that there is room for are admitted."""
        figures, tokens = self.figures, self.figures.max_batched_tokens - len(self._writing)
        clients = len({one.client for one in self._reading})
        if clients and self._waiting and self._has_place():
            clients += 1
        share = ceil(tokens / max(1, clients))
        counts = []
        for request in self._reading:
            counts.append(min(request.prompt - request.computed, tokens, share))
            tokens -= counts[-1]
        for _, _, request in [*self._waiting] if tokens > 0 and self._has_place() else ():
            if tokens <= 0 or not self._has_place():
                break
            if self._follows(request):
                continue
            if not self._has_pages(request):
                break
            self._admit(request)
            counts.append(min(request.prompt - request.computed, tokens, share))
            tokens -= counts[-1]
        assert figures.max_seqs >= len(self._reading) + len(self._writing)
        return counts

    def _admit(self, request: SimulatedRequest) -> None:
        self._waiting.pop(next(i for i, one in enumerate(self._waiting) if one[2] is request))
        if request.shared and request.group in self._prefixes:
            whole_pages = self._prefixes[request.group] // self.figures.page_tokens * self.figures.page_tokens
            request.computed = min(whole_pages, request.prompt - 1)
            self._prefixes.move_to_end(request.group)
            self.hits += 1
        self._served[request.client] += request.prompt - request.computed
        self._least_served = self._served[request.client]
        self._reading.append(request)

    def _has_place(self) -> bool:
        return len(self._reading) + len(self._writing) < self.figures.max_seqs

    def _follows(self, request: SimulatedRequest) -> bool:
        """Whether it waits for a prompt that is being read and begins like it."""
        if request.shared < MIN_SHARED_PAGES * self.figures.page_tokens or request.group in self._prefixes:
            return False
        return any(one.group == request.group and one.computed < one.shared for one in self._reading)

    def _uniform_steps(self) -> int:
        """Steps until one of those that write has ended, or pages have to be counted again."""
        if not self._writing:
            return 1
        steps = self._writing[0][0] - self._step
        if self._is_tight:
            return 1 if self._is_short else min(steps, self.figures.page_tokens)
        return steps

    def _seconds(self, steps: int) -> float:
        """The time of so many steps, in which the contexts of those that write grow."""
        writing, figures = len(self._writing), self.figures
        seconds = figures.decode_seconds[writing] + figures.context_seconds * (self._context + writing)
        prompt_tokens = sum(self._counts)
        if prompt_tokens:
            prefill = figures.prefill_seconds
            seconds += prefill[writing + prompt_tokens] - prefill[writing] + self._reading_seconds()
        return steps * seconds + figures.context_seconds * writing * steps * (steps - 1) / 2

    def _reading_seconds(self) -> float:
        """What prompts cost beside their number of tokens."""
        seconds = 0.0
        for request, count in zip(self._reading, self._counts, strict=True):
            seconds += self.figures.pair_seconds * count * (request.computed + count / 2)
            if request.computed + count >= request.prompt:
                seconds += self.figures.request_seconds
        return seconds

    def _steps_until(self, seconds: float) -> int:
        """Steps that begin within so many seconds."""
        growth = self.figures.context_seconds * len(self._writing) / 2
        first = self._seconds(1) - growth
        if growth <= 0:
            return ceil(seconds / first)
        return ceil((sqrt(first * first + 4 * growth * seconds) - first) / (2 * growth))

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.figures.page_tokens)

    def _used_pages(self, ahead: int = 0) -> int:
        """Pages of all that run, when those that write have gone on by some tokens."""
        used = sum(self._pages(one.prompt) for one in self._reading)
        for last_step, _, one in self._writing:
            used += self._pages(one.prompt + one.output - (last_step - self._step) + ahead)
        shared = [one for one in self._reading if one.group in self._prefixes]
        shared += [one for _, _, one in self._writing if one.group in self._prefixes]
        used -= sum(one.shared // self.figures.page_tokens for one in shared)
        return used + sum(tokens // self.figures.page_tokens for tokens in self._prefixes.values())

    def _has_pages(self, request: SimulatedRequest) -> bool:
        active = len(self._reading) + len(self._writing)
        if not self._is_tight or not active:
            return True
        known = request.shared // self.figures.page_tokens if request.group in self._prefixes else 0
        needed = self._pages(request.prompt + 1) - known + active
        while self._used_pages() + needed > self.figures.pages:
            if not self._forget_prefix(request.group):
                return False
        return True

    def _forget_prefix(self, kept: int) -> bool:
        """Drop the prefix that was used least recently, if nobody needs it."""
        needed = {one.group for one in self._reading} | {one.group for _, _, one in self._writing} | {kept}
        for group in self._prefixes:
            if group not in needed:
                del self._prefixes[group]
                return True
        return False

    def _make_room(self) -> None:
        """Preempt the youngest until the next steps have their pages."""
        ahead, self._is_short = self.figures.page_tokens, False
        while len(self._writing) > 1 and self._used_pages(ahead) > self.figures.pages:
            if self._forget_prefix(-1):
                continue
            if self._used_pages(1) <= self.figures.pages:
                self._is_short = True
                return
            place = max(range(len(self._writing)), key=lambda i: self._writing[i][1])
            last_step, _, request = self._writing.pop(place)
            heapify(self._writing)
            left = last_step - self._step
            self._context -= request.prompt + request.output - left
            self._served[request.client] += request.output - left
            request.prompt, request.output, request.computed = request.prompt + request.output - left, left, 0
            insort(self._waiting, (self._served[request.client], request.order, request))
            self.preemptions += 1
