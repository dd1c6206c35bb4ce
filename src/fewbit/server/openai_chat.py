"""`POST /v1/chat/completions`, as OpenAI's clients call it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Annotated, Any, ClassVar, Literal
from uuid import uuid4

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from ..llm import TokenLogprob
from .bodies import Body, JsonResponse, read
from .calls import Call
from .errors import ApiError, openai_body, unsupported
from .jobs import Finished, Job, OutputDelta
from .openai_messages import Message, Tool, ToolChoice, template_messages, template_tools
from .openai_types import (
    NOT_HERE,
    ChatLogprob,
    ChunkWriter,
    MaxTokens,
    Sampling,
    UsageInfo,
    chat_logprob,
    effort_names,
    max_tokens_of,
    stop_reason,
    usage_info,
)
from .runs import Run, begin, namespace
from .sse import DONE, event


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: Any = None


class ChatRequest(Sampling, kw_only=True):
    """The last fields change nothing by contract."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **NOT_HERE, "functions": ([],), "audio": (), "web_search_options": ()
    }  # fmt: skip
    messages: Annotated[list[Message], Meta(min_length=1)]
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    n_predict: MaxTokens | None = None  # the same, as llama.cpp calls it
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # names that the chat template looks for
    continue_final_message: bool | None = None  # None: if the last message is the assistant's
    add_generation_prompt: bool | None = None
    reasoning_effort: str | None = None
    modalities: list[Literal["text"]] | None = None
    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    store: bool | None = None

    def job(self) -> Job:
        if self.response_format is not None and self.response_format.type != "text":
            raise unsupported(f"response_format {self.response_format.type}", "ask for JSON in a message")
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs", "invalid_request")
        given = (self.max_completion_tokens, self.max_tokens, self.n_predict)
        most = max_tokens_of(next((one for one in given if one is not None), None))
        if most == 0:
            raise ApiError(400, "max_tokens must be at least 1, got 0", "max_tokens", "invalid_request")
        return Job(
            messages=template_messages(self.messages),
            tools=template_tools(self.tools, self.tool_choice),
            template=self._template_names(),
            continues=self._continues(),
            options={**self.options(), "max_tokens": most},
            n=self.n or 1,
            priority=self.priority or 0,
            client=self.user_name,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )

    def _continues(self) -> bool | None:
        if self.add_generation_prompt and self.continue_final_message:
            raise ApiError(400, "add_generation_prompt must be false where continue_final_message is true",
                           "continue_final_message", "invalid_request")  # fmt: skip
        if self.continue_final_message and self.messages[-1].role != "assistant":
            raise ApiError(400, "continue_final_message needs a last message of the assistant",
                           "continue_final_message", "invalid_request")  # fmt: skip
        return False if self.add_generation_prompt else self.continue_final_message

    def _template_names(self) -> dict[str, Any] | None:
        names = self.chat_template_kwargs
        if self.add_generation_prompt is False:
            names = {"add_generation_prompt": False, **(names or {})}
        return effort_names(self.reasoning_effort, names)


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str


class AnswerCall(msgspec.Struct):
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class ChatAnswer(msgspec.Struct):
    content: str | None
    tool_calls: list[AnswerCall] | msgspec.UnsetType = msgspec.UNSET
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatLogprobs(msgspec.Struct):
    content: list[ChatLogprob]
    refusal: None = None


class ChatChoice(msgspec.Struct):
    index: int
    message: ChatAnswer
    finish_reason: Literal["stop", "length", "tool_calls"]
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageInfo
    object: Literal["chat.completion"] = "chat.completion"
    system_fingerprint: str = "fewbit"


async def chat_completions(request: Request) -> Response:
    body = await read(request, ChatRequest)
    job = body.job()
    job.namespace = namespace(request, body.cache_salt)
    run = await begin(request, body.model, job)
    if body.stream:
        return run.stream(_chunks(run, body))
    return JsonResponse(await _answer(run, body))


async def _answer(run: Run, body: ChatRequest) -> ChatCompletion:
    deltas, finished, usage = await run.collect()
    choices = await asyncio.to_thread(_choices, run, body, deltas, finished)  # many log-probabilities take long
    return ChatCompletion(_new_id(), run.created, run.model, choices, usage_info(usage))


def _choices(
    run: Run, body: ChatRequest, deltas: list[list[OutputDelta]], finished: list[Finished]
) -> list[ChatChoice]:
    return [_choice(output, end, run, body) for output, end in zip(deltas, finished, strict=True)]


def _choice(deltas: list[OutputDelta], end: Finished, run: Run, body: ChatRequest) -> ChatChoice:
    parser = run.tool_parser(body.parallel_tool_calls)
    text = "".join(parser.feed(delta.text) for delta in deltas)
    rest, calls = parser.finish()
    content = text + rest
    answer = ChatAnswer(content if content or not calls else None)
    if calls:
        answer.tool_calls = [AnswerCall(_call_id(), CalledFunction(one.name, one.arguments)) for one in calls]
    logprobs = [one for delta in deltas for one in delta.logprobs or []]
    ids = end.completion.tokens if body.return_token_ids else msgspec.UNSET
    return ChatChoice(end.index, answer, _reason(end, calls), _logprobs(logprobs) if body.logprobs else None, ids)


async def _chunks(run: Run, body: ChatRequest) -> AsyncGenerator[bytes, None]:
    writer = ChunkWriter(run, body, _new_id(), "chat.completion.chunk")
    parsers = [run.tool_parser(body.parallel_tool_calls) for _ in range(run.job.num_outputs)]
    yield b"".join(writer.chunk(i, _delta(role="assistant", content="", refusal=None)) for i in range(len(parsers)))
    try:
        async for one in run:
            if isinstance(one, OutputDelta):
                text = parsers[one.index].feed(one.text)
                logprobs = _logprobs(one.logprobs) if one.logprobs else None
                if text or logprobs or body.return_token_ids:
                    yield writer.chunk(one.index, _delta(content=text), logprobs=logprobs, ids=one.tokens)
            elif isinstance(one, Finished):
                rest, calls = parsers[one.index].finish()
                yield b"".join(
                    [
                        *([writer.chunk(one.index, _delta(content=rest))] if rest else []),
                        *(writer.chunk(one.index, _call_delta(number, call)) for number, call in enumerate(calls)),
                        writer.chunk(one.index, _delta(), _reason(one, calls)),
                    ]
                )
            elif body.wants_usage:
                yield writer.usage(one)
        yield DONE
    except ApiError as error:  # the status is sent already
        yield event(openai_body(error))


def _reason(end: Finished, calls: list[Call]) -> Literal["stop", "length", "tool_calls"]:
    return "tool_calls" if calls else stop_reason(end)


def _call_delta(number: int, call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return _delta(tool_calls=[{"index": number, "id": _call_id(), "type": "function", "function": function}])


def _delta(**fields: Any) -> dict[str, Any]:
    return {"delta": fields}


def _logprobs(found: list[TokenLogprob]) -> ChatLogprobs:
    return ChatLogprobs([chat_logprob(one) for one in found])


def _new_id() -> str:
    return f"chatcmpl-{uuid4().hex}"


def _call_id() -> str:
    return f"call_{uuid4().hex[:24]}"
