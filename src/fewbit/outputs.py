"""Outputs on their way: tokens of the engine become text, in the thread of the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from queue import SimpleQueue
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from .completion import Completion, TokenLogprob
from .engine.request import Event, Generation, Request, Sink
from .engine.worker import Worker
from .errors import FewbitError
from .logprobs import scored_tokens, token_logprob
from .text.stream import StopStrings, TextStream
from .text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
R = TypeVar("R", bound=Request)


class Output:
    """The text of one request, as its tokens come: what it adds to the text of its prompt."""

    def __init__(
        self, tokenizer: Tokenizer, request: Generation, stops: Sequence[str] = (), *, prompt_only: bool = False
    ) -> None:
        self.request = request
        self._prompt_only = prompt_only  # the engine samples one token of it, which nobody is shown
        self.finish_reason: str | None = None
        self._tokenizer = tokenizer
        _, starts = tokenizer.decode_next(request.tokens[-1], False, True)
        self._stream = TextStream(tokenizer, continues=not starts)
        self._stops = StopStrings(stops) if stops else None
        self._parts: list[str] = []
        self._num_taken = 0  # tokens; the engine may be further on
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
        self._num_taken += 1
        return self._add(self._stream.feed(token))

    def end(self, reason: str) -> None:
        """No more is wanted."""
        if self.finish_reason is None:
            self.finish_reason, self._finish_time = reason, perf_counter()

    @property
    def num_taken(self) -> int:
        """Tokens whose text was taken, or is held back since it may be the start of a stop string."""
        return self._num_taken

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
        of = self.request
        tokens = of.tokens[of.prompt_tokens : of.prompt_tokens + self._num_taken]
        return Completion(
            text="".join(self._parts),
            tokens=tokens,
            finish_reason=self.finish_reason or "cancelled",
            stop_token=None if self._prompt_only else of.stop_token,
            logprobs=self.logprobs(0, self._num_taken) if with_logprobs else None,
            prompt_logprobs=self.prompt_logprobs(),
            prompt_tokens=of.prompt_tokens,
            cached_tokens=of.cached_tokens,
            prefill_seconds=of.first_token_time - of.start_time if of.first_token_time else 0.0,
            decode_seconds=max(0.0, self._finish_time - of.first_token_time) if of.first_token_time else 0.0,
        )

    def _finish(self) -> str:
        request = self.request
        reason = request.finish_reason or "cancelled"
        reason = "length" if self._prompt_only and reason == "stop" else reason
        if request.error is not None:
            self.end(reason)
            raise error_of(request.error) from request.error
        text = ""
        for token in request.tokens[request.prompt_tokens + self._num_taken :]:  # those that nobody was told of
            text += self.take(token)
        text += self._add(self._stream.finish())
        if self._stops is not None:
            self._parts.append(self._stops.finish())
            text += self._parts[-1]
        if not self.is_finished:
            self.finish_reason, self._finish_time = reason, request.finish_time
        return text

    def _add(self, text: str) -> str:
        if self._stops is not None:
            text = self._stops.feed(text)
            if self._stops.found is not None:
                self.end("stop")
        if text:
            self._parts.append(text)
        return text


class Stream:
    """An output that is written right now: an iterator of parts of its text.

    At its end `completion` holds all of it. `close`, or the end of a `with` block, stops it early.
    """

    def __init__(self, worker: Worker, output: Output) -> None:
        self._worker = worker
        self._output = output
        self._queue: SimpleQueue[Event] = SimpleQueue()
        worker.submit([output.request], self._queue.put, stream=True)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> str:
        while not self._output.is_finished:
            text = take(self._worker, self._output, self._queue.get())
            if text:
                return text
        raise StopIteration

    @property
    def prompt_done(self) -> float:
        """How much of the prompt was run so far, from 0 to 1."""
        request = self._output.request
        return 1.0 if request.first_token_time else min(1.0, request.num_computed / request.prompt_tokens)

    @property
    def completion(self) -> Completion:
        """The whole output, or what came of it before it was closed."""
        return _completion(self._output)

    def close(self) -> None:
        """Stop it, if it is not over."""
        _close(self._worker, self._output)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class AsyncStream:
    """The same for `async for`. It begins when its first part is asked for: then `make` is called, in a thread."""

    def __init__(self, worker: Worker, make: Callable[[], Output]) -> None:
        self._worker = worker
        self._make = make
        self._output: Output | None = None
        self._closed = False
        self._queue: asyncio.Queue[Event] | None = None

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> str:
        if self._queue is None and not self._closed:
            await self._begin()
        while self._queue is not None and self._output is not None and not self._output.is_finished:
            text = take(self._worker, self._output, await self._queue.get())
            if text:
                return text
        raise StopAsyncIteration

    async def _begin(self) -> None:
        output = await in_thread(self._make)
        if not self._closed:  # meanwhile
            self._output, (self._queue, put) = output, _queue()
            self._worker.submit([output.request], put, stream=True)

    @property
    def completion(self) -> Completion:
        """The whole output, or what came of it before it was closed."""
        if self._output is None and self._closed:
            return Completion("", [], "cancelled")
        return _completion(self._output)

    async def aclose(self) -> None:
        """Stop it, if it is not over."""
        self._close()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        self._closed = True
        if self._output is not None:
            _close(self._worker, self._output)


def gather(worker: Worker, groups: Sequence[Sequence[Output]]) -> list[Completion]:
    """Complete outputs, those of one prompt in one group."""
    gathering = _Gathering(worker, groups)
    queue: SimpleQueue[Event] = SimpleQueue()
    try:
        gathering.submit(queue.put)
        while gathering.open:
            gathering.take(queue.get())
    finally:
        gathering.close()
    return gathering.completions()


async def agather(worker: Worker, groups: Sequence[Sequence[Output]]) -> list[Completion]:
    """The same without blocking the event loop."""
    gathering = _Gathering(worker, groups)
    queue, put = _queue()
    try:
        gathering.submit(put)
        while gathering.open:
            gathering.take(await queue.get())
    finally:
        gathering.close()
    return gathering.completions()


def run(worker: Worker, requests: Sequence[R], done: Callable[[R], object]) -> None:
    """Run requests that have one result each: `done` is called with each that is finished."""
    running = _Running(worker, requests, done)
    queue: SimpleQueue[Event] = SimpleQueue()
    try:
        running.submit(queue.put)
        while running.open:
            running.take(queue.get())
    finally:
        running.close()


async def arun(worker: Worker, requests: Sequence[R], done: Callable[[R], object]) -> None:
    """The same without blocking the event loop."""
    running = _Running(worker, requests, done)
    queue, put = _queue()
    try:
        running.submit(put)
        while running.open:
            running.take(await queue.get())
    finally:
        running.close()


class _Running(Generic[R]):
    """Requests that run, until all are finished or one failed."""

    def __init__(self, worker: Worker, requests: Sequence[R], done: Callable[[R], object]) -> None:
        self._worker, self._done = worker, done
        self.open: dict[Request, R] = {request: request for request in requests}

    def submit(self, sink: Sink) -> None:
        self._worker.submit_batch([[request] for request in self.open.values()], sink)

    def take(self, event: Event) -> None:
        request = self.open.pop(event[0])
        if request.error is not None:
            raise error_of(request.error) from request.error
        self._done(request)

    def close(self) -> None:
        if self.open:
            self._worker.cancel(list(self.open))


class _Gathering:
    def __init__(self, worker: Worker, groups: Sequence[Sequence[Output]]) -> None:
        self._worker = worker
        self._groups = groups
        self.open: dict[Request, Output] = {output.request: output for group in groups for output in group}

    def submit(self, sink: Sink) -> None:
        groups = [[output.request for output in group] for group in self._groups]
        self._worker.submit_batch(groups, sink, stream=any(output.has_stops for output in self.open.values()))

    def take(self, event: Event) -> None:
        output = self.open.get(event[0])
        if output is not None:
            take(self._worker, output, event)
            if output.is_finished:
                del self.open[output.request]

    def close(self) -> None:
        if self.open:
            self._worker.cancel(list(self.open))

    def completions(self) -> list[Completion]:
        return [output.completion() for group in self._groups for output in group]


async def in_thread(call: Callable[[], T]) -> T:
    """What a call gives that takes long, such as tokenizing, while the event loop goes on."""
    import asyncio  # only callers in an event loop pay for it

    return await asyncio.to_thread(call)


def _queue() -> tuple[asyncio.Queue[Event], Sink]:
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


def _completion(output: Output | None) -> Completion:
    if output is None or not output.is_finished:
        raise FewbitError("the output is not complete yet: take all parts first, or close the stream")
    return output.completion()


def _close(worker: Worker, output: Output) -> None:
    if not output.is_finished:
        output.end("cancelled")
        worker.cancel([output.request])


def error_of(error: Exception) -> FewbitError:
    """An error of the engine's thread, new for each who is to see it."""
    if isinstance(error, FewbitError):
        return copy(error)
    return FewbitError(f"the model failed: {type(error).__name__}: {error}")
