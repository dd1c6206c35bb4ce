"""The engine: it runs many requests step by step. Not for several threads at once; a `Worker` gives it one of its own.

A step in words. The scheduler takes the next token of each request that is writing its answer, and fills up with parts
of prompts. The runner runs them all and commits them to the cache. For each request whose tokens have all been run, the
sampler chooses the next one. The requests take their tokens, and those that are over let their pages go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from ..errors import OutOfPages
from ..ops.sampling import Rule
from .checks import check_count, check_prompt, check_seed, check_text, check_top
from .choose import Choice, Chooser, Sampler, native
from .contract import Chunk, Runner
from .request import Logprobs, Request, Scoring
from .scheduler import Scheduler

MOST_REQUESTS = 64


@dataclass(slots=True)
class Stats:
    """Counts since the start, and the time that they took."""

    steps: int = 0
    tokens: int = 0  # of answers
    prompt_tokens: int = 0  # those run: without the ones found in the cache, with the ones that were run again
    preemptions: int = 0
    active: int = 0  # now
    waiting: int = 0  # now
    forward_seconds: float = 0.0
    sample_seconds: float = 0.0
    step_seconds: float = 0.0  # with the two before


class Engine:
    """Runs requests on a runner. `ends` are the tokens after which there is nothing more to say.

    `request` makes and checks requests, `add` takes them in, `step` is called as long as it says that there is more.
    `sampler` is a module with `sample`, `log_probabilities` and `top_tokens`; without one it is the native CPU code.
    """

    def __init__(
        self,
        runner: Runner,
        ends: Iterable[int] = (),
        *,
        most_requests: int = MOST_REQUESTS,
        sampler: Sampler | None = None,
        threads: int | None = None,
    ) -> None:
        self.runner = runner
        self.ends = frozenset(ends)
        cache = runner.cache
        self.limit = min(runner.ctx, cache.stats().total * cache.page_tokens)  # tokens of the longest sequence
        most = check_count(most_requests, "most_requests")
        self._scheduler = Scheduler(cache, runner.most_tokens, runner.most_wanted, most)
        self._chooser = Chooser(native() if sampler is None else sampler, threads)
        self._stats = Stats()

    def request(
        self,
        prompt: Iterable[int],
        rule: Rule | None = None,
        *,
        max_tokens: int | None = None,
        n: int = 1,
        seed: int | None = None,
        logprobs: int | None = None,
    ) -> list[Request]:
        """`n` requests for answers to one prompt, which is run once for all of them. What cannot be served is refused.

        Without `max_tokens` an answer ends when the context is full. Answer i has the seed `seed + i`.
        """
        tokens = check_prompt(prompt, self.runner, self.limit)
        most = self.limit if max_tokens is None else check_count(max_tokens, "max_tokens")
        count = check_count(n, "n", self._scheduler.most_requests)
        first = None if seed is None else check_seed(seed)
        top = None if logprobs is None else check_top(logprobs, self.runner.vocab)
        end = min(len(tokens) + most, self.limit)
        seeds = [None if first is None else first + i for i in range(count)]
        requests = [Request(tokens, rule or Rule(), end, one, top) for one in seeds]
        requests[0].siblings = requests[1:]
        return requests

    def scoring(self, tokens: Iterable[int]) -> Scoring:
        """A request for the log-probability of each token after the first."""
        return Scoring(check_text(tokens, self.runner, self.limit))

    def add(self, requests: Sequence[Request]) -> None:
        """Take in what one call of `request` or `scoring` made."""
        if requests[0].left:
            self._scheduler.waiting.append(requests[0])
        else:
            self._finish(requests[0], "stop")

    def cancel(self, requests: Iterable[Request]) -> None:
        """End requests, wherever they are. Those that are over stay as they are."""
        for request in requests:
            self._finish(request, "cancelled")
        self._scheduler.sweep()

    def fail(self, error: Exception, requests: Iterable[Request] | None = None) -> None:
        """End requests with an error, all of them unless some are given."""
        if requests is None:
            requests = [*self._scheduler.active, *self._scheduler.waiting]
        for request in requests:
            for member in (request, *request.siblings):
                self._finish(member, "error", error)
        self._scheduler.sweep()

    def stats(self) -> Stats:
        """Counts and times since the start."""
        of = self._scheduler
        active = sum(not request.is_over for request in of.active)  # those that are over may not be swept yet
        return replace(self._stats, preemptions=of.preemptions, active=active, waiting=len(of.waiting))

    def step(self) -> bool:
        """Schedule, forward, sample, commit. Is there more to do?"""
        start = perf_counter()
        requests, chunks = self._scheduler.schedule()
        ready = ran = chosen = perf_counter()
        try:
            if chunks:
                logits = self.runner.forward(chunks)
                ran = chosen = perf_counter()
                choices = self._chooser.choose(requests, chunks, logits)
                chosen = perf_counter()
                self._commit(requests, chunks, choices)
        except OutOfPages as error:
            self._make_room(error)
        except Exception as error:
            self.fail(error, requests)
        self._stats.steps += bool(chunks)
        self._count(start, ready, ran, chosen)
        return bool(self._scheduler.active or self._scheduler.waiting)

    def _commit(self, requests: list[Request], chunks: list[Chunk], choices: list[Choice]) -> None:
        over = False
        for request, chunk in zip(requests, chunks, strict=True):
            count = len(chunk.tokens)
            if count > 1 or request.done < request.prompt_tokens:
                self._stats.prompt_tokens += count
            request.done += count
            request.shares_page = False
            if chunk.wanted and request.siblings:
                self._scheduler.split(request)
            elif isinstance(request, Scoring) and not request.left:
                over = self._finish(request, "stop")
        for choice in choices:
            over |= self._take(*choice)
        if over:
            self._scheduler.sweep()

    def _take(self, request: Request, token: int, logprobs: Logprobs | None) -> bool:
        """Give a request its next token. Is it over?"""
        self._stats.tokens += 1
        if not request.first:
            request.first = perf_counter()
        if token in self.ends:
            return self._finish(request, "stop")
        request.tokens.append(token)
        if request.seen is not None:
            request.seen.add(token)
        if logprobs is not None:
            request.logprobs.append(logprobs)
        if request.each and not self._tell(request, token):
            return self._finish(request, "cancelled")
        return len(request.tokens) >= request.end and self._finish(request, "length")

    def _finish(self, request: Request, reason: str, error: Exception | None = None) -> bool:
        if request.finish_reason is None:
            request.ended = perf_counter()
            request.error = error
            request.finish_reason = reason
            self._tell(request, None)
        return True

    @staticmethod
    def _tell(request: Request, token: int | None) -> bool:
        """Is there still somebody to tell? An event loop may be closed."""
        try:
            request.sink((request, token))
        except Exception:
            return False
        return True

    def _make_room(self, error: OutOfPages) -> None:
        """There were fewer pages than the scheduler thought: somebody else took or pinned some."""
        if len(self._scheduler.active) > 1:
            self._scheduler.preempt()
            self._scheduler.wait_for_more()
        else:
            self.fail(error, self._scheduler.active)

    def _count(self, start: float, ready: float, ran: float, chosen: float) -> None:
        stats = self._stats
        stats.forward_seconds += ran - ready
        stats.sample_seconds += chosen - ran
        stats.step_seconds += perf_counter() - start
