"""Marks distinguish the text of messages from the text of the template, so that no message can spell a control token.

A mark is a character that no message holds. It is put after each character that begins a control token and before each
that ends one. So a control token that has such a character out of a message is broken, however the template cuts and
joins its messages. Tokenizers look for control tokens first and take the marks away then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from ..errors import TemplateError

# Noncharacters first, which hardly any text holds, then those for private use.
_CANDIDATES = (range(0xFDD0, 0xFDF0), range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


class Marker:
    """Marks values of messages.

    `control` are the texts of control tokens. `literals` are texts that the template looks for in messages, such as
    "</think>": it must find them, so they stay as they are, unless one of them could be a part of a control token.

    >>> Marker(["<|end|>"], ["</think>"]).mark({"content": "a <|end|> </think>"}, "*")
    {'content': 'a <*|end|*> </think>'}
    """

    def __init__(self, control: Iterable[str], literals: Iterable[str] = ()) -> None:
        tokens = [text for text in control if text]
        self._firsts = {text[0] for text in tokens if not text[0].isalnum()}
        self._lasts = {text[-1] for text in tokens if not text[-1].isalnum()}
        alnum = [text for text in tokens if text[0].isalnum() and text[-1].isalnum()]  # matched as a whole
        ends = self._firsts | self._lasts
        looked_for = [text for text in literals if not ends.isdisjoint(text)]  # the others are never marked
        self._kept = _apart(looked_for, tokens)
        texts = sorted((*self._kept, *alnum), key=len, reverse=True)
        chars = sorted(ends)
        self._pattern = re.compile("|".join(map(re.escape, (*texts, *chars)))) if texts or chars else None

    def mark(self, value: Any, mark: str) -> Any:
        """A value with marks in all its strings; dicts and lists are plain ones then."""
        if isinstance(value, str):
            pattern = self._pattern if mark else None
            return value if pattern is None else pattern.sub(lambda found: self._marked(found[0], mark), value)
        if isinstance(value, Mapping):
            return {self.mark(key, mark): self.mark(item, mark) for key, item in value.items()}
        return [self.mark(item, mark) for item in value] if isinstance(value, list | tuple) else value

    def _marked(self, text: str, mark: str) -> str:
        if text in self._kept:
            return text
        if len(text) > 1:
            return text[0] + mark + text[1:]
        return (mark if text in self._lasts else "") + text + (mark if text in self._firsts else "")


def choose_mark(*values: Any) -> str:
    """A character that stands nowhere in these values.

    >>> choose_mark("a", ["\\ufdd0"]) == "\\ufdd1"
    True
    """
    used = set().union(*_texts(values))
    for code in chain(*_CANDIDATES):
        if chr(code) not in used:
            return chr(code)
    raise TemplateError("the messages hold every character for private use; give trust_content=True")


def is_mark(char: str) -> bool:
    """Whether a character may be one."""
    return any(ord(char) in codes for codes in _CANDIDATES)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _apart(texts: list[str], tokens: list[str]) -> set[str]:
    """The texts that can have no part in a token: none holds the other, or begins where the other ends."""
    if not texts:
        return set()
    every = "\0".join(tokens)
    heads = {token[:n] for token in tokens for n in range(1, len(token))}
    tails = {token[n:] for token in tokens for n in range(1, len(token))}
    return {
        text
        for text in texts
        if text not in every
        and not any(token in text for token in tokens)
        and not any(text[-n:] in heads or text[:n] in tails for n in range(1, len(text)))
    }
