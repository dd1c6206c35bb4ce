"""What a model writes as items of a response, and the events that tell of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ..llm import TokenLogprob
from ..text.reply import AnswerText, CallArguments, CallStart, Event, ThoughtText
from .jobs import Finished, OutputDelta
from .openai_responses_types import new_id
from .openai_types import chat_logprob
from .replies import settled

Events = Iterator[dict[str, Any]]


class ResponseWriter:
    """Events of a reply in, items in `output` and events of the API out. One item is open at a time.

    Args:
        has_logprobs: Tell how likely tokens were.
    """

    def __init__(self, has_logprobs: bool) -> None:
        self.output: list[dict[str, Any]] = []
        self._has_logprobs, self._is_open = has_logprobs, False
        self._texts: list[str] = []  # of the open item
        self._logprobs: list[Any] = []

    def write(self, deltas: Sequence[OutputDelta], end: Finished) -> None:
        """A whole reply."""
        logprobs = [one for delta in deltas for one in delta.logprobs or ()]
        events = settled(event for delta in deltas for event in delta.events)
        for _ in (*self._feed(events, logprobs), *self.finish(end)):
            pass

    def feed(self, delta: OutputDelta) -> Events:
        yield from self._feed(delta.events, delta.logprobs or [])

    def finish(self, end: Finished) -> Events:
        if not self.output:
            yield from self._begin("message")
        is_cut = (end.reason == "length" and not end.reply.calls) or end.is_invalid
        yield from self._close("incomplete" if is_cut else "completed")

    def _feed(self, events: Sequence[Event], logprobs: Sequence[TokenLogprob]) -> Events:
        new = [msgspec.to_builtins(chat_logprob(one)) for one in logprobs] if self._has_logprobs else []
        for one in events:
            match one:
                case ThoughtText(text):
                    yield from self._begin("reasoning")
                    yield self._delta("response.reasoning_text.delta", text)
                case AnswerText(text):
                    yield from self._begin("message")
                    self._logprobs += new
                    yield self._delta("response.output_text.delta", text, logprobs=new)
                    new = []
                case CallStart(_, name):
                    yield from self._close("completed")
                    yield from self._open(_call_item(name))
                case CallArguments(_, text):
                    yield self._delta("response.function_call_arguments.delta", text)
        self._logprobs += new

    def _begin(self, kind: str) -> Events:
        """Open an item, unless one of this kind is open already."""
        if self._is_open and self.output[-1]["type"] == kind:
            return
        yield from self._close("completed")
        yield from self._open(_reasoning_item() if kind == "reasoning" else _message_item())
        part = _thought_part("") if kind == "reasoning" else _part("", [])
        yield {"type": "response.content_part.added", **self._place(), "part": part}

    def _open(self, item: dict[str, Any]) -> Events:
        self.output.append(item)
        self._texts, self._is_open = [], True
        yield {"type": "response.output_item.added", "output_index": len(self.output) - 1, "item": dict(item)}

    def _delta(self, kind: str, text: str, **fields: Any) -> dict[str, Any]:
        self._texts.append(text)
        return {"type": kind, **self._place(), "delta": text, **fields}

    def _close(self, status: str) -> Events:
        """End the open item."""
        if not self._is_open:
            return
        item, text = {**self.output[-1], "status": status}, "".join(self._texts)
        match item["type"]:
            case "function_call":
                item["arguments"] = text
                done = {"name": item["name"], "arguments": text}
                yield {"type": "response.function_call_arguments.done", **self._place(), **done}
            case "reasoning":
                part = _thought_part(text)
                yield {"type": "response.reasoning_text.done", **self._place(), "text": text}
                yield {"type": "response.content_part.done", **self._place(), "part": part}
                item["content"] = [part]
            case _:
                part = _part(text, self._logprobs)
                done = {"text": text, "logprobs": self._logprobs}
                yield {"type": "response.output_text.done", **self._place(), **done}
                yield {"type": "response.content_part.done", **self._place(), "part": part}
                item["content"], self._logprobs = [part], []
        self.output[-1], self._is_open = item, False
        yield {"type": "response.output_item.done", "output_index": len(self.output) - 1, "item": item}

    def _place(self) -> dict[str, Any]:
        item = self.output[-1]
        place = {"item_id": item["id"], "output_index": len(self.output) - 1}
        return place if item["type"] == "function_call" else {**place, "content_index": 0}


def _message_item() -> dict[str, Any]:
    return {"type": "message", "id": new_id("msg"), "role": "assistant", "status": "in_progress", "content": []}


def _reasoning_item() -> dict[str, Any]:
    return {"type": "reasoning", "id": new_id("rs"), "status": "in_progress", "summary": [], "content": []}


def _call_item(name: str) -> dict[str, Any]:
    return {
        "type": "function_call", "id": new_id("fc"), "call_id": new_id("call"), "name": name, "arguments": "",
        "status": "in_progress",
    }  # fmt: skip


def _part(text: str, logprobs: list[Any]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _thought_part(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}
