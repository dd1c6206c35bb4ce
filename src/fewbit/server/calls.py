"""Tool calls in the text that a model writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..llm import LLM
from ..text.reply import AnswerText, CallArguments, CallDropped, CallStart, ReplyParser


@dataclass(slots=True)
class Call:
    name: str
    arguments: str = ""  # JSON


class CallReader:
    """Text in, text out that is no tool call; the calls come at the end. Thoughts are text here.

    Args:
        llm: The model.
        tools: What it may call.
        max_calls: Most calls.
    """

    def __init__(self, llm: LLM, tools: Sequence[Mapping[str, Any]], max_calls: int | None = None) -> None:
        form = replace(llm.reply_format(has_tools=bool(tools)), thought=None)
        self._parser = ReplyParser(form, tools, max_calls=max_calls) if tools else None
        self._calls: dict[int, Call] = {}

    def feed(self, text: str) -> str:
        """The text that is safe to show."""
        return text if self._parser is None else self._take(text)

    def finish(self) -> tuple[str, list[Call]]:
        """What is left of the text, and the calls."""
        return self._take(None), [*self._calls.values()]

    def _take(self, text: str | None) -> str:
        if self._parser is None:
            return ""
        shown = []
        for event in self._parser.finish() if text is None else self._parser.feed(text):
            if isinstance(event, AnswerText):
                shown.append(event.text)
            elif isinstance(event, CallStart):
                self._calls[event.index] = Call(event.name)
            elif isinstance(event, CallArguments):
                self._calls[event.index].arguments += event.text
            elif isinstance(event, CallDropped):
                del self._calls[event.index]
        return "".join(shown)
