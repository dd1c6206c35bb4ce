"""Where readers write what they find: thoughts, answer and calls, as events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .cursor import Cursor, Malformed
from .events import AnswerText, CallArguments, CallDropped, CallStart, Event, ThoughtText, joined


class Prose:
    """Text without the whitespace around thoughts and calls.

    Args:
        emit: Called with the text.
        is_trimmed: Whitespace at its beginning is left out too.
    """

    def __init__(self, emit: Callable[[str], None], is_trimmed: bool) -> None:
        self._emit = emit
        self._at_seam = is_trimmed
        self._has_text = False
        self._spaces: list[str] = []  # whitespace that may be the last

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was written yet, or nothing since a thought or a call."""
        return self._at_seam or not self._has_text

    def write(self, text: str) -> None:
        body = text.rstrip()
        if not body:
            self._spaces.append(text)
            return
        whole = "".join((*self._spaces, body))
        self._spaces = [text[len(body) :]]
        if self._at_seam:
            inner = whole.lstrip()
            space = whole[: len(whole) - len(inner)] or "\n"
            whole = space + inner if self._has_text else inner
        self._at_seam, self._has_text = False, True
        self._emit(whole)

    def seam(self) -> None:
        """A thought or a call comes next, or came. Whitespace around it is left out."""
        self._spaces, self._at_seam = [], True

    def held(self) -> str:
        """The whitespace that was held back, which is no longer part of the text."""
        spaces, self._spaces = "".join(self._spaces), []
        return spaces

    def finish(self) -> None:
        """Write whitespace at the end, unless it follows a thought or a call."""
        spaces = self.held()
        if spaces and not self._at_seam:
            self._emit(spaces)


class Output:
    """The events of a reply.

    Args:
        cursor: What is read; it records the text of a call.
        tools: The schema of the arguments of each tool, by name.
        max_calls: Most calls; later ones are read and left out.
    """

    def __init__(self, cursor: Cursor, tools: Mapping[str, Any], max_calls: int | None) -> None:
        self.tools = tools
        self.thought = Prose(lambda text: self._emit(ThoughtText(text)), is_trimmed=True)
        self.answer = Prose(lambda text: self._emit(AnswerText(text)), is_trimmed=False)
        self._cursor, self._max_calls = cursor, max_calls
        self._events: list[Event] = []
        self._num_calls = 0
        self._index: int | None = None  # of the call that is being read

    def take(self) -> list[Event]:
        """The events since the last time."""
        events, self._events = self._events, []
        return joined(events)

    def begin_calls(self, marker: str, prose: Prose | None = None) -> None:
        """Text that should be calls begins with a marker, which was read.

        Args:
            marker: The marker.
            prose: What is before it; None: the answer.
        """
        self._cursor.record((prose or self.answer).held() + marker)

    def start_call(self, name: str) -> Any:
        """A call begins; returns the schema of its arguments."""
        if name not in self.tools:
            raise Malformed(f"a tool, got {name}")
        self._index = self._num_calls
        self._num_calls += 1
        if self._is_visible:
            self._emit(CallStart(self._index, name))
        return self.tools[name]

    def arguments(self, text: str) -> None:
        """JSON text of the arguments of the call that is being read."""
        if self._is_visible and self._index is not None and text:
            self._emit(CallArguments(self._index, text))

    def end_call(self) -> None:
        """The call is complete."""
        self._index = None
        self.thought.seam()
        self.answer.seam()
        self._cursor.record()

    def end_calls(self) -> None:
        """All calls are complete, and what belongs to them was read."""
        self._cursor.recorded()

    def drop_call(self) -> str:
        """The call is none; returns what was read since the last complete one, which is prose."""
        if self._index is not None and self._is_visible:
            self._emit(CallDropped(self._index))
        self._index = None
        return self._cursor.recorded()

    @property
    def _is_visible(self) -> bool:
        return self._max_calls is None or self._num_calls <= self._max_calls

    def _emit(self, event: Event) -> None:
        self._events.append(event)
