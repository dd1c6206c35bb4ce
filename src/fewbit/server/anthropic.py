"""`POST /v1/messages` and `/v1/messages/count_tokens`, as Anthropic's clients call them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from functools import wraps
from typing import Any
from uuid import uuid4

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from .anthropic_types import (
    AnswerMessage,
    CountTokensRequest,
    MessagesRequest,
    MessageUsage,
    StopReason,
    TextBlock,
    TokenCount,
    ToolUseBlock,
    message_usage,
)
from .bodies import JsonResponse, read
from .errors import ApiError, anthropic_body
from .jobs import Delta, Finished, Job
from .prompts import Conversation
from .runs import Run, begin, namespace, rules_of
from .sse import event
from .tokens import counted, with_model
from .tool_calls import Call, ToolParser

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
        tools=body.template_tools(),
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
    said, tools, names = body.template_messages(), body.template_tools(), body.template_names()
    asked = Conversation(said, tools, names, **rules_of(request))
    return JsonResponse(TokenCount(await with_model(request, body.model, counted, asked)))


ROUTES: list[BaseRoute] = [
    Route("/v1/messages", messages, methods=["POST"]),
    Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
]


class Writer:
    """Text of a model in, content blocks and the events that tell of them out."""

    def __init__(self, run: Run, body: MessagesRequest) -> None:
        self.content: list[TextBlock | ToolUseBlock] = []
        one_call = body.tool_choice is not None and body.tool_choice.disable_parallel_tool_use
        names = [tool["function"]["name"] for tool in run.job.tools or ()]
        self._parser = ToolParser(names, most=1 if one_call else None)
        self._texts: list[str] = []

    def feed(self, text: str) -> Iterator[bytes]:
        yield from self._text(self._parser.feed(text))

    def finish(self) -> Iterator[bytes]:
        rest, calls = self._parser.finish()
        yield from self._text(rest)
        if self._texts:
            self.content[0] = TextBlock("".join(self._texts))
            yield _event("content_block_stop", index=0)
        for call in calls:
            yield from self._call(call)

    def _text(self, text: str) -> Iterator[bytes]:
        if not text:
            return
        if not self._texts:
            self.content.append(TextBlock(""))
            yield _event("content_block_start", index=0, content_block=TextBlock(""))
        self._texts.append(text)
        yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})

    def _call(self, call: Call) -> Iterator[bytes]:
        number, given = len(self.content), tool_input(call.arguments)
        block = ToolUseBlock(f"toolu_{uuid4().hex[:24]}", call.name, given)
        self.content.append(block)
        yield _event("content_block_start", index=number, content_block=msgspec.structs.replace(block, input={}))
        delta = {"type": "input_json_delta", "partial_json": json.dumps(given, ensure_ascii=False)}
        yield _event("content_block_delta", index=number, delta=delta)
        yield _event("content_block_stop", index=number)


def tool_input(arguments: str) -> dict[str, Any]:
    """The arguments of a call as an object, which they must be here.

    >>> tool_input('{"x": 1}'), tool_input("[1]"), tool_input("oops")
    ({'x': 1}, {'arguments': [1]}, {'arguments': 'oops'})
    """
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = arguments
    return value if isinstance(value, dict) else {"arguments": value}


async def _answer(run: Run, body: MessagesRequest) -> AnswerMessage:
    deltas, finished, usage = await run.collect()
    writer = Writer(run, body)
    for text in [delta.text for delta in deltas[0]]:
        list(writer.feed(text))
    list(writer.finish())
    reason, stop = _reason(finished[0], writer)
    return AnswerMessage(_new_id(), run.model, writer.content, message_usage(usage), reason, stop)


async def _events(run: Run, body: MessagesRequest) -> AsyncGenerator[bytes, None]:
    writer = Writer(run, body)
    reason: tuple[StopReason, str | None] = "end_turn", None
    prompt_tokens = sum(map(len, run.started.prompts))
    message = AnswerMessage(_new_id(), run.model, [], MessageUsage(prompt_tokens, 0))
    yield _event("message_start", message=message) + _event("ping")
    try:
        async for one in run:
            if isinstance(one, Delta):
                part = b"".join(writer.feed(one.text))
                if part:
                    yield part
            elif isinstance(one, Finished):
                yield b"".join(writer.finish())
                reason = _reason(one, writer)
            else:
                delta = {"stop_reason": reason[0], "stop_sequence": reason[1]}
                yield _event("message_delta", delta=delta, usage=message_usage(one)) + _event("message_stop")
    except ApiError as error:  # the status is sent already
        yield event(anthropic_body(with_status(error)), "error")


def _reason(end: Finished, writer: Writer) -> tuple[StopReason, str | None]:
    if any(isinstance(block, ToolUseBlock) for block in writer.content):
        return "tool_use", None
    if end.stop_string is not None:
        return "stop_sequence", end.stop_string
    return ("max_tokens" if end.reason == "length" else "end_turn"), None


def _event(name: str, **fields: Any) -> bytes:
    return event({"type": name, **fields}, name)


def _new_id() -> str:
    return f"msg_{uuid4().hex[:24]}"
