"""Server-sent events: a stream with pings that ends what it streams when its reader goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import msgspec
from starlette.background import BackgroundTask
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
NDJSON = "application/x-ndjson"


def event(data: Any, name: str | None = None) -> bytes:
    """An event with JSON in it.

    >>> event({"a": 1}), event({}, "message_stop")
    (b'data: {"a":1}\\n\\n', b'event: message_stop\\ndata: {}\\n\\n')
    """
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"


def json_line(record: Any) -> bytes:
    """A line of a stream of JSON, as Ollama's clients read it."""
    return msgspec.json.encode(record) + b"\n"


class EventStream(Response):
    """Streams what a generator of bytes gives.

    A reader that is slow stalls nobody: the generator is asked for more when the last part was written, and the engine
    goes on meanwhile. One that takes nothing for `write_seconds`, or goes, ends the generator at once.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        *,
        ping_seconds: float = 15.0,
        write_seconds: float = 60.0,
        media_type: str | None = None,
        ping: bytes | None = PING,  # None: this kind of stream has no comments
    ) -> None:
        self.status_code, self.background = 200, BackgroundTask(_nothing)
        self.media_type = media_type or self.media_type
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._parts, self._ping, self._ping_seconds, self._write_seconds = parts, ping, ping_seconds, write_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writing = asyncio.create_task(self._write(send))
        leaving = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writing, leaving):
                task.cancel()
            await asyncio.wait({writing, leaving})
            await self._parts.aclose()
        error = None if writing.cancelled() else writing.exception()
        if error is not None and not isinstance(error, OSError | TimeoutError):  # those: the reader went, or is stuck
            raise error

    async def _write(self, send: Send) -> None:
        await self._send(send, {"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        following = asyncio.ensure_future(anext(self._parts, None))
        try:
            while True:
                done, _ = await asyncio.wait({following}, timeout=self._ping_seconds)
                if not done:
                    if self._ping is not None:
                        await self._body(send, self._ping)
                    continue
                part = following.result()
                await self._body(send, part or b"", has_more=part is not None)
                if part is None:
                    return
                following = asyncio.ensure_future(anext(self._parts, None))
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await following

    async def _body(self, send: Send, data: bytes, has_more: bool = True) -> None:
        await self._send(send, {"type": "http.response.body", "body": data, "more_body": has_more})

    async def _send(self, send: Send, message: dict[str, Any]) -> None:
        async with asyncio.timeout(self._write_seconds):
            await send(message)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _nothing() -> None:
    pass
