"""A request to an ASGI app of this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any


async def post(app: Any, path: str, body: bytes) -> tuple[int, AsyncGenerator[bytes, None]]:
    """The status of an answer to JSON, and the parts of its body. Closing them early disconnects."""
    messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    unread, is_gone = [{"type": "http.request", "body": body, "more_body": False}], asyncio.Event()

    async def receive() -> dict[str, Any]:
        if unread:
            return unread.pop()
        await is_gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        messages.put_nowait(message)

    async def answer() -> None:
        try:
            await app(scope_of(path, len(body)), receive, send)
        finally:
            messages.put_nowait(None)

    running = asyncio.create_task(answer())
    start = await messages.get()
    if start is None:
        await running  # raises what went wrong
        raise AssertionError("the app answered nothing")

    async def parts() -> AsyncGenerator[bytes, None]:
        try:
            while (message := await messages.get()) is not None:
                if message.get("body"):
                    yield message["body"]
            await running
        finally:
            is_gone.set()
            await asyncio.wait({running})

    return start["status"], parts()


def scope_of(path: str, length: int) -> dict[str, Any]:
    """What an ASGI app is told of a request from this process."""
    headers = [
        (b"host", b"127.0.0.1"), (b"content-type", b"application/json"), (b"content-length", str(length).encode())
    ]  # fmt: skip
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 0), "server": ("127.0.0.1", 80),
    }  # fmt: skip
