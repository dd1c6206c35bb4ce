"""The engine: it runs many requests step by step. Not for several threads at once; a `Worker` gives it one of its own.

A step in words. The scheduler takes the next token of each request that is writing its output, and fills up with parts
of prompts: rows. The cache reserves pages for them, the executor runs them and samples, the cache commits them. The
requests take the results of their rows, and those that are finished release their pages. Between two steps, images of
requests that wait are encoded for about as long as a step takes (encodings.py). If the executor runs ahead
or has several stages, the next steps are launched before this one is fetched (in_flight.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from time import perf_counter

from ..cache.cache import Cache
from ..devices.batch import Executor, Results, Row, RowResult, pipeline_depth
from ..devices.forward import make_batch
from ..errors import OutOfPages
from ..files.maps import FileMap, check_maps
from .encodings import Encodings
from .factory import RequestFactory
from .in_flight import InFlightStep
from .limits import make_limits
from .request import Generation, Request, StepRows
from .request_checks import check_count
from .scheduler import Scheduler
from .speculation.speculation import Speculation
from .stats import EngineStats

MAX_SEQS = 64
MIN_SLICE, MAX_SLICE = 0.01, 0.25  # seconds of encoding between two steps
MAX_GAP = 0.005  # seconds between two steps that count for the second; more is idleness


class Engine(RequestFactory):
    """Runs requests on an executor and a cache.

    `generation`, `scoring` and `embedding` make and check requests, `add` takes them in, `step` is called as long as it
    says that there is more.

    Args:
        executor: What runs the steps.
        cache: The executor's KV cache.
        ctx: Tokens of the longest sequence.
        eos_ids: Tokens that end an output.
        max_seqs: Requests that a step runs.
        encoder: Whether it gives hidden states alone. Its tokens see later ones: a text runs in one step, and nothing
            of it is kept.
        max_waiting: Requests that may wait beside those that run; more get QueueFull. None: no limit.
        max_per_client: Requests of one client in all; more get QueueFull. None: no limit.
        clock: What deadlines are measured by, in seconds.
        maps: Files that weights are read from. A step fails if one of them has changed.
        speculation: What guesses tokens, to be verified in steps. None: there are no guesses.
    """

    def __init__(
        self,
        executor: Executor,
        cache: Cache,
        ctx: int,
        eos_ids: Iterable[int] = (),
        *,
        max_seqs: int = MAX_SEQS,
        encoder: bool = False,
        max_waiting: int | None = None,
        max_per_client: int | None = None,
        clock: Callable[[], float] = perf_counter,
        maps: Collection[FileMap] = (),
        speculation: Speculation | None = None,
    ) -> None:
        self.cache, self._maps, self._clock = cache, maps, clock
        self._speculation = speculation
        self._fetch_time: float | None = None  # of the step before, if it was the last thing that was done
        self._scheduler = Scheduler(
            cache, executor.max_batched_tokens, executor.max_logits, check_count(max_seqs, "max_seqs"), clock, encoder,
            pipeline_depth(executor),
        )  # fmt: skip
        super().__init__(executor, cache.max_length, ctx, eos_ids, self._scheduler.max_seqs, encoder)
        self.limits = make_limits(self._scheduler.max_seqs, max_waiting, max_per_client)
        self._encodings = Encodings()
        self._stats = EngineStats()
        self._in_flight: deque[InFlightStep] = deque()  # steps that were launched and not fetched, in their order
        self._most_in_flight = max(2 if executor.runs_ahead else 1, pipeline_depth(executor))

    def add(self, requests: Sequence[Request]) -> None:
        """Take in what one call of `generation`, `scoring` or `embedding` made, or raise QueueFull."""
        self.add_batch([requests])

    def add_batch(self, groups: Sequence[Sequence[Request]]) -> None:
        """Take in what several calls made, all or nothing. Those that begin alike compute that once."""
        self.limits.take([request for requests in groups for request in requests])
        now, batch = self._clock(), object()
        for requests in groups:
            for request in requests:
                request.expires = now + request.deadline if request.deadline is not None else inf
                request.batch = batch if len(groups) > 1 else None
            if not requests[0].num_remaining:
                self._finish(requests[0], "stop")
            elif not self._encodings.add(requests[0], self._num_cached(requests[0])):
                self._scheduler.add(requests[0])

    def cancel(self, requests: Iterable[Request]) -> None:
        """End requests, wherever they are. Those that are finished stay as they are."""
        for request in requests:
            self._finish(request, "cancelled")
        self._drop_finished()

    def fail(self, error: Exception, requests: Iterable[Request] | None = None) -> None:
        """End requests with an error, all of them unless some are given."""
        if requests is None:
            steps, self._in_flight = self._in_flight, deque()
            self.fail(error, [*self._scheduler.active, *self._scheduler.waiting, *self._encodings])
            for step in steps:
                with suppress(Exception):  # all that matters is that it has ended
                    step.handle.fetch()
            return
        for request in requests:
            self._fail(request, error)
        self._drop_finished()

    def stats(self) -> EngineStats:
        """Counts and times since the start."""
        active = sum(not request.is_finished for request in self._scheduler.active)  # some may not be dropped yet
        waiting, preemptions = len(self._scheduler.waiting) + len(self._encodings), self._scheduler.preemptions
        return replace(
            self._stats, preemptions=preemptions, active=active, waiting=waiting,
            images_encoded=self._encodings.num_encoded, images_reused=self._encodings.num_reused,
        )  # fmt: skip

    def step(self) -> bool:
        """Schedule, launch, fetch, commit. Is there more to do?"""
        start = perf_counter()
        self._expire()
        if not self._in_flight and (first := self._begin()) is not None:
            self._in_flight.append(first)
        if self._in_flight:
            while len(self._in_flight) < self._most_in_flight and (ahead := self._run_ahead()) is not None:
                self._in_flight.append(ahead)
            step = self._in_flight.popleft()
            try:
                self._commit(step, self._fetch(step))
            except Exception as error:
                self.fail(error, [request for request, _ in step.rows])
        self._encode(perf_counter() - start)
        self._stats.step_seconds += perf_counter() - start
        return bool(self._scheduler.active or self._scheduler.waiting or self._in_flight or self._encodings)

    def _encode(self, step_seconds: float) -> None:
        """A slice of the encodings, about as long as the step before it: outputs go on at half their speed."""
        request = self._scheduler.take_unencoded()
        if request is not None and not self._encodings.add(request):
            self._scheduler.add(request)
        if not self._encodings:
            return
        self._fetch_time = None  # what follows is no measure of a step
        for request, error in self._encodings.run(min(max(step_seconds, MIN_SLICE), MAX_SLICE)):
            if error is None:
                self._scheduler.add(request)
            else:
                self._fail(request, error)

    def _num_cached(self, request: Request) -> int:
        """Tokens whose images need not be encoded, as things are now."""
        return 0 if request.embedded is None else self.cache.lookup(request.reusable(), request.cache_namespace)

    def _expire(self) -> None:
        expired = self._scheduler.expired(self._encodings)
        for request in expired:
            self._finish(request, "deadline")
        if expired:
            self._drop_finished()

    def _drop_finished(self) -> None:
        self._scheduler.drop_finished()
        self._encodings.drop_finished()

    def _begin(self) -> InFlightStep | None:
        """Schedule and launch the next step, if there is anything to run."""
        if self._speculation is not None:
            self._speculation.propose(self._scheduler.active)
        rows = self._scheduler.schedule()
        if not rows:
            self._fetch_time = None
            return None
        try:
            return self._launch(rows)
        except OutOfPages as error:
            self._make_room(error)
        except Exception as error:
            self.fail(error, [request for request, _ in rows])
        return None

    def _run_ahead(self) -> InFlightStep | None:
        """Schedule and launch the step after those in flight, for all that can go on without their results."""
        if self._speculation is not None and self._speculation.wants(self._scheduler.active):
            return None
        for step in self._in_flight:
            step.advance(self.executor.runs_ahead)
        rows = self._scheduler.schedule_ahead()
        if not rows:
            return None
        try:
            return self._launch(rows)
        except Exception:  # it is tried again when this one was fetched
            return None

    def _launch(self, rows: StepRows) -> InFlightStep:
        batch = make_batch(self.cache, [row for _, row in rows])
        begin = perf_counter()
        try:
            handle = self.executor.launch(batch)
        except BaseException:
            self.cache.rollback(batch.view)
            raise
        self._stats.steps += 1
        self._stats.launch_seconds += perf_counter() - begin
        self._scheduler.last_output = batch.output
        return InFlightStep(rows, batch.view, handle, begin)

    def _fetch(self, step: InFlightStep) -> Results:
        begin = perf_counter()
        try:
            results = step.handle.fetch()
            check_maps(self._maps)
            self._record_cost(step)
        except BaseException:
            steps, self._in_flight = [step, *self._in_flight], deque()
            for one in reversed(steps):
                one.take_back(self.cache)
            raise
        self._stats.fetch_seconds += perf_counter() - begin
        return results

    def _commit(self, step: InFlightStep, results: Results) -> None:
        """Give the requests what their rows gave; those that have ended since the launch take nothing."""
        step.settle()
        for (request, row), result in zip(step.rows, results, strict=True):
            if row.tokens and request.sequence == row.sequence:
                self._commit_tokens(request, row, self._num_rejected(request, row, result))
            if isinstance(result, Exception):
                self._fail(request, result)
            elif not request.is_finished:
                if request.siblings and request.is_run:
                    self._scheduler.split(request)
                self._take(request, result)
        for request, _ in step.rows:
            for member, reason in request.end_step(self.cache):
                self._finish(member, reason)
        if any(request.finish_reason is not None for request, _ in step.rows):
            self._scheduler.drop_finished()

    def _commit_tokens(self, request: Request, row: Row, num_rejected: int) -> None:
        """Commit the tokens of a row but the last, rejected ones."""
        first, count = request.num_computed, len(row.tokens) - num_rejected
        if num_rejected and self.cache.wants_page_ends:  # the state is that after all of them: run the others again
            count = 0
        self._stats.prompt_tokens += max(0, min(count, request.num_run - first))
        if not self.is_encoder:  # what it keeps of a token depends on later ones: it is for nobody else
            tokens = row.tokens[:count] if row.tokens[0] >= 0 else request.tokens[first : first + 1]  # known by now
            if request.embedded is not None:
                tokens = request.embedded.keyed(first, tokens)
            if tokens:
                self.cache.commit(row.sequence, tokens)
            if num_rejected:
                self.cache.truncate(row.sequence, first + count)
        request.num_computed += count

    def _num_rejected(self, request: Request, row: Row, result: RowResult | Exception) -> int:
        """How many drafts of a row were not what was sampled."""
        if not row.drafts:
            return 0
        drafted, accepted = len(row.drafts), 0 if isinstance(result, Exception) else len(result.tokens) - 1
        self._stats.draft_tokens += drafted
        self._stats.accepted_tokens += accepted
        request.draft_tokens += drafted
        request.accepted_tokens += accepted
        if self._speculation is not None:
            self._speculation.record(request, drafted, accepted)
        return drafted - accepted

    def _record_cost(self, step: InFlightStep) -> None:
        """Steps that only write say what a guess costs: from one to the next, if nothing was between them."""
        before, self._fetch_time = self._fetch_time, perf_counter()
        if self._speculation is not None and all(request.is_writing for request, _ in step.rows):
            begin = step.launch_time
            if before is not None:
                begin = max(before + self._speculation.propose_seconds, step.launch_time - MAX_GAP)
            self._speculation.record_cost(sum(len(row.tokens) for _, row in step.rows), self._fetch_time - begin)
        if self._speculation is not None:
            self._speculation.propose_seconds = 0.0

    def _take(self, request: Request, result: RowResult) -> None:
        if result.tokens and request.finish_reason is None:
            self._count(request, len(result.tokens))
            if not request.first_token_time:
                request.first_token_time = perf_counter()
        num_tokens = len(request.tokens)
        try:
            reason = request.take(result)
        except Exception as error:  # of its constraint
            self._finish(request, "error", error)
            return
        if (num_forced := len(request.tokens) - num_tokens - len(result.tokens)) > 0:
            self._count(request, num_forced)
            self._stats.forced_tokens += num_forced
        if reason is None and request.stream and len(request.tokens) > num_tokens and not self._emit(request):
            reason = "cancelled"
        if reason is not None:
            self._finish(request, reason)

    def _count(self, request: Request, num_tokens: int) -> None:
        """Count tokens of an output."""
        self._stats.tokens += num_tokens
        self._scheduler.waiting.charge(request.client, num_tokens)

    def _fail(self, request: Request, error: Exception) -> None:
        """End a request, and the other outputs of its prompt if that was not run yet."""
        for member in (request, *request.siblings):
            self._finish(member, "error", error)

    def _finish(self, request: Request, reason: str, error: Exception | None = None) -> None:
        if request.finish_reason is None:
            request.finish_time = perf_counter()
            request.error = error
            request.finish_reason = reason
            self.limits.release(request)
            if self._speculation is not None and isinstance(request, Generation):
                self._speculation.drafter.finish(request)
            self._emit(request)
            if reason in ("error", "cancelled", "deadline"):
                for mate in request.mates:
                    self._finish(mate, reason, error)

    @staticmethod
    def _emit(request: Request) -> bool:
        """Give the sink what is new. False if it fails: an event loop may be closed."""
        try:
            request.sink(request.next_delta())
        except Exception:
            return False
        return True

    def _make_room(self, error: OutOfPages) -> None:
        """The cache has fewer pages than it seemed: somebody else uses it too."""
        if self._scheduler.release_donors():
            return
        if len(self._scheduler.active) > 1:
            self._scheduler.preempt()
            self._scheduler.wait_for_more()
        else:
            self.fail(error, self._scheduler.active)
