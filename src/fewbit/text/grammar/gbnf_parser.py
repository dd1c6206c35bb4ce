"""A parser for GBNF, llama.cpp's form of context-free grammars."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from ...errors import RequestError

MAX_GROUPS = 100  # parentheses inside parentheses

_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:\s|#[^\r\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_COUNT = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d*)\s*)?\}")
_TOKEN = re.compile(r"<(?:\[\d+\]|[^\s<>]+)>")
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_PLAIN_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]"}


@dataclass(frozen=True)
class Literal:
    """Text as it is."""

    text: str


@dataclass(frozen=True)
class CharClass:
    """One character, as a regex."""

    pattern: str


@dataclass(frozen=True)
class TokenName:
    """One token of the vocabulary, such as `<|end|>` or `<[7]>`."""

    text: str


@dataclass(frozen=True)
class Reference:
    """The name of a rule."""

    name: str


@dataclass(frozen=True)
class Sequence:
    """One after the other."""

    items: tuple[Expression, ...]


@dataclass(frozen=True)
class Alternatives:
    """One of several."""

    options: tuple[Expression, ...]


@dataclass(frozen=True)
class Repeat:
    """Several times, as `suffix` says: *, +, ?, {2}, {2,} or {2,3}."""

    item: Expression
    suffix: str


Expression: TypeAlias = Literal | CharClass | TokenName | Reference | Sequence | Alternatives | Repeat


def parse_gbnf(text: str) -> dict[str, Expression]:
    r"""The rules of a grammar by name.

    >>> parse_gbnf('root ::= "a" item* # comment\nitem ::= [0-9]')["item"]
    CharClass(pattern='[\\x{30}-\\x{39}]')
    """
    return _Parser(text).rules()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def rules(self) -> dict[str, Expression]:
        rules: dict[str, Expression] = {}
        self._skip(_SPACE_AND_LINES)
        while self._at < len(self._text):
            name = self._take(_NAME, "the name of a rule")[0]
            self._skip(_SPACE)
            self._expect("::=")
            if name in rules:
                raise self._error(f"rule {name!r} is defined twice")
            self._skip(_SPACE_AND_LINES)
            rules[name] = self._alternatives()
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                raise self._error("expected the end of the rule")
            self._skip(_SPACE_AND_LINES)
        return rules

    def _alternatives(self) -> Expression:
        options = [self._sequence()]
        while self._next("|"):
            self._skip(_SPACE_AND_LINES)
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Alternatives(tuple(options))

    def _sequence(self) -> Expression:
        items: list[Expression] = []
        while (item := self._item()) is not None:
            self._skip_inside()
            items.append(self._repeated(item))
            self._skip_inside()
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _item(self) -> Expression | None:
        char = self._text[self._at : self._at + 1]
        if char == '"':
            return self._literal()
        if char == "[":
            return self._char_class()
        if char == "(":
            return self._group()
        if char == "<":
            return TokenName(self._take(_TOKEN, "a token such as <[7]>")[0])
        if self._next("."):
            return CharClass("(?s:.)")
        if char == "!":
            raise self._error("a negated token is not supported")
        found = _NAME.match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        return Reference(found[0])

    def _group(self) -> Expression:
        self._depth += 1
        if self._depth > MAX_GROUPS:
            raise self._error(f"more than {MAX_GROUPS} parentheses are open")
        self._expect("(")
        self._skip(_SPACE_AND_LINES)
        inner = self._alternatives()
        self._expect(")")
        self._depth -= 1
        return inner

    def _repeated(self, item: Expression) -> Expression:
        while True:
            char = self._text[self._at : self._at + 1]
            if char and char in "*+?":
                self._at += 1
                item = Repeat(item, char)
            elif char == "{":
                found = self._take(_COUNT, "a count such as {2}, {2,} or {2,3}")
                item = Repeat(item, f"{{{found[1]}{found[2] or ''}{found[3] or ''}}}")
            else:
                return item
            self._skip_inside()

    def _literal(self) -> Expression:
        self._expect('"')
        chars = []
        while not self._next('"'):
            chars.append(self._char())
        return Literal("".join(chars))

    def _char_class(self) -> Expression:
        self._expect("[")
        pattern = "[^" if self._next("^") else "["
        while not self._next("]"):
            first = last = self._char()
            if self._text[self._at : self._at + 1] == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                last = self._char()
            if last < first:
                raise self._error(f"the range {first!r} to {last!r} is empty")
            pattern += _escaped(first) if first == last else f"{_escaped(first)}-{_escaped(last)}"
        if pattern in ("[", "[^"):
            raise self._error("a character class is empty")
        return CharClass(f"{pattern}]")

    def _char(self) -> str:
        char = self._text[self._at : self._at + 1]
        if not char or char in "\r\n":
            raise self._error("a text or a character class is not closed")
        if char != "\\":
            self._at += 1
            return char
        found = self._take(_ESCAPE, "an escape")
        if found[4] is not None:
            if found[4] not in _PLAIN_ESCAPES:
                raise self._error(f"unknown escape {found[0]!r}")
            return _PLAIN_ESCAPES[found[4]]
        code = int(found[1] or found[2] or found[3], 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise self._error(f"{found[0]} is not a character")
        return chr(code)

    def _skip_inside(self) -> None:
        """Skip space; inside parentheses a rule may go on in the next line."""
        self._skip(_SPACE_AND_LINES if self._depth else _SPACE)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _next(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _take(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise self._error(f"expected {what}")
        self._at = found.end()
        return found

    def _expect(self, text: str) -> None:
        if not self._next(text):
            raise self._error(f"expected {text!r}")

    def _error(self, problem: str) -> RequestError:
        line = self._text.count("\n", 0, self._at) + 1
        near = self._text[self._at : self._at + 20]
        return RequestError(f"line {line} of the grammar, at {near!r}: {problem}")


def _escaped(char: str) -> str:
    """A character inside a class of a regex."""
    return f"\\x{{{ord(char):x}}}"
