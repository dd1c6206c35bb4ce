"""Outputs while they are written: as deltas of several, as a stream of one, or awaited to the end."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from threading import Lock
from typing import NoReturn

from ..engine.request import Delta, Request
from ..engine.worker import Worker
from ..errors import FewbitError
from ..validation import refuse_pickle
from .callers import BlockingCaller, Caller, LoopCaller, drive
from .completion import Completion
from .fold import TextDelta, TextFold
from .progress import Progress, ProgressMeter

PICKLED_INSTEAD = "read it to its end, and use its completion"
Groups = Sequence[Sequence[TextFold]]  # the outputs of each prompt


class TextDeltas:
    """Runs the outputs of one call. Their deltas become text when they are requested.

    Args:
        worker: The engine's thread.
        groups: The outputs of each prompt.
        caller: Who waits.
        stream: Get the tokens step by step. Otherwise each output comes whole.
    """

    def __init__(self, worker: Worker, groups: Groups, caller: Caller, stream: bool = True) -> None:
        self._worker, self._caller = worker, caller
        self._open: dict[Request, TextFold] = {fold.request: fold for group in groups for fold in group}
        self._pending: deque[Delta] = deque()
        worker.submit_batch([[fold.request for fold in group] for group in groups], caller.put, stream)

    async def next(self) -> TextDelta | None:
        """The next delta of any output, or None when all are complete."""
        while self._open:
            while not self._pending:
                self._pending.extend(_merged(await self._caller.take()))
            delta = self._pending.popleft()
            if (fold := self._open.get(delta.request)) is not None:
                found = self._take(fold, delta)
                if found.completion is not None and fold.structure is not None:
                    found = replace(found, completion=await self._caller.compute(fold.check))
                if found.text or found.tokens or found.completion is not None or found.reasoning or found.calls:
                    return found
        return None

    async def next_text(self) -> str:
        """The next text, or "" when all outputs are complete."""
        while (delta := await self.next()) is not None:
            if delta.text:
                return delta.text
        return ""

    def close(self) -> None:
        """Cancel the outputs that are not complete."""
        if self._open:
            for fold in self._open.values():
                fold.close()
            self._worker.cancel(list(self._open))
            self._open.clear()

    def _take(self, fold: TextFold, delta: Delta) -> TextDelta:
        if delta.finish is not None:
            del self._open[fold.request]
        found = fold.take(delta)
        if found.completion is not None and delta.finish is None:  # at a stop string: the engine does not know it
            del self._open[fold.request]
            self._worker.cancel([fold.request])
        return found


async def text_deltas(worker: Worker, groups: Groups, caller: Caller) -> AsyncGenerator[TextDelta, None]:
    """All deltas of all outputs. Whoever stops early must `aclose` it, which cancels the rest."""
    with closing(TextDeltas(worker, groups, caller)) as deltas:
        while (delta := await deltas.next()) is not None:
            yield delta


async def complete(worker: Worker, groups: Groups, caller: Caller, progress: Progress) -> list[Completion]:
    """Run outputs to their ends: for each prompt output 0, which holds the others."""
    has_stops = any(fold.has_stops for group in groups for fold in group)
    outputs: dict[int, Completion] = {}
    with (
        closing(ProgressMeter(progress, sum(map(len, groups)), "outputs")) as meter,
        closing(TextDeltas(worker, groups, caller, stream=has_stops)) as deltas,
    ):
        while (delta := await deltas.next()) is not None:
            if delta.completion is not None:
                outputs[delta.index] = delta.completion
                meter.add(delta.completion.generated_tokens)
    found = [[outputs[fold.index] for fold in group] for group in groups]
    return [replace(first, others=tuple(others)) if others else first for first, *others in found]


class Stream:
    """An output that is being written: an iterator of the parts of its text.

        with llm.stream("Once upon a time") as stream:
            for text in stream:
                print(text, end="", flush=True)
        print(stream.completion.finish_reason)

    `close`, or the end of a `with` block, stops it early.
    """

    def __init__(self, worker: Worker, fold: TextFold) -> None:
        self._fold = fold
        self._deltas: TextDeltas | None = None  # if the request is refused
        self._deltas = TextDeltas(worker, [[fold]], BlockingCaller())
        self._lock = Lock()  # of the threads that read it

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> str:
        assert self._deltas is not None
        with self._lock:
            text = drive(self._deltas.next_text())
        if text:
            return text
        raise StopIteration

    def parts(self) -> Iterator[TextDelta]:
        """The deltas, in place of their texts: of a conversation, with reasoning and tool calls."""
        assert self._deltas is not None
        while True:
            with self._lock:
                delta = drive(self._deltas.next())
            if delta is None:
                return
            yield delta

    @property
    def prompt_done(self) -> float:
        """The share of the prompt that is computed, from 0 to 1."""
        request = self._fold.request
        return 1.0 if request.first_token_time else min(1.0, request.num_computed / request.prompt_tokens)

    @property
    def completion(self) -> Completion:
        """The whole output, or what was read of it before it was closed."""
        return _completion(self._fold)

    def close(self) -> None:
        """Stop, unless the output is complete."""
        if self._deltas is not None:
            self._deltas.close()

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

    It begins when its first part is requested. Text that came while nobody waited is one part.
    """

    def __init__(self, worker: Worker, make: Callable[[], TextFold]) -> None:
        self._worker, self._make = worker, make
        self._fold: TextFold | None = None
        self._deltas: TextDeltas | None = None
        self._closed = False

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> str:
        await self._begin()
        text = "" if self._deltas is None else await self._deltas.next_text()
        if text:
            return text
        raise StopAsyncIteration

    async def parts(self) -> AsyncIterator[TextDelta]:
        """The deltas, in place of their texts: of a conversation, with reasoning and tool calls."""
        await self._begin()
        while self._deltas is not None and (delta := await self._deltas.next()) is not None:
            yield delta

    @property
    def completion(self) -> Completion:
        """The whole output, or what was read of it before it was closed."""
        if self._fold is None and self._closed:
            return Completion("", [], "cancelled")
        return _completion(self._fold)

    async def aclose(self) -> None:
        """Stop, unless the output is complete."""
        self._close()

    def __reduce__(self) -> NoReturn:
        refuse_pickle("an AsyncStream", PICKLED_INSTEAD)

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._close()

    def __del__(self) -> None:
        self._close()

    async def _begin(self) -> None:
        if self._deltas is None and not self._closed:
            caller = LoopCaller()
            fold = await caller.compute(self._make)
            if not self._closed:  # meanwhile
                self._fold, self._deltas = fold, TextDeltas(self._worker, [[fold]], caller)

    def _close(self) -> None:
        self._closed = True
        if self._deltas is not None:
            self._deltas.close()


def _completion(fold: TextFold | None) -> Completion:
    if fold is None or fold.finish_reason is None:
        raise FewbitError("the output is not complete yet: read the stream to its end, or close it")
    return fold.completion()


def _merged(deltas: list[Delta]) -> list[Delta]:
    """One delta for each request."""
    if len(deltas) == 1:
        return deltas
    found: dict[Request, Delta] = {}
    for delta in deltas:
        earlier = found.get(delta.request)
        tokens = delta.tokens if earlier is None else [*earlier.tokens, *delta.tokens]
        found[delta.request] = delta._replace(tokens=tokens)
    return list(found.values())
