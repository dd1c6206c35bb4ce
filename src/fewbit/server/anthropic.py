"""`POST /v1/messages` and `/v1/messages/count_tokens`, as Anthropic's clients call them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import wraps
from typing import Any
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from .anthropic_types import (
    AnswerMessage,
    CountTokensRequest,
    MessagesRequest,
    MessageUsage,
    TokenCount,
    message_usage,
)
from .anthropic_writer import MessageWriter, anthropic_event, problem, stop_reason
from .bodies import JsonResponse, read
from .errors import ApiError, anthropic_body
from .jobs import Finished, Job, OutputDelta
from .prompts import ChatInput
from .replies import settled
from .runs import Run, begin, namespace
from .sse import event
from .tokens import count_prompt

Handler = Callable[[Request], Awaitable[Response]]


def with_status_codes(handler: Handler) -> Handler:
    """Anthropic's clients know 529 for a server that has too much to do, and 504 for what took too long."""

    @wraps(handler)
    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except ApiError as error:
            raise with_status(error) from error

    return handle


def with_status(error: ApiError) -> ApiError:
    status = 504 if error.code == "request_timeout" else {503: 529}.get(error.status, error.status)
    return ApiError(status, error.message, error.param, error.code, error.retry_after, error.closes, error.overflow)


@with_status_codes
async def messages(request: Request) -> Response:
    body = await read(request, MessagesRequest)
    job = Job(
        messages=body.template_messages(),
        tools=body.read_tools(),
        output=body.output(),
        thought_tokens=None if body.thinking is None else body.thinking.budget_tokens,
        template=body.template_names(),
        options=body.options(),
        namespace=namespace(request, None),
        ignored=body.left_out_tools(),
    )
    run = await begin(request, body.model, job)
    if body.stream:
        return run.stream(_events(run, body))
    return JsonResponse(await _answer(run, body))


@with_status_codes
async def count_tokens(request: Request) -> Response:
    body = await read(request, CountTokensRequest)
    chat = ChatInput(body.template_messages(), body.read_tools().shown, body.template_names())
    return JsonResponse(TokenCount(await count_prompt(request, body.model, chat)))


ROUTES: list[BaseRoute] = [
    Route("/v1/messages", messages, methods=["POST"]),
    Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
]


async def _answer(run: Run, body: MessagesRequest) -> AnswerMessage:
    deltas, finished, usage = await run.collect()
    writer, end = MessageWriter(body.shows_thoughts), finished[0]
    events = [event for delta in deltas[0] for event in delta.events]
    for _ in (*writer.feed(settled(events)), *writer.finish()):
        pass
    found = AnswerMessage(_new_id(), run.model, writer.content, message_usage(usage), *stop_reason(end))
    found.error = problem(end)
    return found


async def _events(run: Run, body: MessagesRequest) -> AsyncGenerator[bytes, None]:
    writer, end = MessageWriter(body.shows_thoughts), None
    prompt_tokens = sum(map(len, run.started.prompts))
    message = AnswerMessage(_new_id(), run.model, [], MessageUsage(prompt_tokens, 0))
    yield anthropic_event("message_start", message=message) + anthropic_event("ping")
    try:
        async for one in run:
            if isinstance(one, OutputDelta):
                if part := b"".join(writer.feed(one.events)):
                    yield part
            elif isinstance(one, Finished):
                end = one
                yield b"".join(writer.finish())
            elif end is not None:
                reason, stop = stop_reason(end)
                delta: dict[str, Any] = {"stop_reason": reason, "stop_sequence": stop}
                if end.is_invalid:
                    delta["error"] = problem(end)
                yield anthropic_event("message_delta", delta=delta, usage=message_usage(one))
                yield anthropic_event("message_stop")
    except ApiError as error:  # the status is sent already
        yield event(anthropic_body(with_status(error)), "error")


def _new_id() -> str:
    return f"msg_{uuid4().hex[:24]}"
