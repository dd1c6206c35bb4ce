"""One request of a batch, answered by the handlers of the server in this process."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from ...errors import FewbitError
from ..errors import ApiError, from_fewbit
from ..keys import Quota
from ..log import log
from ..metrics import Metrics
from ..openai_chat import chat_completions
from ..openai_completions import completions
from ..openai_embeddings import embeddings
from ..pool import ALLOWED, Pool
from ..settings import Settings
from ..state import State
from .lines import MAX_LINE_BYTES, InputLine, LineError, Record, answered, decode_line, error_body, refused

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
HANDLERS: dict[str, Handler] = {
    "/v1/chat/completions": chat_completions, "/v1/completions": completions, "/v1/embeddings": embeddings,
}  # fmt: skip
RETRIED = frozenset(("queue_full", "overloaded", "model_failed"))
MAX_TRIES = 20


@dataclass(frozen=True, slots=True)
class Submitter:
    """On whose behalf requests are run: the key of the one who submitted the batch.

    Args:
        key_id: See `ApiKey.id`.
        quota: What the key has left of this minute. Requests wait for it.
        models: What the key may use; None: all.
        max_priority: Requests get at most this one.
    """

    key_id: str = ""
    quota: Quota | None = None
    models: frozenset[str] | None = None
    max_priority: int = 0


class ShuttingDown(Exception):
    """The server ends: the rest of a batch is run after the next start."""


def batch_app(pool: Pool) -> Starlette:
    """What the handlers need of an app, with the limits of a job that has the models for itself."""
    settings = Settings(
        max_body_bytes=MAX_LINE_BYTES, max_bodies_bytes=1 << 40, max_queue=1 << 30, request_seconds=1e8
    )  # fmt: skip
    app = Starlette()
    app.state.fewbit = State(settings, pool, Metrics(pool))
    return app


async def answer(
    app: Starlette, line: InputLine, repeated: dict[int, int], submitter: Submitter, created: int
) -> Record:
    """The record of a line. Whatever is wrong with it stands in the record."""
    try:
        found = decode_line(line, repeated)
    except LineError as error:
        return refused(line, error)
    for _ in range(MAX_TRIES):
        status, body, again = await ask(app, found.url, bytes(found.body), submitter)
        if again is None:
            break
        await asyncio.sleep(again)
    return answered(line, found.custom_id, status, body, created)


async def ask(app: Starlette, url: str, body: bytes, submitter: Submitter) -> tuple[int, bytes, float | None]:
    """The status and body of an answer, and after how many seconds it is worth asking again."""
    ALLOWED.set(submitter.models)
    request = _request(app, url, body, submitter)
    await _admit(submitter.quota)
    try:
        response = await HANDLERS[url](request)
    except FewbitError as error:
        return _failed(from_fewbit(error))
    except ApiError as error:
        return _failed(error)
    except Exception as error:
        log("batch request failed", reason=traceback.format_exc())
        return _failed(ApiError(500, f"the request failed: {type(error).__name__}", code="internal"))
    finally:
        state: State = app.state.fewbit
        if (nbytes := request.scope.get("fewbit.body_bytes")) is not None:
            state.release_body(request.scope["fewbit.client"], nbytes)
    return response.status_code, bytes(response.body), None


async def _admit(quota: Quota | None) -> None:
    """Wait until the quota has room for a request."""
    while quota is not None:
        try:
            quota.admit()
            return
        except ApiError as error:
            await asyncio.sleep(error.retry_after or 1)


def _failed(error: ApiError) -> tuple[int, bytes, float | None]:
    if error.code == "shutting_down":
        raise ShuttingDown
    again = float(error.retry_after or 1) if error.code in RETRIED else None
    return error.status, error_body(error), again


def _request(app: Starlette, url: str, body: bytes, submitter: Submitter) -> Request:
    parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if parts:
            return parts.pop()
        await asyncio.Event().wait()  # it never disconnects
        raise AssertionError

    state = {"quota": submitter.quota, "key_id": submitter.key_id} if submitter.key_id else {}
    scope = {
        "type": "http", "app": app, "method": "POST", "path": url, "query_string": b"", "headers": [],
        "client": ("batch", 0), "state": state, "fewbit.request_id": uuid4().hex,
        "fewbit.max_priority": submitter.max_priority,
    }  # fmt: skip
    return Request(scope, receive)
