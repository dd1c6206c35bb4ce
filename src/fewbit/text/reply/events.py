"""What a reply consists of, in the order in which it is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby


@dataclass(frozen=True, slots=True)
class ThoughtText:
    """Text of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class AnswerText:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins.

    Args:
        index: Number of the call in the reply.
        name: Name of the tool.
    """

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """JSON text that continues the arguments of a call."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallDropped:
    """A call that had begun is none: it is malformed or cut off. Its text follows as `AnswerText`."""

    index: int


Event = ThoughtText | AnswerText | CallStart | CallArguments | CallDropped


def joined(events: list[Event]) -> list[Event]:
    """Events with neighbouring texts of one kind joined: the same, however the text was cut.

    >>> joined([AnswerText("a"), AnswerText("b"), ThoughtText("c")])
    [AnswerText(text='ab'), ThoughtText(text='c')]
    """
    groups = groupby(events, lambda event: (type(event), getattr(event, "index", None)))
    return [event for _, group in groups for event in _one(list(group))]


def _one(events: list[Event]) -> list[Event]:
    first = events[0]
    if isinstance(first, CallStart | CallDropped):
        return events
    return [replace(first, text="".join(getattr(event, "text", "") for event in events))]
