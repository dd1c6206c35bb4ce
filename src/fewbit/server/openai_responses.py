"""`/v1/responses`, as OpenAI's clients call it: answers, stored ones, and their streaming events."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from .bodies import JsonResponse, read
from .errors import ApiError, unsupported
from .jobs import Finished, Job, OutputDelta, Usage
from .openai_responses_store import find, owner_of, previous_items, store_of
from .openai_responses_types import (
    InputTokensRequest,
    ResponseRequest,
    items_of,
    left_out_tools,
    new_id,
    template_messages,
)
from .openai_responses_writer import ResponseWriter
from .paging import page_of
from .prompts import ChatInput
from .runs import Run, begin, namespace
from .sse import event
from .tokens import count_prompt

Items = list[dict[str, Any]]
Status = Literal["in_progress", "completed", "incomplete", "failed"]


class InputDetails(msgspec.Struct):
    cached_tokens: int


class OutputDetails(msgspec.Struct):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseObject(msgspec.Struct, kw_only=True):
    """A response, complete or on its way."""

    id: str
    created_at: int
    model: str
    status: Status
    output: Items
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    store: bool
    temperature: float
    top_p: float
    top_logprobs: int
    tool_choice: Any
    tools: Items
    user: str | None
    usage: ResponseUsage | None = None
    completed_at: int | None = None
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, Any] | None = None
    reasoning: dict[str, Any] = msgspec.field(default_factory=lambda: {"effort": None, "summary": None})
    text: dict[str, Any] = msgspec.field(default_factory=lambda: {"format": {"type": "text"}})
    truncation: Literal["auto", "disabled"] = "disabled"
    service_tier: Literal["default"] = "default"
    background: Literal[False] = False
    object: Literal["response"] = "response"


class DeletedResponse(msgspec.Struct):
    id: str
    deleted: Literal[True] = True
    object: Literal["response"] = "response"


class ItemList(msgspec.Struct):
    data: Items
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class InputTokens(msgspec.Struct):
    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class Answering:
    """One response on its way: what was asked, what was written, and how it ends."""

    def __init__(self, request: Request, body: ResponseRequest, run: Run, given: Items, context: Items) -> None:
        self._request, self._body, self._given, self._context = request, body, given, context
        self.run, self.id = run, new_id("resp")
        self.writer = ResponseWriter(body.num_logprobs is not None)

    def response(self, status: Status, **fields: Any) -> ResponseObject:
        body, sampling = self._body, self.run.backend.facts.sampling
        return ResponseObject(
            id=self.id, created_at=self.run.created, model=self.run.model, status=status, output=self.writer.output,
            instructions=body.instructions, max_output_tokens=body.max_output_tokens, metadata=body.metadata or {},
            parallel_tool_calls=body.parallel_tool_calls is not False, store=body.store is not False,
            previous_response_id=body.previous_response_id, user=body.user, top_logprobs=body.top_logprobs or 0,
            temperature=sampling.temperature if body.temperature is None else body.temperature,
            top_p=sampling.top_p if body.top_p is None else body.top_p,
            tool_choice=body.tool_choice or "auto", tools=_echoed_tools(body), truncation=body.truncation or "disabled",
            reasoning={"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            text={"format": _echoed_format(body)}, **fields,
        )  # fmt: skip

    def finish(self, end: Finished, usage: Usage) -> ResponseObject:
        """The response at its end; it is kept if that was not refused."""
        cut = end.reason == "length" and not end.reply.calls
        status: Status = "failed" if end.error is not None else "incomplete" if cut else "completed"
        found = self.response(
            status,
            usage=ResponseUsage(
                usage.prompt_tokens,
                InputDetails(usage.cached_tokens),
                usage.completion_tokens,
                OutputDetails(usage.thought_tokens),
                usage.total_tokens,
            ),
            completed_at=int(time.time()) if status == "completed" else None,
            incomplete_details={"reason": "max_output_tokens"} if cut else None,
            error=None if end.error is None else {"code": "invalid_output", "message": end.error},
        )
        if self._body.store is not False:
            items = [*self._context, *self._given, *found.output]
            store_of(self._request).add(self.id, owner_of(self._request), found, self._given, items)
        return found


async def create(request: Request) -> Response:
    body = await read(request, ResponseRequest)
    given, context = items_of(body.input), [*previous_items(request, body.previous_response_id)]
    job = Job(
        messages=_messages(body, [*context, *given]),
        tools=body.read_tools(),
        output=body.output(),
        thought_tokens=body.thought_tokens,
        template=body.template_names,
        options=body.options(),
        logprobs=body.num_logprobs,
        namespace=namespace(request, body.cache_salt),
        ignored=left_out_tools(body.tools),
        truncates=body.truncation == "auto",
    )
    run = await begin(request, body.model, job)
    answering = Answering(request, body, run, given, context)
    if body.stream:
        return run.stream(_stream(answering))
    deltas, finished, usage = await run.collect()
    answering.writer.write(deltas[0], finished[0])
    return JsonResponse(answering.finish(finished[0], usage))


async def retrieve(request: Request) -> Response:
    if request.query_params.get("stream", "false").lower() not in ("false", "0"):
        raise unsupported("stream", "a stored response is told at once")
    return JsonResponse(find(request, request.path_params["response_id"]).response)


async def delete(request: Request) -> Response:
    name = request.path_params["response_id"]
    find(request, name)
    store_of(request).remove(name)
    return JsonResponse(DeletedResponse(name))


async def input_items(request: Request) -> Response:
    """A page of the input of a response, the last item first if nothing else is asked for."""
    items = find(request, request.path_params["response_id"]).input_items
    page, has_more = page_of(request.query_params, items, lambda item: str(item["id"]))
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return JsonResponse(ItemList(page, first, last, has_more))


async def cancel(request: Request) -> Response:
    find(request, request.path_params["response_id"])
    raise ApiError(400, "only a response in the background can be cancelled, and there is none; close the connection "
                        "of one that is streamed", code="unsupported_operation")  # fmt: skip


async def input_tokens(request: Request) -> Response:
    body = await read(request, InputTokensRequest)
    messages = _messages(body, [*previous_items(request, body.previous_response_id), *items_of(body.input)])
    chat = ChatInput(messages, body.read_tools().shown, body.template_names)
    return JsonResponse(InputTokens(await count_prompt(request, body.model, chat)))


ROUTES: list[BaseRoute] = [
    Route("/v1/responses", create, methods=["POST"]),
    Route("/v1/responses/input_tokens", input_tokens, methods=["POST"]),
    Route("/v1/responses/{response_id}", retrieve, methods=["GET"]),
    Route("/v1/responses/{response_id}", delete, methods=["DELETE"]),
    Route("/v1/responses/{response_id}/input_items", input_items, methods=["GET"]),
    Route("/v1/responses/{response_id}/cancel", cancel, methods=["POST"]),
]


async def _stream(answering: Answering) -> AsyncGenerator[bytes, None]:
    number = 0

    def encoded(found: Iterator[dict[str, Any]]) -> bytes:
        nonlocal number
        parts = []
        for one in found:
            parts.append(event({**one, "sequence_number": number}, one["type"]))
            number += 1
        return b"".join(parts)

    def state(kind: str, response: ResponseObject) -> bytes:
        return encoded(iter([{"type": kind, "response": response}]))

    begun, end = answering.response("in_progress"), None
    yield state("response.created", begun) + state("response.in_progress", begun)
    try:
        async for one in answering.run:
            if isinstance(one, OutputDelta):
                if part := encoded(answering.writer.feed(one)):
                    yield part
            elif isinstance(one, Finished):
                end = one
                yield encoded(answering.writer.finish(one))
            elif end is not None:
                response = answering.finish(end, one)
                yield state(f"response.{response.status}", response)
    except ApiError as error:  # the status is sent already
        failed = {"code": "server_error" if error.status >= 500 else "invalid_prompt", "message": error.message}
        yield state("response.failed", answering.response("failed", error=failed))


def _messages(body: InputTokensRequest, items: Items) -> list[dict[str, Any]]:
    system = [{"type": "message", "role": "system", "content": [{"text": body.instructions}]}]
    return template_messages([*(system if body.instructions else []), *items])


def _echoed_tools(body: ResponseRequest) -> Items:
    return [
        {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters,
         "strict": bool(tool.strict)}
        for tool in body.tools or ()
        if tool.type == "function"
    ]  # fmt: skip


def _echoed_format(body: ResponseRequest) -> dict[str, Any]:
    given = None if body.text is None else body.text.format
    return {"type": "text"} if given is None else msgspec.to_builtins(given)
