"""An output that is written right now, as an iterator of its text."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from ..engine.request import Event
from ..engine.worker import Worker
from ..errors import FewbitError
from ..validation import refuse_pickle
from .completion import Completion
from .fold import Output, event_queue, in_thread, take

if TYPE_CHECKING:
    import asyncio

PICKLED_INSTEAD = "read it to its end, and use its completion"


class Stream:
    """An output that is being written: an iterator of the parts of its text.

        with llm.stream("Once upon a time") as stream:
            for text in stream:
                print(text, end="", flush=True)
        print(stream.completion.finish_reason)

    `close`, or the end of a `with` block, stops it early.
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
        """The share of the prompt that is computed, from 0 to 1."""
        request = self._output.request
        return 1.0 if request.first_token_time else min(1.0, request.num_computed / request.prompt_tokens)

    @property
    def completion(self) -> Completion:
        """The whole output, or what was read of it before it was closed."""
        return _completion(self._output)

    def close(self) -> None:
        """Stop, unless the output is complete."""
        _close(self._worker, self._output)

    def __reduce__(self) -> NoReturn:
        refuse_pickle("a Stream", PICKLED_INSTEAD)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class AsyncStream:
    """A `Stream` for `async for`.

        async with llm.astream("Once upon a time") as stream:
            async for text in stream:
                print(text, end="", flush=True)

    It begins when its first part is requested: then `make` is called, in a thread.
    """

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
            self._output, (self._queue, put) = output, event_queue()
            self._worker.submit([output.request], put, stream=True)

    @property
    def completion(self) -> Completion:
        """The whole output, or what was read of it before it was closed."""
        if self._output is None and self._closed:
            return Completion("", [], "cancelled")
        return _completion(self._output)

    async def aclose(self) -> None:
        """Stop, unless the output is complete."""
        self._close()

    def __reduce__(self) -> NoReturn:
        refuse_pickle("an AsyncStream", PICKLED_INSTEAD)

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


def _completion(output: Output | None) -> Completion:
    if output is None or not output.is_finished:
        raise FewbitError("the output is not complete yet: read the stream to its end, or close it")
    return output.completion()


def _close(worker: Worker, output: Output) -> None:
    if not output.is_finished:
        output.end("cancelled")
        worker.cancel([output.request])
