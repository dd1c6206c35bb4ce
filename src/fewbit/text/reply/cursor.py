"""Text that arrives in parts, for readers that are generators: they yield where they need more of it.

A reader sees no boundary between parts, so what it finds does not depend on how the text was cut.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]  # yields when the text ran out, returns what was read
Write = Callable[[str], object]

_SPACE = re.compile(r"\s*")


class Malformed(Exception):
    """The text is not what the syntax demands, or it ended too early."""


class Cursor:
    """A position in text that arrives in parts."""

    def __init__(self) -> None:
        self._text, self._at, self._is_ended = "", 0, False
        self._recorded: list[str] | None = None

    def feed(self, text: str) -> None:
        self._text, self._at = self._text[self._at :] + text, 0

    def end(self) -> None:
        """No more text follows."""
        self._is_ended = True

    def record(self, text: str = "") -> None:
        """Keep what is read from here on, after `text`."""
        self._recorded = [text]

    def recorded(self) -> str:
        """What was read since `record`, which is no longer kept."""
        parts, self._recorded = self._recorded or [], None
        return "".join(parts)

    def has_more(self) -> Reading[bool]:
        """Whether any text follows."""
        while self._at >= len(self._text):
            if self._is_ended:
                return False
            yield
        return True

    def peek(self) -> Reading[str]:
        """The next character; "" at the end."""
        return self._text[self._at] if (yield from self.has_more()) else ""

    def take(self, literal: str) -> Reading[bool]:
        """Read a literal, if it is what follows."""
        while not self._text.startswith(literal, self._at):
            if self._is_ended or not literal.startswith(self._text[self._at : self._at + len(literal)]):
                return False
            yield
        self._advance(len(literal))
        return True

    def take_any(self, literals: tuple[str, ...]) -> Reading[str]:
        """Read the first literal that follows, and return it; "" if none does."""
        for literal in literals:
            if (yield from self.take(literal)):
                return literal
        return ""

    def expect(self, literal: str) -> Reading[None]:
        if not (yield from self.take(literal)):
            raise Malformed(literal)

    def skip_space(self) -> Reading[None]:
        while (yield from self.has_more()):
            found = _SPACE.match(self._text, self._at)
            assert found is not None
            self._advance(found.end() - self._at)
            if self._at < len(self._text):
                return

    def run(self, pattern: re.Pattern[str], limit: int = 256) -> Reading[str]:
        """The characters of a class that follow, at least one.

        Args:
            pattern: The class, repeated: `[a-z]+`.
            limit: Most characters.
        """
        parts: list[str] = []
        yield from self.stream(pattern, parts.append, limit)
        if not parts:
            raise Malformed(pattern.pattern)
        return "".join(parts)

    def stream(self, pattern: re.Pattern[str], write: Write, limit: int | None = None) -> Reading[None]:
        """Write the characters of a class that follow, as they arrive."""
        room = _Room(limit)
        while (yield from self.has_more()):
            found = pattern.match(self._text, self._at)
            if found is None:
                return
            write(self._advance(room.take(len(found[0]))))
            if room.is_exceeded:
                raise Malformed(pattern.pattern)
            if self._at < len(self._text):
                return

    def until(self, markers: tuple[str, ...], write: Write, limit: int | None = None) -> Reading[str]:
        """Write the text before the first of some markers, read the marker, and return it; "" at the end of the text.

        Args:
            markers: None of them may be a part of another, or end as another begins.
            write: Called with the text as it arrives; what may be the start of a marker is held back.
            limit: Most characters before a marker.
        """
        pattern, starts = _search(markers)
        room = _Room(limit)
        while (yield from self.has_more()):
            found = pattern.search(self._text, self._at)
            end = len(self._text) if self._is_ended else self._start_of_marker(starts)
            end = end if found is None else found.start()
            if end > self._at:
                write(self._advance(room.take(end - self._at)))
            if room.is_exceeded:
                raise Malformed(pattern.pattern)
            if found is not None:
                return self._advance(len(found[0]))
            if self._at < len(self._text):
                yield
        return ""

    def back(self, count: int) -> None:
        """Read the last characters again: those of a marker that was just read."""
        self._at -= count
        if self._recorded:
            self._recorded.append(self._recorded.pop()[:-count])

    def char(self) -> Reading[str]:
        """Read one character."""
        if not (yield from self.has_more()):
            raise Malformed("a character")
        return self._advance(1)

    def _start_of_marker(self, starts: frozenset[str]) -> int:
        """Where the start of a marker begins at the end of the text; its length if there is none."""
        size = len(self._text)
        longest = max(map(len, starts), default=0)
        return next((at for at in range(max(self._at, size - longest), size) if self._text[at:] in starts), size)

    def _advance(self, count: int) -> str:
        text = self._text[self._at : self._at + count]
        self._at += count
        if self._recorded is not None:
            self._recorded.append(text)
        return text


class _Room:
    """How many characters may still be read. Past a limit exactly as many are read, however the text is cut."""

    def __init__(self, limit: int | None) -> None:
        self._left = sys.maxsize if limit is None else limit
        self.is_exceeded = False

    def take(self, count: int) -> int:
        self.is_exceeded = count > self._left
        count = min(count, self._left)
        self._left -= count
        return count


@lru_cache(256)
def _search(markers: tuple[str, ...]) -> tuple[re.Pattern[str], frozenset[str]]:
    """A pattern of markers, and their proper starts."""
    starts = (marker[:length] for marker in markers for length in range(1, len(marker)))
    return re.compile("|".join(map(re.escape, markers)) or r"(?!)"), frozenset(starts)
