"""Tool calls in what a model writes, in the shapes that are usual.

Hermes and Qwen write `<tool_call>{"name": .., "arguments": {..}}</tool_call>`, Mistral `[TOOL_CALLS][{..}]`, Llama 3 a
JSON object with `parameters`, after `<|python_tag|>` or alone. Text that looks like none of them is an answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

OPENINGS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>")
_CLOSINGS = ("</tool_call>", "<|eom_id|>", ";")


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: str  # JSON


class ToolParser:
    """Text in, text out that is no tool call; the calls come at the end.

    >>> parser = ToolParser(["add"])
    >>> parser.feed('Let me see. <tool'), parser.feed('_call>{"name": "add", "arguments": {"x": 1}}</tool_call>')
    ('Let me see. ', '')
    >>> parser.finish()
    ('', [Call(name='add', arguments='{"x": 1}')])
    """

    def __init__(self, names: Sequence[str], most: int | None = None) -> None:
        self._names, self._most = frozenset(names), most
        self._pending = ""  # what may be the start of an opening
        self._held = ""  # the opening and what follows it, or JSON from the start of the text
        self._shown = False

    def feed(self, text: str) -> str:
        """The text that is safe to show."""
        if not self._names:
            return text
        if self._held:
            self._held += text
            return ""
        text = self._pending + text
        at = min((found for one in OPENINGS if (found := text.find(one)) >= 0), default=-1)
        if not self._shown and text.lstrip()[:1] in ("{", "["):
            at = 0
        end = at if at >= 0 else len(text) - _start_length(text)
        self._held = text[at:] if at >= 0 else ""
        self._pending = "" if at >= 0 else text[end:]
        self._shown = self._shown or bool(text[:end].strip())
        return text[:end]

    def finish(self) -> tuple[str, list[Call]]:
        """What is left of the text, and the calls."""
        if not self._held:
            return self._pending, []
        calls = list(self._calls(self._held))[: self._most]
        return ("", calls) if calls else (self._held, [])

    def _calls(self, text: str) -> Iterator[Call]:
        at, decoder = 0, json.JSONDecoder()
        while (at := _next_value(text, at)) >= 0:
            try:
                value, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                return
            for one in value if isinstance(value, list) else [value]:
                call = self._call(one)
                if call is not None:
                    yield call

    def _call(self, value: Any) -> Call | None:
        if not isinstance(value, dict):
            return None
        inner = value.get("function")
        value = inner if isinstance(inner, dict) else value
        name, arguments = value.get("name"), value.get("arguments", value.get("parameters", {}))
        if name not in self._names:
            return None
        return Call(name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False))


def _start_length(text: str) -> int:
    """How many characters at the end may be the start of an opening."""
    longest = max(map(len, OPENINGS)) - 1
    ends = (text[-length:] for length in range(min(longest, len(text)), 0, -1))
    return next((len(end) for end in ends if any(one.startswith(end) for one in OPENINGS)), 0)


def _next_value(text: str, start: int) -> int:
    """Where the next JSON object or array begins, over what may stand between; -1: nowhere."""
    at = start
    while at < len(text):
        if text[at] in "{[" and not text.startswith(OPENINGS, at):
            return at
        mark = next((one for one in (*OPENINGS, *_CLOSINGS) if text.startswith(one, at)), "")
        if not mark and not text[at].isspace():
            return -1
        at += len(mark) or 1
    return -1
