"""The engine: it runs many requests step by step. Not for several threads at once; a `Worker` gives it one of its own.

A step in words. The scheduler takes the next token of each request that is writing its output, and fills up with parts
of prompts. The cache reserves pages for them, the executor runs them and samples, the cache commits them. The requests
take their tokens, and those that are finished release their pages. If the executor runs ahead, the next step is
launched before this one is fetched (flight.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from time import perf_counter
from types import NoneType
from typing import Unpack

from ..arrays import Floats
from ..cache.cache import Cache
from ..devices.batch import Chunk, Executor, Outputs, Sampled, Top
from ..devices.forward import make_batch
from ..errors import OutOfPages, RequestError, TooLong
from ..files.maps import FileMap, check_maps
from ..ops.sampling import SamplingParams
from ..validation import check_type
from .flight import Flight
from .request import Constraint, Embedding, Generation, Request, Scoring, Step
from .scheduler import Scheduler
from .scores import TokenScores
from .stats import Stats
from .terms import Terms, make_limits, set_terms
from .validation import check_bias, check_count, check_eos, check_logprobs, check_names, check_tokens

MAX_SEQS = 64


class Engine:
    """Runs requests on an executor and a cache. `ctx` is the longest sequence; `eos_ids` are tokens that end an output.

    An `encoder` gives hidden rows alone, and its tokens see later ones: a text runs in one step, and nothing of it is
    kept.

    `generation`, `scoring` and `embedding` make and check requests, `add` takes them in, `step` is called as long as it
    says that there is more.

    A step runs up to `max_seqs` requests. `max_waiting` more may wait, and a client may have `max_per_client` in all;
    what is more gets QueueFull. Deadlines are measured by `clock`, in seconds. A step fails if a file of `maps`, which
    weights are read from, has changed.
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
    ) -> None:
        self.executor, self.cache, self.is_encoder = executor, cache, encoder
        self.eos_ids = frozenset(eos_ids)
        self._ctx, self._maps = ctx, maps
        self.max_length = min(ctx, cache.max_length)  # tokens of the longest sequence
        if encoder:
            self.max_length = min(self.max_length, executor.max_batched_tokens, executor.max_logits)
        self._clock = clock
        self._scheduler = Scheduler(
            cache, executor.max_batched_tokens, executor.max_logits, check_count(max_seqs, "max_seqs"), clock, encoder
        )
        self.limits = make_limits(self._scheduler.max_seqs, max_waiting, max_per_client)
        self._stats = Stats()
        self._flight: Flight | None = None  # the step that was launched last, if it was not fetched

    def generation(
        self,
        prompt: Iterable[int],
        params: SamplingParams | None = None,
        *,
        max_tokens: int | None = None,
        min_tokens: int = 0,
        n: int = 1,
        seed: int | None = None,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        eos_ids: Iterable[int] | None = None,
        logit_bias: Mapping[int, float] | None = None,
        constraint: Callable[[], Constraint] | None = None,
        namespace: str = "",
        adapter: str | None = None,
        **terms: Unpack[Terms],
    ) -> list[Generation]:
        """`n` requests for outputs to one prompt, which is run once for all of them. What cannot be served is refused.

        Without `max_tokens` an output ends when the context is full. Output i has the seed `seed + i`. `constraint`
        makes one for each output. With `prompt_logprobs` the tokens of the prompt are scored, which are then run even
        if the cache has them. `terms`: when it is run, see `Terms`.
        """
        self.check_writes()
        vocab = self.executor.vocab
        tokens = check_tokens(prompt, vocab)
        if len(tokens) >= self.max_length:
            raise TooLong(f"a prompt of {len(tokens)} tokens leaves no room for an output: {self._room()}",
                          len(tokens), self.max_length)  # fmt: skip
        most = self.max_length if max_tokens is None else check_count(max_tokens, "max_tokens")
        least = check_count(min_tokens, "min_tokens", least=0)
        count = check_count(n, "n", self._scheduler.max_seqs)
        first = None if seed is None else check_count(seed, "seed", least=0)
        most_logprobs = None if logprobs is None else check_logprobs(logprobs, vocab)
        most_scores = None if prompt_logprobs is None else check_logprobs(prompt_logprobs, vocab, "prompt_logprobs")
        scores = None if most_scores is None else TokenScores(len(tokens), num_logprobs=most_scores)
        ends = self.eos_ids if eos_ids is None else check_eos(eos_ids, vocab, least)
        check_names(namespace, adapter, self.executor.adapters)
        check_type(params, (SamplingParams, NoneType), "params")
        check_type(constraint, (Callable, NoneType), "constraint")  # type: ignore[arg-type]
        requests = [
            Generation(
                tokens, params or SamplingParams(), min(len(tokens) + most, self.max_length),
                min_length=len(tokens) + least, eos_ids=ends, seed=None if first is None else first + i,
                num_logprobs=most_logprobs, scores=scores, logit_bias=check_bias(logit_bias, vocab),
                constraint=None if constraint is None else constraint(), namespace=namespace, adapter=adapter,
            )
            for i in range(count)
        ]  # fmt: skip
        requests[0].siblings = requests[1:]
        set_terms(requests, terms)
        return requests

    def scoring(
        self,
        tokens: Iterable[int],
        *,
        first: int = 1,
        namespace: str = "",
        adapter: str | None = None,
        logprobs: int | None = None,
        **terms: Unpack[Terms],
    ) -> Scoring:
        """A request for the log-probability of each token from `first` on, and of the `logprobs` likeliest there."""
        self.check_writes()
        most = None if logprobs is None else check_logprobs(logprobs, self.executor.vocab)
        text = self._text(tokens, namespace, adapter)
        request = Scoring(text, namespace, adapter, most, check_count(first, "first", max(1, len(text) - 1)))
        set_terms([request], terms)
        return request

    def embedding(
        self,
        tokens: Iterable[int],
        *,
        last_only: bool = False,
        namespace: str = "",
        adapter: str | None = None,
        **terms: Unpack[Terms],
    ) -> Embedding:
        """A request for the last hidden row of each token, or of the last token alone."""
        text = self._text(tokens, namespace, adapter)
        request = Embedding(text, namespace, adapter, last_only=last_only and not self.is_encoder)
        set_terms([request], terms)
        return request

    def check_writes(self) -> None:
        """Refuse to write or score text where the model cannot."""
        if self.is_encoder:
            raise RequestError("the model is an encoder: it makes embeddings and writes no text; try embed")

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
            if requests[0].num_remaining:
                self._scheduler.add(requests[0])
            else:
                self._finish(requests[0], "stop")

    def cancel(self, requests: Iterable[Request]) -> None:
        """End requests, wherever they are. Those that are finished stay as they are."""
        for request in requests:
            self._finish(request, "cancelled")
        self._scheduler.drop_finished()

    def fail(self, error: Exception, requests: Iterable[Request] | None = None) -> None:
        """End requests with an error, all of them unless some are given."""
        if requests is None:
            flight, self._flight = self._flight, None
            self.fail(error, [*self._scheduler.active, *self._scheduler.waiting])
            if flight is not None:
                with suppress(Exception):  # all that matters is that it has ended
                    flight.handle.fetch()
            return
        for request in requests:
            for member in (request, *request.siblings):
                self._finish(member, "error", error)
        self._scheduler.drop_finished()

    def stats(self) -> Stats:
        """Counts and times since the start."""
        of = self._scheduler
        active = sum(not request.is_finished for request in of.active)  # some may not be dropped yet
        return replace(self._stats, preemptions=of.preemptions, active=active, waiting=len(of.waiting))

    def step(self) -> bool:
        """Schedule, launch, fetch, commit. Is there more to do?"""
        start = perf_counter()
        self._expire()
        flight = self._flight = self._flight or self._begin()
        if flight is not None:
            self._flight = self._run_ahead(flight) if self.executor.runs_ahead else None
            self._end(flight)
        self._stats.step_seconds += perf_counter() - start
        return bool(self._scheduler.active or self._scheduler.waiting or self._flight)

    def _expire(self) -> None:
        expired = self._scheduler.expired()
        for request in expired:
            self._finish(request, "deadline")
        if expired:
            self._scheduler.drop_finished()

    def _begin(self) -> Flight | None:
        step = self._scheduler.schedule()
        if not step.chunks:
            return None
        try:
            return self._launch(step)
        except OutOfPages as error:
            self._make_room(error)
        except Exception as error:
            self.fail(error, step.requests)
        return None

    def _run_ahead(self, flight: Flight) -> Flight | None:
        """Launch the next step before this one is fetched, if that can be."""
        if not flight.step.is_open:
            return None
        flight.advance()
        step = self._scheduler.schedule_ahead()
        if step is None or not step.chunks:
            return None
        try:
            return self._launch(step)
        except Exception:  # it is tried again when this one was fetched
            return None

    def _end(self, flight: Flight) -> None:
        try:
            outputs = self._fetch(flight)
            self._commit(flight.step, outputs)
        except Exception as error:
            self.fail(error, flight.step.requests)

    def _launch(self, step: Step) -> Flight:
        batch = make_batch(self.cache, step.chunks, step.output)
        batch.samples, batch.scores = step.samples, step.scores
        begin = perf_counter()
        try:
            handle = self.executor.launch(batch)
        except BaseException:
            self.cache.rollback(batch.view)
            raise
        self._stats.steps += 1
        self._stats.launch_seconds += perf_counter() - begin
        self._scheduler.last_output = step.output
        return Flight(step, batch.view, handle)

    def _fetch(self, flight: Flight) -> Outputs:
        begin = perf_counter()
        try:
            outputs = flight.handle.fetch()
            check_maps(self._maps)
        except BaseException:
            ahead, self._flight = self._flight, None
            for one in (ahead, flight):
                if one is not None:
                    one.take_back(self.cache)
            raise
        self._stats.fetch_seconds += perf_counter() - begin
        return outputs

    def _commit(self, step: Step, outputs: Outputs) -> None:
        for request, chunk in zip(step.requests, step.chunks, strict=True):
            if request.sequence == chunk.sequence:  # else it has ended since the launch
                self._commit_chunk(request, chunk)
        finished = False
        tops = outputs.tops or [[]] * len(step.scoring)  # empty where nobody asked
        for request, scores, top in zip(step.scoring, outputs.scores, tops, strict=True):
            finished |= self._score(request, scores, top)
        for leader in step.leaders:
            if leader.sequence and not leader.is_finished:
                self._scheduler.split(leader)
        for generation, sampled in zip(step.sampling, outputs.samples, strict=True):
            finished |= self._accept(generation, sampled)
        for embedding, row, count in step.embedding:
            finished |= self._embed(embedding, outputs, row, count)
        if finished:
            self._scheduler.drop_finished()

    def _commit_chunk(self, request: Request, chunk: Chunk) -> None:
        first, count = request.num_computed, len(chunk.tokens)
        if count > 1 or first < request.prompt_tokens:
            self._stats.prompt_tokens += count
        if not self.is_encoder:  # what it keeps of a token depends on later ones: it is for nobody else
            tokens = chunk.tokens if chunk.tokens[0] >= 0 else request.tokens[first : first + 1]  # known by now
            self.cache.commit(chunk.sequence, tokens)
        request.num_computed += count
        request.num_in_flight = 0

    def _accept(self, request: Generation, sampled: Sampled | Exception) -> bool:
        """Give a request its next token. Has it finished it?"""
        if request.finish_reason is not None:  # since the launch
            return False
        if isinstance(sampled, Exception):
            return self._finish(request, "error", sampled)
        token, logprobs = sampled
        self._stats.tokens += 1
        self._scheduler.waiting.charge(request.client, 1)
        if not request.first_token_time:
            request.first_token_time = perf_counter()
        if token in request.eos_ids:
            request.stop_token = token
            return self._finish(request, "stop")
        try:
            request.accept(token, logprobs)
        except Exception as error:  # of its constraint
            return self._finish(request, "error", error)
        if len(request.tokens) >= request.max_length:
            return self._finish(request, "length")
        return request.stream and not self._emit(request) and self._finish(request, "cancelled")

    def _score(self, request: Request, scores: Floats | Exception, tops: Sequence[Top]) -> bool:
        """Give a request the scores of its next tokens. Have they finished it?"""
        if request.is_finished:
            return False
        if isinstance(scores, Exception):
            for member in (request, *request.siblings):
                self._finish(member, "error", scores)
            return True
        assert request.scores is not None
        request.scores.receive(scores, tops)
        return isinstance(request, Scoring) and not request.num_remaining and self._finish(request, "stop")

    def _embed(self, request: Embedding, outputs: Outputs, row: int, count: int) -> bool:
        if request.finish_reason is not None:
            return False
        assert outputs.hidden is not None
        request.receive(outputs.hidden[row : row + count])
        return not request.num_remaining and self._finish(request, "stop")

    def _finish(self, request: Request, reason: str, error: Exception | None = None) -> bool:
        if request.finish_reason is None:
            request.finish_time = perf_counter()
            request.error = error
            request.finish_reason = reason
            self.limits.release(request)
            self._emit(request)
        return True

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

    def _text(self, text: Iterable[int], namespace: str, adapter: str | None) -> list[int]:
        tokens = check_tokens(text, self.executor.vocab)
        if len(tokens) > self.max_length:
            raise TooLong(f"a text of {len(tokens)} tokens is too long: {self._room()}", len(tokens),
                          self.max_length)  # fmt: skip
        check_names(namespace, adapter, self.executor.adapters)
        return tokens

    def _room(self) -> str:
        what = "context" if self.max_length == self._ctx else "cache"
        return f"the {what} holds {self.max_length} tokens"
