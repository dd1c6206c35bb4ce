"""Threads for work on text: decoding bodies, templates, tokenizing. It never holds up the event loop or other clients.

Such work cannot be stopped, so it is bounded: `check_chars` refuses what is too long, a few threads do it, a client
gets half of them at most, and large requests have threads of their own. Whoever waits can leave at any time. The
threads are daemons: the end of the process does not wait for them.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from ..errors import TooLong
from ..llm import LLM

T = TypeVar("T")

LARGE_BYTES = 64 << 10  # of a request body
MIN_CHARS, CHARS_PER_TOKEN = 1 << 20, 32  # of a text: so many in any case, and for each token of the context
THREAD_NAME = "fewbit-work"


class TextWork:
    """Runs calls in threads: small ones are not held up by large ones."""

    def __init__(self) -> None:
        self._small, self._large = Lane(threads=4, per_client=2), Lane(threads=2, per_client=1)
        self._bodies = Lane(threads=2, per_client=1)

    async def run(self, client: str, nbytes: int, call: Callable[[], T]) -> T:
        """What a call gives, made for a client of a body of so many bytes."""
        return await (self._large if nbytes > LARGE_BYTES else self._small).run(client, call)

    async def read(self, client: str, call: Callable[[], T]) -> T:
        """What a call gives that decodes a large body."""
        return await self._bodies.run(client, call)


class Lane:
    """At most so many calls at a time, and of one client. The others wait in order, each in its own event loop."""

    def __init__(self, threads: int, per_client: int) -> None:
        self._threads, self._per_client = threads, per_client
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    async def run(self, client: str, call: Callable[[], T]) -> T:
        """What a call gives, made in a thread when it is its turn."""
        await self.enter(client)
        try:
            found = in_daemon(call)
        except BaseException:
            self.leave(client)
            raise
        found.add_done_callback(lambda _: self.leave(client))  # when the thread is done, not when its waiter leaves
        return await asyncio.shield(found)

    async def enter(self, client: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting.append((client, turn))
            self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            with self._lock:
                has_turn = (client, turn) not in self._waiting
                if not has_turn:
                    self._waiting.remove((client, turn))
            if has_turn:
                self.leave(client)
            raise

    def leave(self, client: str) -> None:
        with self._lock:
            self._running[client] -= 1
            self._running += Counter()  # without those that are zero
            self._grant()

    def _grant(self) -> None:
        for waiter in [*self._waiting]:
            client, turn = waiter
            if self._running.total() >= self._threads:
                return
            if self._running[client] < self._per_client:
                self._waiting.remove(waiter)
                with suppress(RuntimeError):  # its event loop is closed
                    turn.get_loop().call_soon_threadsafe(_settle, turn, turn.set_result, None)
                    self._running[client] += 1


def in_daemon(call: Callable[[], T]) -> asyncio.Future[T]:
    """Start a call in a thread that the end of the process does not wait for."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        try:
            result = call()
            settled: tuple[Callable[[Any], None], Any] = found.set_result, result
        except BaseException as error:
            settled = found.set_exception, error
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(_settle, found, *settled)

    found.add_done_callback(lambda one: one.cancelled() or one.exception())  # nobody may be left to see its error
    threading.Thread(target=work, name=THREAD_NAME, daemon=True).start()
    return found


def is_busy() -> bool:
    """Whether such a thread still runs."""
    return any(thread.name == THREAD_NAME for thread in threading.enumerate())


def max_chars(llm: LLM) -> int:
    """Characters of the longest text that is tokenized: more than any text that fits into the context has."""
    return max(MIN_CHARS, CHARS_PER_TOKEN * llm.engine.max_length)


def check_chars(llm: LLM, *texts: Any) -> None:
    """Refuse texts, or messages and whatever is in them, that are far too long, before they are tokenized."""
    most = max_chars(llm)
    for text in texts:
        count = count_chars(text)
        if count > most:
            raise TooLong(
                f"a text of {count} characters is too long: at most {most} are read, "
                f"and the context holds {llm.engine.max_length} tokens",
                llm.engine.max_length + 1, llm.engine.max_length, is_exact=False,
            )  # fmt: skip


def count_chars(value: Any) -> int:
    """The characters of all strings in lists and dicts.

    >>> count_chars([{"role": "user", "content": ["ab", "c"]}, 5])
    18
    """
    count, rest = 0, [value]
    while rest:
        one = rest.pop()
        if isinstance(one, str):
            count += len(one)
        elif isinstance(one, Mapping):
            rest += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple) and not (one and isinstance(one[0], int)):  # those are token ids
            rest += one
    return count


def _settle(future: asyncio.Future[Any], settle: Callable[[Any], None], value: Any) -> None:
    if not future.done():
        settle(value)
