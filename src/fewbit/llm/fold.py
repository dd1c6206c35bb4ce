"""Outputs on their way: tokens of the engine become text, in the thread of the caller."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Generic, TypeVar

from ..engine.request import Event, Generation, Request, Sink
from ..engine.worker import Worker
from ..errors import FewbitError
from ..text.stream import StopStrings, TextStream
from ..text.tokenizer import Tokenizer
from .completion import Completion, TokenLogprob
from .logprobs import scored_tokens, token_logprob
from .progress import Meter, Progress

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
R = TypeVar("R", bound=Request)


class Output:
    """The text of one request, as its tokens come: what it adds to the text of its prompt."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        request: Generation,
        stops: Sequence[str] = (),
        *,
        prompt_only: bool = False,
        prompt_index: int = 0,
        index: int = 0,
    ) -> None:
        self.request = request
        self._prompt_index, self._index = prompt_index, index
        self._prompt_only = prompt_only  # the engine samples one token of it, which nobody is shown
        self.finish_reason: str | None = None
        self._tokenizer = tokenizer
        _, starts = tokenizer.decode_next(request.tokens[-1], False, True)
        self._stream = TextStream(tokenizer, continues=not starts)
        self._stops = StopStrings(stops) if stops else None
        self._parts: list[str] = []
        self.num_taken = 0  # tokens; the engine may be further on
        self._ends = [0]  # characters of the first i tokens
        self._decoded_chars = self._visible_chars = 0  # characters; those between may be the start of a stop string
        self._is_whole = False  # all text of all tokens is visible
        self._finish_time = 0.0

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended it, if one did."""
        return None if self._stops is None else self._stops.found

    @property
    def has_stops(self) -> bool:
        """Whether each token must be looked at as soon as it comes."""
        return self._stops is not None or self._prompt_only

    def take(self, token: int | None) -> str:
        """The text that the next token completes; None: no more tokens come."""
        if self.is_finished:
            return ""
        if token is None:
            return self._finish()
        if self._prompt_only:
            self.end("length")
            return ""
        self.num_taken += 1
        text = self._stream.feed(token)
        self._decoded_chars += len(text)
        self._ends.append(self._decoded_chars)
        return self._add(text)

    def end(self, reason: str) -> None:
        """No more is wanted."""
        if self.finish_reason is None:
            self.finish_reason, self._finish_time = reason, perf_counter()

    @property
    def num_visible(self) -> int:
        """The fewest tokens that hold the visible text: none whose text is held back or cut off."""
        if self._is_whole or (self._stops is None and not self.is_finished):
            return self.num_taken
        return min(bisect_left(self._ends, self._visible_chars), self.num_taken)

    def logprobs(self, first: int, last: int) -> list[TokenLogprob] | None:
        """Those of the output's tokens from one up to another; None if nobody asked for them."""
        of = self.request
        if of.num_logprobs is None:
            return None
        tokens = of.tokens[of.prompt_tokens + first : of.prompt_tokens + last]
        return [token_logprob(self._tokenizer, *one) for one in zip(tokens, of.logprobs[first:last], strict=True)]

    def prompt_logprobs(self) -> list[TokenLogprob | None] | None:
        """Those of the prompt's tokens, the first of which has none; None if nobody asked for them."""
        request = self.request
        if request.scores is None:
            return None
        return [None, *scored_tokens(self._tokenizer, request.tokens, request.scores)]

    def completion(self, with_logprobs: bool = True) -> Completion:
        of, count = self.request, self.num_visible
        return Completion(
            text="".join(self._parts),
            tokens=of.tokens[of.prompt_tokens : of.prompt_tokens + count],
            finish_reason=self.finish_reason or "cancelled",
            stop_token=None if self._prompt_only or self.stop_string is not None else of.stop_token,
            logprobs=self.logprobs(0, count) if with_logprobs else None,
            prompt_logprobs=self.prompt_logprobs(),
            prompt_tokens=of.prompt_tokens,
            cached_tokens=of.cached_tokens,
            prefill_seconds=of.first_token_time - of.start_time if of.first_token_time else 0.0,
            decode_seconds=max(0.0, self._finish_time - of.first_token_time) if of.first_token_time else 0.0,
            cut_tokens=self.num_taken - count,
            prompt_index=self._prompt_index,
            index=self._index,
        )

    def _finish(self) -> str:
        request = self.request
        reason = request.finish_reason or "cancelled"
        reason = "length" if self._prompt_only and reason == "stop" else reason
        if request.error is not None:
            self.end(reason)
            raise error_of(request.error) from request.error
        text = ""
        for token in request.tokens[request.prompt_tokens + self.num_taken :]:  # those that nobody was told of
            text += self.take(token)
        text += self._add(self._stream.finish())
        if self._stops is not None:
            text += self._show(self._stops.finish())
        if not self.is_finished:
            self.finish_reason, self._finish_time, self._is_whole = reason, request.finish_time, True
        return text

    def _add(self, text: str) -> str:
        if self._stops is not None:
            text = self._stops.feed(text)
            if self._stops.found is not None:
                self.end("stop")
        return self._show(text)

    def _show(self, text: str) -> str:
        if text:
            self._parts.append(text)
            self._visible_chars += len(text)
        return text


def gather(worker: Worker, groups: Sequence[Sequence[Output]], progress: Progress = False) -> list[Completion]:
    """Run outputs, those of one prompt in one group, to a completion for each prompt."""
    gathering = _Gathering(worker, groups, progress)
    queue: SimpleQueue[Event] = SimpleQueue()
    try:
        gathering.submit(queue.put)
        while gathering.open:
            gathering.take(queue.get())
    finally:
        gathering.close()
    return gathering.completions()


async def agather(worker: Worker, groups: Sequence[Sequence[Output]], progress: Progress = False) -> list[Completion]:
    """The same without blocking the event loop."""
    gathering = _Gathering(worker, groups, progress)
    queue, put = event_queue()
    try:
        gathering.submit(put)
        while gathering.open:
            gathering.take(await queue.get())
    finally:
        gathering.close()
    return gathering.completions()


def run(worker: Worker, requests: Sequence[R], done: Callable[[R], object], progress: Progress = False) -> None:
    """Run requests that have one result each: `done` is called with each that is finished."""
    running = _Running(worker, requests, done, progress)
    queue: SimpleQueue[Event] = SimpleQueue()
    try:
        running.submit(queue.put)
        while running.open:
            running.take(queue.get())
    finally:
        running.close()


async def arun(worker: Worker, requests: Sequence[R], done: Callable[[R], object], progress: Progress = False) -> None:
    """The same without blocking the event loop."""
    running = _Running(worker, requests, done, progress)
    queue, put = event_queue()
    try:
        running.submit(put)
        while running.open:
            running.take(await queue.get())
    finally:
        running.close()


class _Running(Generic[R]):
    """Requests that run, until all are finished or one failed."""

    def __init__(self, worker: Worker, requests: Sequence[R], done: Callable[[R], object], progress: Progress) -> None:
        self._worker, self._done = worker, done
        self.open: dict[Request, R] = {request: request for request in requests}
        self._meter = Meter(progress, len(requests), "texts")

    def submit(self, sink: Sink) -> None:
        self._worker.submit_batch([[request] for request in self.open.values()], sink)

    def take(self, event: Event) -> None:
        request = self.open.pop(event[0])
        if request.error is not None:
            raise error_of(request.error) from request.error
        self._done(request)
        self._meter.add(request.prompt_tokens)

    def close(self) -> None:
        self._meter.close()
        if self.open:
            self._worker.cancel(list(self.open))


class _Gathering:
    def __init__(self, worker: Worker, groups: Sequence[Sequence[Output]], progress: Progress) -> None:
        self._worker = worker
        self._groups = groups
        self.open: dict[Request, Output] = {output.request: output for group in groups for output in group}
        self._meter = Meter(progress, len(self.open), "outputs")

    def submit(self, sink: Sink) -> None:
        groups = [[output.request for output in group] for group in self._groups]
        self._worker.submit_batch(groups, sink, stream=any(output.has_stops for output in self.open.values()))

    def take(self, event: Event) -> None:
        output = self.open.get(event[0])
        if output is not None:
            take(self._worker, output, event)
            if output.is_finished:
                del self.open[output.request]
                self._meter.add(output.num_taken)

    def close(self) -> None:
        self._meter.close()
        if self.open:
            self._worker.cancel(list(self.open))

    def completions(self) -> list[Completion]:
        """Output 0 of each prompt, which holds the others."""
        found = [[output.completion() for output in group] for group in self._groups]
        return [replace(first, others=tuple(others)) if others else first for first, *others in found]


async def in_thread(call: Callable[[], T]) -> T:
    """What a call gives that takes long, such as tokenizing, while the event loop goes on."""
    import asyncio  # only callers in an event loop pay for it

    return await asyncio.to_thread(call)


def event_queue() -> tuple[asyncio.Queue[Event], Sink]:
    """A queue of the running event loop, and a sink that fills it from another thread."""
    import asyncio

    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Event] = asyncio.Queue()
    return queue, lambda event: loop.call_soon_threadsafe(queue.put_nowait, event)


def take(worker: Worker, output: Output, event: Event) -> str:
    """The text that an event adds to an output. One that ends at a stop string is cancelled."""
    token = event[1]
    text = output.take(token)
    if token is not None and output.is_finished:  # at a stop string, of which the engine knows nothing
        worker.cancel([output.request])
    return text


def error_of(error: Exception) -> FewbitError:
    """An error of the engine's thread, new for each who is to see it."""
    if isinstance(error, FewbitError):
        return copy(error)
    return FewbitError(f"the model failed: {type(error).__name__}: {error}")
