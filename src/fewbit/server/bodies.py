"""Reading request bodies, within limits, into structs; and writing JSON."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, ClassVar, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from .errors import ApiError, cut
from .ignored import note_ignored
from .json_size import check_values
from .lenient import tidied
from .settings import Settings
from .state import client_name, state_of
from .text_work import LARGE_BYTES
from .waiting import on_body

T = TypeVar("T")

_UNKNOWN = re.compile(r"unknown field `(?P<name>.*?)`")
_PATH = re.compile(r" - at `\$?\.?(?P<path>.*)`$")


class Body(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A request body, or a part of one.

    Fields that it does not name are ignored, except those in `refused`, which would change the answer unless they are
    null or have one of these values. A strict server refuses all of them.
    """

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {}


class NamedModel(Body):
    """A body that names a model, the way Ollama's clients do."""

    model: str | None = None
    name: str | None = None  # as older clients call it

    def model_name(self) -> str:
        if not (found := self.model or self.name):
            raise ApiError(400, "model is required", "model", "invalid_request")
        return found


class JsonResponse(Response):
    """A struct or plain values as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


async def read(request: Request, kind: type[T]) -> T:
    """The body of a request, checked. What cannot be read is refused with where it is wrong."""
    parts, strict = await read_parts(request), state_of(request).settings.strict
    if request.scope.get("fewbit.body_bytes", 0) > LARGE_BYTES:
        body: tuple[T, list[str]] = await on_body(request, _decode_large, parts, kind, strict)
    else:
        body = decode(b"".join(parts), kind, strict)
    found, ignored = body
    _check_count(found, state_of(request).settings.max_messages)
    note_ignored(request, ignored)
    return found


def _check_count(body: object, most: int) -> None:
    """Refuse more messages than anybody has, before something is done with each of them."""
    for name in ("messages", "input"):
        items = getattr(body, name, None)
        if isinstance(items, list) and len(items) > most and not isinstance(items[0], int):  # those are token ids
            raise ApiError(400, f"{name} has {len(items)} items: at most {most} are read", name, "too_many_items")


def _decode_large(parts: list[bytes], kind: type[T], strict: bool) -> tuple[T, list[str]]:
    data = b"".join(parts)
    parts.clear()
    check_values(data)
    return decode(data, kind, strict)


def decode(data: bytes, kind: type[T], strict: bool = False) -> tuple[T, list[str]]:
    """A body, checked, and the names of the fields that were ignored, unless that is refused by `strict`."""
    try:
        try:
            return _decoder(kind).decode(data), []  # type: ignore[arg-type]
        except msgspec.ValidationError:
            if strict:
                raise
        return tidied(msgspec.json.decode(data), kind)
    except msgspec.ValidationError as error:
        raise _refused(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply", code="invalid_json") from None


async def read_parts(request: Request) -> list[bytes]:
    """All of a body that is neither too large nor too slow."""
    state, client = state_of(request), client_name(request)
    parts: list[bytes] = []
    size = 0
    async for part in body_parts(request, state.settings.max_body_bytes):
        size += len(part)
        state.take_body(client, len(part))
        request.scope["fewbit.body_bytes"], request.scope["fewbit.client"] = size, client  # `Guard` releases them
        parts.append(part)
    return parts


async def body_parts(request: Request, most: int) -> AsyncGenerator[bytes, None]:
    """The parts of a body, one of at most so many bytes, that comes quickly enough."""
    limits, pauses = state_of(request).settings, state_of(request).pauses
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise _too_large(most)
    size, clock = 0, asyncio.get_running_loop().time
    begun, is_last = clock(), False
    while not is_last:
        seconds_left = body_patience(limits, size, clock() - begun)
        part, is_last = await _within(seconds_left + pauses.lenience, request.receive())
        size += len(part)
        if size > most:
            raise _too_large(most)
        yield part


def body_patience(limits: Settings, size: int, seconds: float) -> float:
    """Seconds until more of a body must come, of which so many bytes came in so many seconds.

    >>> limits = Settings(body_idle_seconds=1.0, min_body_rate=1000)
    >>> body_patience(limits, 0, 0.0), body_patience(limits, 10**6, 2.0), body_patience(limits, 2000, 2.5)
    (1.0, 1.0, 0.5)
    """
    latest = limits.body_idle_seconds + size / limits.min_body_rate
    return min(limits.body_idle_seconds, latest - seconds)


async def _within(seconds: float, coming: Awaitable[Message]) -> tuple[bytes, bool]:
    """The next part of a body, and whether it is the last. What is there already counts, however late this server
    comes to read it."""
    task = asyncio.ensure_future(coming)
    try:
        await asyncio.wait({task}, timeout=max(seconds, 0.0))
    finally:
        task.cancel()
    if not task.done():
        raise ApiError(408, "the body came too slowly; send it at once", code="body_timeout")
    message = task.result()
    if message["type"] == "http.disconnect":
        raise ApiError(400, "the client disconnected before its body was complete", code="disconnected")
    return message.get("body", b""), not message.get("more_body", False)


def utc_date(seconds: float | None = None) -> str:
    """A time as APIs write it; now if none is given.

    >>> utc_date(0)
    '1970-01-01T00:00:00Z'
    """
    time = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return time.isoformat().replace("+00:00", "Z")


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _refused(message: str) -> ApiError:
    found = _PATH.search(message)
    path = cut(found["path"]) if found else ""
    unknown = _UNKNOWN.search(message)
    if unknown:
        name = cut(f"{path}.{unknown['name']}" if path else unknown["name"])
        return ApiError(400, f"{name} is not supported; leave it out", name, "unsupported_parameter")
    reason = cut(message[: found.start()] if found else message, 300)
    return ApiError(400, f"{path}: {reason}" if path else reason, path or None, "invalid_request")


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"the body is too large: at most {most} bytes are read", code="body_too_large")
