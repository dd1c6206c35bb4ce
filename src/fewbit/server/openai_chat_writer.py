"""What a model wrote as chat completions of OpenAI's API, whole and in chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal
from uuid import uuid4

import msgspec

from ..llm import TokenLogprob
from ..text.reply import CallArguments, CallStart, Event, ThoughtText
from .errors import ApiError, openai_body
from .feedback import AnswerKeeper
from .jobs import Finished, OutputDelta, Usage
from .openai_types import (
    ChatLogprob,
    ChunkWriter,
    OutputError,
    Sampling,
    StopReason,
    UsageInfo,
    chat_logprob,
    error_field,
    output_error,
    stop_reason,
    usage_info,
)
from .replies import new_call_id
from .runs import Run
from .sse import DONE, event

ChatReason = StopReason | Literal["tool_calls"]


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str


class AnswerCall(msgspec.Struct):
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class ChatAnswer(msgspec.Struct):
    """`reasoning` is `reasoning_content` as some clients call it; `refusal` says why an answer is invalid."""

    content: str | None
    tool_calls: list[AnswerCall] | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    refusal: str | None = None
    role: Literal["assistant"] = "assistant"


class ChatLogprobs(msgspec.Struct):
    content: list[ChatLogprob]
    refusal: None = None


class ChatChoice(msgspec.Struct):
    index: int
    message: ChatAnswer
    finish_reason: ChatReason
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    error: OutputError | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageInfo
    object: Literal["chat.completion"] = "chat.completion"
    system_fingerprint: str = "fewbit"


class ChatWriter:
    """Writes the answer to one request.

    Args:
        run: What the model writes.
        body: What was asked.
        has_logprobs: Tell how likely tokens were.
        shows_thoughts: Tell what the model thought.
        keeper: Keeps answers that are to be rated.
    """

    def __init__(
        self, run: Run, body: Sampling, has_logprobs: bool, shows_thoughts: bool, keeper: AnswerKeeper | None = None
    ) -> None:
        self._run, self._body, self._keeper, self._id = run, body, keeper, _new_id()
        self._has_logprobs, self._shows_thoughts = has_logprobs, shows_thoughts

    def whole(self, deltas: list[list[OutputDelta]], finished: list[Finished], usage: Usage) -> ChatCompletion:
        choices = [self._choice(output, end) for output, end in zip(deltas, finished, strict=True)]
        for end in finished if self._keeper else ():
            self._keep(end)
        return ChatCompletion(self._id, self._run.created, self._run.model, choices, usage_info(usage))

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The events of a stream."""
        writer = ChunkWriter(self._run, self._body, self._id, "chat.completion.chunk")
        begun = {"delta": {"role": "assistant", "content": "", "refusal": None}}
        yield b"".join(writer.chunk(index, begun) for index in range(self._run.job.num_outputs))
        try:
            async for one in self._run:
                if isinstance(one, OutputDelta):
                    delta = self._delta(one)
                    logprobs = _logprobs(one.logprobs) if self._has_logprobs and one.logprobs else None
                    if delta or logprobs or self._body.return_token_ids:
                        content = {"delta": delta or {"content": ""}}
                        yield writer.chunk(one.index, content, logprobs=logprobs, ids=one.tokens)
                elif isinstance(one, Finished):
                    if self._keeper:
                        await asyncio.to_thread(self._keep, one)
                    refusal = {} if one.error is None else {"refusal": one.error}
                    yield writer.chunk(one.index, {"delta": refusal, **error_field(one)}, _reason(one))
                elif self._body.wants_usage:
                    yield writer.usage(one)
            yield DONE
        except ApiError as error:  # the status is sent already
            yield event(openai_body(error))

    def _keep(self, end: Finished) -> None:
        """What is text alone and complete can be rated."""
        if self._keeper and not end.reply.calls and end.error is None:
            self._keeper.keep(self._id, end.index, end.reply.text)

    def _choice(self, deltas: list[OutputDelta], end: Finished) -> ChatChoice:
        reply = end.reply
        answer = ChatAnswer(reply.text if reply.text or not reply.calls else None, refusal=end.error)
        if reply.calls:
            answer.tool_calls = [AnswerCall(one.id, CalledFunction(one.name, one.arguments)) for one in reply.calls]
        if reply.thought and self._shows_thoughts:
            answer.reasoning_content = answer.reasoning = reply.thought
        logprobs = [one for delta in deltas for one in delta.logprobs or []] if self._has_logprobs else None
        found = ChatChoice(end.index, answer, _reason(end), None if logprobs is None else _logprobs(logprobs))
        if self._body.return_token_ids:
            found.token_ids = end.completion.tokens
        found.error = output_error(end)
        return found

    def _delta(self, one: OutputDelta) -> dict[str, Any]:
        """What is new of an output."""
        found: dict[str, Any] = {}
        thought = "".join(event.text for event in one.events if isinstance(event, ThoughtText))
        if thought and self._shows_thoughts:
            found |= {"reasoning_content": thought, "reasoning": thought}
        if one.text:
            found["content"] = one.text
        if calls := _call_deltas(one.events):
            found["tool_calls"] = calls
        return found


def _call_deltas(events: Sequence[Event]) -> list[dict[str, Any]]:
    """What is new of calls, one entry for each."""
    found: dict[int, dict[str, Any]] = {}
    for one in events:
        if isinstance(one, CallStart):
            function = {"name": one.name, "arguments": ""}
            found[one.index] = {"index": one.index, "id": new_call_id(), "type": "function", "function": function}
        elif isinstance(one, CallArguments):
            entry = found.setdefault(one.index, {"index": one.index, "function": {"arguments": ""}})
            entry["function"]["arguments"] += one.text
    return [*found.values()]


def _reason(end: Finished) -> ChatReason:
    return "tool_calls" if end.reply.calls and not end.is_invalid else stop_reason(end)


def _logprobs(found: list[TokenLogprob]) -> ChatLogprobs:
    return ChatLogprobs([chat_logprob(one) for one in found])


def _new_id() -> str:
    return f"chatcmpl-{uuid4().hex}"
