"""What a model wrote as content blocks of Anthropic's API, and the events that tell of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

import msgspec

from ..text.reply import AnswerText, CallArguments, CallStart, Event, ThoughtText
from .anthropic_types import SIGNATURE, OutputProblem, StopReason, TextBlock, ThinkingBlock, ToolUseBlock
from .jobs import Finished
from .sse import event


class MessageWriter:
    """Events of a reply in, content blocks and events of the API out. Blocks follow each other; one is open at a time.

    Args:
        shows_thoughts: There are blocks for what the model thought.
    """

    def __init__(self, shows_thoughts: bool) -> None:
        self.content: list[TextBlock | ThinkingBlock | ToolUseBlock] = []
        self._shows_thoughts = shows_thoughts
        self._parts: list[str] = []  # of the open block
        self._is_open = False

    def feed(self, events: Sequence[Event]) -> Iterator[bytes]:
        for one in events:
            match one:
                case ThoughtText(text) if self._shows_thoughts:
                    yield from self._begin(ThinkingBlock("", ""))
                    yield self._delta("thinking_delta", "thinking", text)
                case AnswerText(text):
                    yield from self._begin(TextBlock(""))
                    yield self._delta("text_delta", "text", text)
                case CallStart(_, name):
                    yield from self._begin(ToolUseBlock(f"toolu_{uuid4().hex[:24]}", name, {}))
                case CallArguments(_, text):
                    yield self._delta("input_json_delta", "partial_json", text)

    def finish(self) -> Iterator[bytes]:
        """End the open block."""
        if not self._is_open:
            return
        text, index, last = "".join(self._parts), len(self.content) - 1, self.content[-1]
        if isinstance(last, TextBlock):
            last.text = text
        elif isinstance(last, ToolUseBlock):
            last.input = tool_input(text)
        else:
            last.thinking, last.signature = text, SIGNATURE
            delta = {"type": "signature_delta", "signature": SIGNATURE}
            yield anthropic_event("content_block_delta", index=index, delta=delta)
        self._parts, self._is_open = [], False
        yield anthropic_event("content_block_stop", index=index)

    def _begin(self, block: TextBlock | ThinkingBlock | ToolUseBlock) -> Iterator[bytes]:
        """Open a block, unless one of this kind is open already; each call has its own."""
        if self._is_open and type(block) is type(self.content[-1]) and not isinstance(block, ToolUseBlock):
            return
        yield from self.finish()
        self.content.append(block)
        self._is_open = True
        index = len(self.content) - 1
        yield anthropic_event("content_block_start", index=index, content_block=msgspec.to_builtins(block))

    def _delta(self, kind: str, field: str, text: str) -> bytes:
        self._parts.append(text)
        index = len(self.content) - 1
        return anthropic_event("content_block_delta", index=index, delta={"type": kind, field: text})


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


def stop_reason(end: Finished) -> tuple[StopReason, str | None]:
    """Why an answer ended, and the stop sequence that ended it."""
    if end.is_invalid:
        return "invalid", None
    if end.reply.calls:
        return "tool_use", None
    if end.stop_string is not None:
        return "stop_sequence", end.stop_string
    return ("max_tokens" if end.reason == "length" else "end_turn"), None


def problem(end: Finished) -> OutputProblem | msgspec.UnsetType:
    return msgspec.UNSET if end.error is None else OutputProblem(end.error)


def anthropic_event(name: str, **fields: Any) -> bytes:
    return event({"type": name, **fields}, name)
