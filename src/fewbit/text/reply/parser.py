"""Reads a reply while it is written: reasoning, answer and tool calls."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .cursor import Cursor, Malformed, Reading
from .events import Event, joined
from .formats import ReplyFormat, ThoughtTags
from .harmony import RECIPIENT
from .output import Output, Prose
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
        self._openings = format.calls.openings if self._has_calls else ()
        self._openings_in_thoughts = self._openings if format.calls_in_thoughts else ()
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
        markers = (*self._openings, *_tags(tags))
        if opens_thought:
            yield from self._read_thought()
        if self._calls.has_channels and (yield from self._cursor.take(RECIPIENT)):
            yield from self._read_answer_calls(RECIPIENT)
        while (yield from self._cursor.has_more()):
            marker = ""
            if self._has_calls and self._calls.bare and answer.is_fresh:
                yield from self._cursor.stream(_SPACE, answer.write)
                marker = yield from self._cursor.take_any(markers)
                if not marker:  # peeking past a marker would lose it, if no more text is there yet
                    char = yield from self._cursor.peek()
                    if char and char in self._calls.bare:
                        yield from self._read_answer_calls("")
            marker = marker or (yield from self._cursor.until(markers, answer.write))
            if marker in self._openings:
                yield from self._read_answer_calls(marker)
            elif tags is not None and marker == tags.begin:
                if tags.is_anywhere or answer.is_fresh:
                    yield from self._read_thought()
                else:
                    answer.write(marker)

    def _read_thought(self) -> Reading[None]:
        assert self._thought is not None
        thought, end, answer = self._output.thought, self._thought.end, ""
        yield from self._cursor.skip_space()
        yield from self._cursor.take(self._thought.begin)  # models repeat what the prompt ends with
        while True:
            marker = yield from self._cursor.until((end, *self._openings_in_thoughts), thought.write)
            if marker in ("", end):
                break
            inside, ended, answer = (yield from self._read_calls(marker, thought)).partition(end)
            thought.write(inside)
            if ended:
                break
        thought.seam()
        self._output.answer.seam()
        self._output.answer.write(answer)

    def _read_answer_calls(self, marker: str) -> Reading[None]:
        self._output.answer.write((yield from self._read_calls(marker, self._output.answer)))

    def _read_calls(self, marker: str, prose: Prose) -> Reading[str]:
        """Read calls after prose; returns what was read if they are none."""
        if marker[:1] in self._calls.bare and marker.startswith("{"):  # it is a part of the call
            self._cursor.back(len(marker))
            marker = ""
        self._output.begin_calls(marker, prose)
        try:
            yield from self._calls.read(self._cursor, self._output, marker)
        except Malformed:
            return self._output.drop_call()
        self._output.end_calls()
        return ""


def _tags(tags: ThoughtTags | None) -> tuple[str, ...]:
    """The marks of thoughts that mean something in an answer. An end without a beginning is left out of it."""
    if tags is None:
        return ()
    return (tags.begin, tags.end) if tags.is_anywhere else (tags.begin,)
