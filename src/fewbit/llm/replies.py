"""Replies of a conversation: reasoning, text and tool calls, folded from the text that a model writes."""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .completion import ToolCall

if TYPE_CHECKING:
    from ..text.reply import Event, ReplyFormat

_ID_CHARS = string.ascii_letters + string.digits
_ID_LENGTH = 9  # some chat templates take no others


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A part of a tool call.

    Args:
        index: Number of the call in the reply.
        id: Its id.
        name: Name of the tool.
        arguments: JSON text that continues its arguments.
        is_dropped: The call is none: it is malformed or cut off, and its text is part of the answer.
    """

    index: int
    id: str
    name: str
    arguments: str = ""
    is_dropped: bool = False


@dataclass(frozen=True, slots=True)
class ReplyPlan:
    """How the reply to a conversation is read.

    Args:
        format: How the model writes replies.
        tools: The tools that it may call, as OpenAI's clients describe them.
        opens_thought: The prompt ends with what begins a thought.
        max_calls: Most tool calls.
        visible: Ids of the control tokens that are part of the format.
    """

    format: ReplyFormat
    tools: Sequence[Mapping[str, Any]] = ()
    opens_thought: bool = False
    max_calls: int | None = None
    visible: frozenset[int] = frozenset()


@dataclass(slots=True)
class ReplyDelta:
    """What a piece of text adds to a reply."""

    text: str = ""
    reasoning: str = ""
    calls: list[CallDelta] = field(default_factory=list)


class ReplyFold:
    """Folds the text of one output into a reply.

    Args:
        plan: How it is read.
    """

    def __init__(self, plan: ReplyPlan) -> None:
        from ..text.reply import ReplyParser

        self._parser = ReplyParser(plan.format, plan.tools, plan.opens_thought, plan.max_calls)
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: dict[int, tuple[CallDelta, list[str]]] = {}
        self._is_finished = False

    def take(self, text: str, is_last: bool) -> ReplyDelta:
        """What a text adds, and at the end what was held back."""
        events = self._parser.feed(text) if text else []
        if is_last and not self._is_finished:
            self._is_finished = True
            events += self._parser.finish()
        delta = ReplyDelta()
        for event in events:
            self._add(event, delta)
        return delta

    @property
    def text(self) -> str:
        """The answer, without reasoning and calls."""
        return "".join(self._texts)

    @property
    def reasoning(self) -> str:
        return "".join(self._thoughts)

    @property
    def calls(self) -> list[ToolCall]:
        """The calls that are complete."""
        found = []
        for start, texts in self._calls.values():
            text = "".join(texts)
            try:
                arguments = json.loads(text)
            except (ValueError, RecursionError):  # it is still being written
                continue
            found.append(ToolCall(start.id, start.name, arguments, text))
        return found

    def _add(self, event: Event, delta: ReplyDelta) -> None:
        from ..text.reply import AnswerText, CallArguments, CallStart, ThoughtText

        if isinstance(event, AnswerText):
            self._texts.append(event.text)
            delta.text += event.text
        elif isinstance(event, ThoughtText):
            self._thoughts.append(event.text)
            delta.reasoning += event.text
        elif isinstance(event, CallStart):
            start = CallDelta(event.index, new_call_id(), event.name)
            self._calls[event.index] = start, []
            delta.calls.append(start)
        elif isinstance(event, CallArguments):
            start, texts = self._calls[event.index]
            texts.append(event.text)
            delta.calls.append(CallDelta(event.index, start.id, start.name, event.text))
        else:
            start, _ = self._calls.pop(event.index)
            delta.calls.append(CallDelta(event.index, start.id, start.name, is_dropped=True))


def new_call_id() -> str:
    """An id for a tool call."""
    return "".join(secrets.choice(_ID_CHARS) for _ in range(_ID_LENGTH))
