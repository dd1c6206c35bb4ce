"""Answers on their way: tokens of the engine become text, in the thread of whoever asked."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from queue import SimpleQueue
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING

from .completion import Completion, TokenLogprob
from .engine.mailbox import mailbox
from .engine.request import Event, Floats, Logprobs, Request, Scoring, Sink
from .engine.worker import Worker
from .errors import FewbitError
from .text.stream import StopStrings, TextStream
from .text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import asyncio


class Answer:
    """The text of one request, as its tokens come: what it adds to the text of its prompt."""

    def __init__(self, tokenizer: Tokenizer, request: Request, stops: Sequence[str] = ()) -> None:
        self.request = request
        self.finish_reason: str | None = None
        self._tokenizer = tokenizer
        _, starts = tokenizer.next_piece(request.tokens[-1], False, True)
        self._stream = TextStream(tokenizer, continues=not starts)
        self._stops = StopStrings(stops) if stops else None
        self._parts: list[str] = []
        self._taken = 0  # tokens; the engine may be further on
        self._ended = 0.0

    @property
    def is_over(self) -> bool:
        return self.finish_reason is not None

    @property
    def has_stops(self) -> bool:
        """Whether each token must be looked at as soon as it comes."""
        return self._stops is not None

    def take(self, token: int | None) -> str:
        """The text that the next token completes; None: no more tokens come."""
        if self.is_over:
            return ""
        if token is None:
            return self._finish()
        self._taken += 1
        return self._add(self._stream.feed(token))

    def end(self, reason: str) -> None:
        """No more is wanted."""
        if self.finish_reason is None:
            self.finish_reason, self._ended = reason, perf_counter()

    def completion(self) -> Completion:
        of = self.request
        tokens = of.tokens[of.prompt_tokens : of.prompt_tokens + self._taken]
        wanted = None if of.top is None else of.logprobs[: self._taken]
        return Completion(
            text="".join(self._parts),
            tokens=tokens,
            finish_reason=self.finish_reason or "cancelled",
            logprobs=None if wanted is None else list(map(self._logprob, tokens, wanted)),
            prompt_tokens=of.prompt_tokens,
            cached_tokens=of.cached_tokens,
            prefill_seconds=of.first - of.started if of.first else 0.0,
            decode_seconds=max(0.0, self._ended - of.first) if of.first else 0.0,
        )

    def _finish(self) -> str:
        request = self.request
        reason = request.finish_reason or "cancelled"
        if request.error is not None:
            self.end(reason)
            raise _to_raise(request.error) from request.error
        text = ""
        for token in request.tokens[request.prompt_tokens + self._taken :]:  # those that nobody was told of
            text += self.take(token)
        text += self._add(self._stream.finish())
        if self._stops is not None:
            self._parts.append(self._stops.finish())
            text += self._parts[-1]
        if not self.is_over:
            self.finish_reason, self._ended = reason, request.ended
        return text

    def _add(self, text: str) -> str:
        if self._stops is not None:
            text = self._stops.feed(text)
            if self._stops.found is not None:
                self.end("stop")
        if text:
            self._parts.append(text)
        return text

    def _logprob(self, token: int, of: Logprobs) -> TokenLogprob:
        top = [self._likely(*one) for one in zip(of.tokens.tolist(), of.logprobs.tolist(), strict=True)]
        return self._likely(token, of.own, top)

    def _likely(self, token: int, logprob: float, top: Sequence[TokenLogprob] = ()) -> TokenLogprob:
        piece = self._tokenizer.token_bytes(token)
        return TokenLogprob(token, logprob, piece.decode("utf-8", "replace"), piece, list(top))


class Stream:
    """An answer that is written right now: an iterator of pieces of text.

    At its end `completion` holds all of it. `close`, or the end of a `with` block, stops it early.
    """

    def __init__(self, worker: Worker, answer: Answer) -> None:
        self._worker = worker
        self._answer = answer
        self._queue: SimpleQueue[Event] = SimpleQueue()
        worker.submit([answer.request], self._queue.put, each=True)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> str:
        while not self._answer.is_over:
            text = _take(self._worker, self._answer, self._queue.get())
            if text:
                return text
        raise StopIteration

    @property
    def completion(self) -> Completion:
        """The whole answer, or what came of it before it was closed."""
        return _completion(self._answer)

    def close(self) -> None:
        """Stop it, if it is not over."""
        _close(self._worker, self._answer)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class AsyncStream:
    """The same for `async for`. It begins when the first piece is asked for."""

    def __init__(self, worker: Worker, answer: Answer) -> None:
        self._worker = worker
        self._answer = answer
        self._queue: asyncio.Queue[Event] | None = None

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> str:
        if self._queue is None and not self._answer.is_over:
            self._queue, put = mailbox()
            self._worker.submit([self._answer.request], put, each=True)
        while self._queue is not None and not self._answer.is_over:
            text = _take(self._worker, self._answer, await self._queue.get())
            if text:
                return text
        raise StopAsyncIteration

    @property
    def completion(self) -> Completion:
        """The whole answer, or what came of it before it was closed."""
        return _completion(self._answer)

    async def aclose(self) -> None:
        """Stop it, if it is not over."""
        _close(self._worker, self._answer)

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        _close(self._worker, self._answer)


def gather(worker: Worker, groups: Sequence[Sequence[Answer]]) -> list[Completion]:
    """Complete answers, those to one prompt in one group."""
    gathering = _Gathering(worker, groups)
    queue: SimpleQueue[Event] = SimpleQueue()
    try:
        gathering.submit(queue.put)
        while gathering.open:
            gathering.take(queue.get())
    finally:
        gathering.close()
    return gathering.completions()


async def agather(worker: Worker, groups: Sequence[Sequence[Answer]]) -> list[Completion]:
    """The same without blocking the event loop."""
    gathering = _Gathering(worker, groups)
    queue, put = mailbox()
    try:
        gathering.submit(put)
        while gathering.open:
            gathering.take(await queue.get())
    finally:
        gathering.close()
    return gathering.completions()


def score(worker: Worker, request: Scoring) -> Floats:
    """The scores of a text."""
    queue: SimpleQueue[Event] = SimpleQueue()
    worker.submit([request], queue.put)
    try:
        queue.get()
    finally:
        if request.finish_reason is None:
            worker.cancel([request])
    if request.error is not None:
        raise _to_raise(request.error) from request.error
    return request.scores


class _Gathering:
    def __init__(self, worker: Worker, groups: Sequence[Sequence[Answer]]) -> None:
        self._worker = worker
        self._groups = groups
        self.open = {answer.request: answer for group in groups for answer in group}

    def submit(self, sink: Sink) -> None:
        for group in self._groups:
            self._worker.submit(
                [answer.request for answer in group], sink, each=any(answer.has_stops for answer in group)
            )

    def take(self, event: Event) -> None:
        answer = self.open.get(event[0])
        if answer is not None:
            _take(self._worker, answer, event)
            if answer.is_over:
                del self.open[answer.request]

    def close(self) -> None:
        if self.open:
            self._worker.cancel(list(self.open))

    def completions(self) -> list[Completion]:
        return [answer.completion() for group in self._groups for answer in group]


def _take(worker: Worker, answer: Answer, event: Event) -> str:
    token = event[1]
    text = answer.take(token)
    if token is not None and answer.is_over:  # at a stop string, of which the engine knows nothing
        worker.cancel([answer.request])
    return text


def _completion(answer: Answer) -> Completion:
    if not answer.is_over:
        raise FewbitError("the answer is not complete yet: take all pieces first, or close the stream")
    return answer.completion()


def _close(worker: Worker, answer: Answer) -> None:
    if not answer.is_over:
        answer.end("cancelled")
        worker.cancel([answer.request])


def _to_raise(error: Exception) -> FewbitError:
    """An error of the engine's thread, new for each who is to see it."""
    if isinstance(error, FewbitError):
        return copy(error)
    return FewbitError(f"the model failed: {type(error).__name__}: {error}")
