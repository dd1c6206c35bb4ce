"""Reads a reply while it is written: reasoning, answer and tool calls."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .cursor import Cursor, Malformed, Reading
from .events import Event, joined
from .formats import ReplyFormat
from .output import Output
from .schemas import tool_schemas

_SPACE = re.compile(r"\s+")


class ReplyParser:
    """Text in, events out. However the text is cut, the joined events are the same.

    Nothing of the text is lost but the marks of thoughts and calls, and whitespace around them. Calls that are
    malformed, cut off, or of an unknown tool are part of the answer. A thought that does not end is a thought.

    Args:
        format: How the model writes replies.
        tools: The tools that it may call, as OpenAI's clients describe them. Without any, no calls are looked for.
        opens_thought: The prompt ends with what begins a thought.
        max_calls: Most calls. Later ones are left out.

    >>> from fewbit.text.reply import HERMES
    >>> parser = ReplyParser(HERMES, [{"type": "function", "function": {"name": "add"}}])
    >>> parser.feed('<think>1 + 1</think>\\n<tool_call>{"name": "ad')
    [ThoughtText(text='1 + 1')]
    >>> parser.feed('d", "arguments": {"x": 1')
    [CallStart(index=0, name='add'), CallArguments(index=0, text='{"x": ')]
    >>> parser.feed('}}</tool_call>') + parser.finish()
    [CallArguments(index=0, text='1}')]
    """

    def __init__(
        self,
        format: ReplyFormat,
        tools: Iterable[Mapping[str, Any]] = (),
        opens_thought: bool = False,
        max_calls: int | None = None,
    ) -> None:
        self._calls, self._thought = format.calls, format.thought
        self._cursor = Cursor()
        self._output = Output(self._cursor, tool_schemas(tools), max_calls)
        self._has_calls = bool(self._output.tools) or format.calls.has_channels
        self._steps = self._reply(opens_thought)

    def feed(self, text: str) -> list[Event]:
        """The events that a text completes."""
        self._cursor.feed(text)
        return self._advance()

    def finish(self) -> list[Event]:
        """The last events, when no more text follows."""
        self._cursor.end()
        events = self._advance()
        self._output.answer.finish()
        return joined(events + self._output.take())

    def _advance(self) -> list[Event]:
        next(self._steps, None)
        return self._output.take()

    def _reply(self, opens_thought: bool) -> Reading[None]:
        answer, tags = self._output.answer, self._thought
        openings = self._calls.openings if self._has_calls else ()
        markers = openings if tags is None else (*openings, tags.begin)
        if opens_thought:
            yield from self._read_thought()
        while (yield from self._cursor.has_more()):
            marker = ""
            if self._has_calls and self._calls.bare and answer.is_fresh:
                yield from self._cursor.stream(_SPACE, answer.write)
                marker = yield from self._cursor.take_any(markers)
                char = "" if marker else (yield from self._cursor.peek())
                if char and char in self._calls.bare:
                    yield from self._read_calls("")
            marker = marker or (yield from self._cursor.until(markers, answer.write))
            if marker in openings:
                yield from self._read_calls(marker)
            elif tags is not None and marker:
                if tags.is_anywhere or answer.is_fresh:
                    yield from self._read_thought()
                else:
                    answer.write(marker)

    def _read_thought(self) -> Reading[None]:
        assert self._thought is not None
        yield from self._cursor.skip_space()
        yield from self._cursor.take(self._thought.begin)  # models repeat what the prompt ends with
        yield from self._cursor.until((self._thought.end,), self._output.thought.write)
        self._output.thought.seam()
        self._output.answer.seam()

    def _read_calls(self, marker: str) -> Reading[None]:
        if marker[:1] in self._calls.bare and marker.startswith("{"):  # it is a part of the call
            self._cursor.back(len(marker))
            marker = ""
        self._output.begin_calls(marker)
        try:
            yield from self._calls.read(self._cursor, self._output, marker)
        except Malformed:
            self._output.drop_call()
        else:
            self._output.end_calls()
