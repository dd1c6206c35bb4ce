"""What a model writes, read while it comes: thoughts, answer and calls of each output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from ..text.reply import (
    AnswerText,
    CallArguments,
    CallDropped,
    CallStart,
    Event,
    ReplyFormat,
    ReplyParser,
    ThoughtText,
)


@dataclass(frozen=True, slots=True)
class ReplyStyle:
    """How a model writes a reply to one prompt.

    Args:
        format: Its marks of thoughts and calls.
        tools: Functions that it may call.
        opens_thought: The prompt ends with the mark that begins a thought.
        may_think: The reply may begin with that mark.
        max_calls: Most calls of a reply.
    """

    format: ReplyFormat
    tools: Sequence[Mapping[str, Any]] = ()
    opens_thought: bool = False
    may_think: bool = False
    max_calls: int | None = None

    def parser(self) -> ReplyParser:
        return ReplyParser(self.format, self.tools, self.opens_thought, self.max_calls)


def new_call_id() -> str:
    return f"call_{uuid4().hex[:24]}"


@dataclass(slots=True)
class Call:
    """A call of a function. `arguments` are JSON."""

    name: str
    arguments: str = ""
    id: str = field(default_factory=new_call_id)


@dataclass(frozen=True, slots=True)
class WholeReply:
    """What the deltas of an output add up to."""

    text: str
    thought: str
    calls: list[Call]


class ReplyReader:
    """Deltas of one output in, events out; and what they add up to.

    Args:
        style: How the model writes replies; None: all that it writes is its answer.
    """

    def __init__(self, style: ReplyStyle | None) -> None:
        self._parser = None if style is None else style.parser()
        self._calls: dict[int, Call] = {}
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._is_thinking = style is not None and style.opens_thought
        self.thought_tokens = 0

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def thought(self) -> str:
        return "".join(self._thoughts)

    @property
    def calls(self) -> list[Call]:
        return [*self._calls.values()]

    def whole(self) -> WholeReply:
        return WholeReply(self.text, self.thought, self.calls)

    def feed(self, text: str, num_tokens: int = 0) -> list[Event]:
        """The events that a text of so many tokens completes."""
        if self._parser is None:
            return self._add([AnswerText(text)] if text else [])
        events = self._parser.feed(text)
        self.thought_tokens += self._count_thought(events, num_tokens)
        return self._add(events)

    def finish(self) -> list[Event]:
        """The last events, when no more text follows."""
        return self._add([] if self._parser is None else self._parser.finish())

    def _count_thought(self, events: Iterable[Event], num_tokens: int) -> int:
        """How many of the tokens of these events are a thought; those of a change from one to the other are shared."""
        kinds = [isinstance(event, ThoughtText) for event in events] or [self._is_thinking]
        self._is_thinking = kinds[-1]
        return round(num_tokens * sum(kinds) / len(kinds))

    def _add(self, events: Sequence[Event]) -> list[Event]:
        for event in events:
            match event:
                case ThoughtText(text):
                    self._thoughts.append(text)
                case AnswerText(text):
                    self._texts.append(text)
                case CallStart(index, name):
                    self._calls[index] = Call(name)
                case CallArguments(index, text):
                    self._calls[index].arguments += text
                case CallDropped(index):
                    del self._calls[index]
        return [*events]


def answer_text(events: Iterable[Event]) -> str:
    """The text of the answer in events."""
    return "".join(event.text for event in events if isinstance(event, AnswerText))


def settled(events: Iterable[Event]) -> list[Event]:
    """All events of a reply without the calls that turned out to be none."""
    found = [*events]
    dropped = {event.index for event in found if isinstance(event, CallDropped)}
    calls = (CallStart, CallArguments, CallDropped)
    return [event for event in found if not (isinstance(event, calls) and event.index in dropped)]
