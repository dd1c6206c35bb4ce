"""What a model wrote as chat completions of OpenAI's API, whole and in chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal
from uuid import uuid4

import msgspec

from ..llm import TokenLogprob
from ..text.reply import CallArguments, CallStart, Event, ThoughtText
from .errors import ApiError, openai_body
from .jobs import Delta, Finished, Usage
from .openai_types import ChatLogprob, OutputError, UsageInfo, chat_logprob, output_error, usage_info
from .replies import new_call_id
from .runs import Run
from .sse import DONE, event

Reason = Literal["stop", "length", "tool_calls", "invalid"]


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str


class AnswerCall(msgspec.Struct):
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class Answer(msgspec.Struct):
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
    message: Answer
    finish_reason: Reason
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
        has_logprobs: Tell how likely tokens were.
        has_ids: Tell token ids.
        has_usage: A stream ends with the usage.
        shows_thoughts: Tell what the model thought.
    """

    def __init__(self, run: Run, has_logprobs: bool, has_ids: bool, has_usage: bool, shows_thoughts: bool) -> None:
        self._run, self._has_logprobs, self._has_ids = run, has_logprobs, has_ids
        self._has_usage, self._shows_thoughts = has_usage, shows_thoughts
        self._base = {
            "id": _new_id(), "object": "chat.completion.chunk", "created": run.created, "model": run.model,
            "system_fingerprint": "fewbit",
        }  # fmt: skip

    def whole(self, deltas: list[list[Delta]], finished: list[Finished], usage: Usage) -> ChatCompletion:
        choices = [self._choice(of, end) for of, end in zip(deltas, finished, strict=True)]
        return ChatCompletion(_new_id(), self._run.created, self._run.model, choices, usage_info(usage))

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The events of a stream."""
        begun = {"role": "assistant", "content": "", "refusal": None}
        yield b"".join(self._chunk(index, begun) for index in range(self._run.job.num_outputs))
        try:
            async for one in self._run:
                if isinstance(one, Delta):
                    delta = self._delta(one)
                    logprobs = _logprobs(one.logprobs) if self._has_logprobs and one.logprobs else None
                    if delta or logprobs or self._has_ids:
                        yield self._chunk(one.index, delta or {"content": ""}, None, logprobs, one.tokens)
                elif isinstance(one, Finished):
                    error = {} if one.error is None else {"error": output_error(one)}
                    refusal = {} if one.error is None else {"refusal": one.error}
                    yield self._chunk(one.index, refusal, _reason(one), **error)
                elif self._has_usage:
                    yield event({**self._base, "choices": [], "usage": usage_info(one)})
            yield DONE
        except ApiError as error:  # the status is sent already
            yield event(openai_body(error))

    def _choice(self, deltas: list[Delta], end: Finished) -> ChatChoice:
        reply = end.reply
        answer = Answer(reply.text if reply.text or not reply.calls else None, refusal=end.error)
        if reply.calls:
            answer.tool_calls = [AnswerCall(one.id, CalledFunction(one.name, one.arguments)) for one in reply.calls]
        if reply.thought and self._shows_thoughts:
            answer.reasoning_content = answer.reasoning = reply.thought
        logprobs = [one for delta in deltas for one in delta.logprobs or []] if self._has_logprobs else None
        found = ChatChoice(end.index, answer, _reason(end), None if logprobs is None else _logprobs(logprobs))
        if self._has_ids:
            found.token_ids = end.completion.tokens
        found.error = output_error(end)
        return found

    def _delta(self, one: Delta) -> dict[str, Any]:
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

    def _chunk(
        self, index: int, delta: dict[str, Any], reason: str | None = None, logprobs: Any = None, ids: Any = None,
        **error: Any,
    ) -> bytes:  # fmt: skip
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason, **error}
        if self._has_ids:
            choice["token_ids"] = ids or []
        return event({**self._base, "choices": [choice], **({"usage": None} if self._has_usage else {})})


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


def _reason(end: Finished) -> Reason:
    if end.is_invalid:
        return "invalid"
    if end.reply.calls:
        return "tool_calls"
    return "length" if end.reason == "length" else "stop"


def _logprobs(found: list[TokenLogprob]) -> ChatLogprobs:
    return ChatLogprobs([chat_logprob(one) for one in found])


def _new_id() -> str:
    return f"chatcmpl-{uuid4().hex}"
