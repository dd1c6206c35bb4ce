"""Finds tokens that are spelled out in the text: control tokens and user-defined tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

_WHITESPACE = " \t\n\v\f\r"


class Splitter:
    """Splits text at the given tokens: the leftmost first, and the longest of those.

    >>> list(Splitter({"<s>": 1, "<sep>": 7}).split("a<sep>b<s>"))
    ['a', 7, 'b', 1]
    """

    def __init__(self, tokens: Mapping[str, int], strip_left: Iterable[int] = (), strip_right: Iterable[int] = ()):
        self._tokens = {text: token for text, token in tokens.items() if text}
        lengths: dict[str, set[int]] = {}
        for text in self._tokens:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self._firsts = re.compile("[" + re.escape("".join(lengths)) + "]") if lengths else None
        self._strip_left, self._strip_right = frozenset(strip_left), frozenset(strip_right)

    def split(self, text: str) -> Iterator[str | int]:
        """The pieces of text, none of them empty, and the ids between them."""
        done = at = 0
        while self._firsts is not None and (found := self._firsts.search(text, at)) is not None:
            at = found.start()
            length = self._match(text, at)
            if not length:
                at += 1
                continue
            token = self._tokens[text[at : at + length]]
            before = text[done:at]
            if token in self._strip_left:
                before = before.rstrip(_WHITESPACE)
            if before:
                yield before
            yield token
            at += length
            if token in self._strip_right:
                at = len(text) - len(text[at:].lstrip(_WHITESPACE))
            done = at
        if done < len(text):
            yield text[done:]

    def _match(self, text: str, at: int) -> int:
        for length in self._lengths[text[at]]:
            if text[at : at + length] in self._tokens:
                return length
        return 0
