"""Wrapping streamed text between words for a terminal. Code blocks stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from unicodedata import category, combining, east_asian_width

FENCES = ("```", "~~~")
TAB = 8
NARROWEST = 20  # below that, lines are left to the terminal

# Categories of characters that no line begins with, and of those that none ends with, in scripts without spaces.
_CLOSING, _OPENING = ("Pe", "Pf", "Po", "Lm"), ("Ps", "Pi")


class Wrapper:
    """Breaks lines between words. A word is held back until it is complete.

    Args:
        width: Returns the number of columns; called at each line, since a terminal may be resized.

    >>> wrapper = Wrapper(lambda: 20)
    >>> print("".join(map(wrapper.feed, ["The quick br", "own fox jumps", " over it."])) + wrapper.flush())
    The quick brown fox
    jumps over it.
    """

    def __init__(self, width: Callable[[], int]) -> None:
        self._width = width
        self._limit = width()
        self._column = 0  # where the terminal's cursor is
        self._spaces, self._word = "", ""  # held back
        self._line = ""  # how the line of the text begins
        self._in_code = False

    def feed(self, text: str) -> str:
        """The text that can be printed now."""
        return "".join(map(self._take, text))

    def flush(self) -> str:
        """The text that was held back."""
        return self._place()

    def _take(self, char: str) -> str:
        if char == "\n":
            return self._end_line()
        if len(self._line) < len(FENCES[0]):
            self._line = (self._line + char).lstrip(" ")
        if self._limit < NARROWEST or self._in_code or self._line.startswith(FENCES):
            return self._place() + self._emit(char)
        if char in " \t":
            out = self._place()
            self._spaces += char
            return out
        out = self._place() if self._word and _can_break(self._word[-1], char) else ""
        self._word += char
        return out + (self._place() if self._has_no_choice() else "")

    def _end_line(self) -> str:
        out = self._place() + "\n"
        if self._line.startswith(FENCES):
            self._in_code = not self._in_code
        self._line, self._column, self._spaces = "", 0, ""
        self._limit = self._width()
        return out

    def _has_no_choice(self) -> bool:
        """Whether the word must be on this line: it is the first one, or longer than a line."""
        return not (self._column or self._spaces) or columns(self._word) > self._limit

    def _place(self) -> str:
        """The word that was held back, on this line or the next."""
        if not self._word:
            return ""
        word, spaces = self._word, self._spaces
        self._word = self._spaces = ""
        gap = sum(TAB if char == "\t" else 1 for char in spaces)
        if self._column and self._column + gap + columns(word) > self._limit:
            self._column = 0
            return "\n" + self._emit(word)
        return self._emit(spaces) + self._emit(word)

    def _emit(self, text: str) -> str:
        for char in text:
            step = TAB - self._column % TAB if char == "\t" else char_columns(char)
            self._column = step if self._column + step > self._limit else self._column + step
        return text


def _can_break(before: str, after: str) -> bool:
    """Whether a line may end between two characters without a space: next to most wide ones."""
    if category(after) in _CLOSING or category(before) in _OPENING or not char_columns(after):
        return False
    return char_columns(before) == 2 or char_columns(after) == 2


def columns(text: str) -> int:
    """Columns that a terminal takes for a text.

    >>> columns("abc"), columns("漢字"), columns("e\\u0301")
    (3, 4, 1)
    """
    return sum(map(char_columns, text))


@lru_cache(maxsize=4096)
def char_columns(char: str) -> int:
    if combining(char) or category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if east_asian_width(char) in "WF" else 1
