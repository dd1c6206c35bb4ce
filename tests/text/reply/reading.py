"""Reads replies in pieces, and folds their events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from fewbit.text.reply import (
    AnswerText,
    CallArguments,
    CallDropped,
    CallStart,
    Event,
    ReplyFormat,
    ReplyParser,
    ThoughtText,
    joined,
)

from .transcripts import TOOLS


@dataclass
class Reply:
    """What a reply consists of."""

    answer: str = ""
    thought: str = ""
    texts: dict[int, tuple[str, str]] = field(default_factory=dict)

    @property
    def calls(self) -> tuple[tuple[str, Any], ...]:
        return tuple((name, json.loads(arguments)) for name, arguments in self.texts.values())


def fold(events: Iterable[Event]) -> Reply:
    reply = Reply()
    for event in events:
        if isinstance(event, ThoughtText):
            reply.thought += event.text
        elif isinstance(event, AnswerText):
            reply.answer += event.text
        elif isinstance(event, CallStart):
            assert event.index not in reply.texts
            reply.texts[event.index] = event.name, ""
        elif isinstance(event, CallArguments):
            name, text = reply.texts[event.index]
            reply.texts[event.index] = name, text + event.text
        else:
            assert isinstance(event, CallDropped)
            del reply.texts[event.index]
    return reply


def events_of(format: ReplyFormat, pieces: Iterable[str], tools: Sequence[Any] = TOOLS, **options: Any) -> list[Event]:
    parser = ReplyParser(format, tools, **options)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return joined(events + parser.finish())


def read(format: ReplyFormat, text: str, tools: Sequence[Any] = TOOLS, **options: Any) -> Reply:
    return fold(events_of(format, [text], tools, **options))


def cut(text: str, places: Iterable[int]) -> list[str]:
    ends = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(ends)]
