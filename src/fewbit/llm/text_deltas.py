"""Several outputs on their way, part by part: what servers and other event loops read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from ..engine.request import Event, Request
from ..engine.worker import Worker
from .completion import Completion, TokenLogprob
from .fold import Output, take


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Some text of one of several outputs, and its tokens: together they are those of the completion.

    `completion` is there in the last part of an output, and in no other. Log-probabilities come with the parts;
    `completion` does not repeat them.
    """

    index: int  # of the output: the `n` of the first prompt, those of the second ...
    text: str
    tokens: list[int]
    logprobs: list[TokenLogprob] | None = None
    completion: Completion | None = None
    stop_string: str | None = None  # that ended it


async def parts(worker: Worker, groups: Sequence[Sequence[Output]]) -> AsyncGenerator[TextDelta, None]:
    """Run outputs, those of one prompt in one group. What came while nobody read is one part.

    Whoever stops early must `aclose` it: then the requests that are left are cancelled.
    """
    outputs = [output for group in groups for output in group]
    numbers: dict[Request, int] = {output.request: number for number, output in enumerate(outputs)}
    open_ = set(numbers)
    mailbox = Mailbox()
    try:
        worker.submit_batch([[output.request for output in group] for group in groups], mailbox.put, stream=True)
        while open_:
            for request, events in _by_request(await mailbox.take()).items():
                if request not in open_:
                    continue
                part = _part(worker, outputs[numbers[request]], numbers[request], events)
                if part.completion is not None:
                    open_.discard(request)
                if part.text or part.tokens or part.completion is not None:
                    yield part
    finally:
        if open_:
            worker.cancel(list(open_))


class Mailbox:
    """Events of the engine's thread, taken together in an event loop: many come for one wake-up."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._arrived = asyncio.Event()

    def put(self, event: Event) -> None:
        """Called by the engine's thread."""
        self._events.append(event)
        if len(self._events) == 1:  # else somebody was called already, and has not come yet
            self._loop.call_soon_threadsafe(self._arrived.set)

    async def take(self) -> list[Event]:
        await self._arrived.wait()
        self._arrived.clear()
        events = []
        while self._events:  # the engine may add some meanwhile
            events.append(self._events.popleft())
        return events


def _by_request(events: list[Event]) -> dict[Request, list[int | None]]:
    found: dict[Request, list[int | None]] = {}
    for request, token in events:
        found.setdefault(request, []).append(token)
    return found


def _part(worker: Worker, output: Output, index: int, events: list[int | None]) -> TextDelta:
    first = output.num_visible
    text = "".join(take(worker, output, (output.request, token)) for token in events)
    last, request = output.num_visible, output.request
    tokens = request.tokens[request.prompt_tokens + first : request.prompt_tokens + last]
    completion = output.completion(with_logprobs=False) if output.is_finished else None
    return TextDelta(index, text, tokens, output.logprobs(first, last), completion, output.stop_string)
