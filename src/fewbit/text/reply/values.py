"""Values in what a model writes: JSON, Python literals, and Gemma's notation. They are streamed as JSON text.

A notation is one `Notation`. Whitespace between tokens is normalized; strings may hold line breaks, which are escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from .cursor import Cursor, Malformed, Reading, Write

MAX_DEPTH = 100  # of nested lists and objects
_WORD = re.compile(r"[-+.\w]+")
_KEY = re.compile(r"[^\s:,{}\[\]<>\"']+")
_HEX = re.compile(r"[0-9a-fA-F]+\Z")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?\Z")
_JSON_WORDS = {word: word for word in ("true", "false", "null")}


@dataclass(frozen=True, slots=True)
class Notation:
    """How values are written.

    Args:
        quotes: What begins and ends a string, longer ones first.
        escapes: What a character after a backslash stands for, as JSON text; None: a backslash is a backslash.
        code_escapes: Number of hexadecimal digits after a backslash and a letter.
        constants: Words and the JSON that they stand for.
        brackets: What begins a list or an object, and what ends it.
        has_bare_keys: Keys of objects may be without quotes.
        is_python: Numbers as in Python; a comma may end a list.
    """

    quotes: tuple[str, ...]
    escapes: Mapping[str, str] | None
    constants: Mapping[str, str]
    code_escapes: Mapping[str, int] = field(default_factory=dict)
    brackets: Mapping[str, str] = field(default_factory=lambda: {"[": "]", "{": "}"})
    has_bare_keys: bool = False
    is_python: bool = False


JSON = Notation(('"',), {char: "\\" + char for char in '"\\/bfnrt'}, _JSON_WORDS, {"u": 4})
PYTHON = Notation(
    ('"""', "'''", '"', "'"),
    {**{char: "\\" + char for char in '"\\bfnrt'}, "'": "'", "a": "\\u0007", "v": "\\u000b", "0": "\\u0000", "\n": ""},
    {**_JSON_WORDS, "True": "true", "False": "false", "None": "null"},
    {"x": 2, "u": 4, "U": 8},
    {"[": "]", "{": "}", "(": ")"},
    is_python=True,
)
GEMMA = Notation(('<|"|>', '"'), None, {**_JSON_WORDS, "None": "null"}, has_bare_keys=True)


def quoted(text: str) -> str:
    """A text as the inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def parse(text: str) -> Any:
    """The value of JSON text; Malformed if it is none."""
    try:
        return json.loads(text, strict=False, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise Malformed("JSON") from None


def read_value(cursor: Cursor, notation: Notation, write: Write) -> Reading[None]:
    """Read a value and write it as JSON text, as it arrives."""
    closings: list[str] = []
    while True:
        yield from cursor.skip_space()
        opening = yield from cursor.peek()
        if opening in notation.brackets:
            if len(closings) >= MAX_DEPTH:
                raise Malformed("fewer brackets")
            yield from cursor.char()
            closings.append(notation.brackets[opening])
            write("{" if opening == "{" else "[")
            yield from cursor.skip_space()
            if (yield from cursor.peek()) != closings[-1]:
                yield from _key(cursor, notation, closings[-1], write)
                continue
        else:
            yield from _scalar(cursor, notation, write)
        if not (yield from _after(cursor, notation, closings, write)):
            return


def read_string(cursor: Cursor, notation: Notation) -> Reading[str]:
    """Read a string whole."""
    parts: list[str] = []
    yield from _string(cursor, notation, parts.append)
    value = parse("".join(parts))
    return str(value)


def _after(cursor: Cursor, notation: Notation, closings: list[str], write: Write) -> Reading[bool]:
    """Read what follows a value; whether that is another one."""
    while closings:
        yield from cursor.skip_space()
        comma = yield from cursor.take(",")
        if comma:
            yield from cursor.skip_space()
        closes = (yield from cursor.peek()) == closings[-1]
        if comma and not (closes and notation.is_python):
            write(", ")
            yield from _key(cursor, notation, closings[-1], write)
            return True
        yield from cursor.expect(closings[-1])
        write("}" if closings.pop() == "}" else "]")
    return False


def _key(cursor: Cursor, notation: Notation, closing: str, write: Write) -> Reading[None]:
    """Read the key of an object's value; values of a list have none."""
    if closing != "}":
        return
    if notation.has_bare_keys and (yield from cursor.peek()) not in ("<", '"'):
        write(f'"{quoted((yield from cursor.run(_KEY)))}"')
    else:
        yield from _string(cursor, notation, write)
    yield from cursor.skip_space()
    yield from cursor.expect(":")
    write(": ")


def _scalar(cursor: Cursor, notation: Notation, write: Write) -> Reading[None]:
    if (yield from cursor.peek()) in {quote[0] for quote in notation.quotes}:
        yield from _string(cursor, notation, write)
        return
    word = yield from cursor.run(_WORD)
    if word in notation.constants:
        write(notation.constants[word])
    elif _NUMBER.match(word):
        write(word)
    else:
        write(_python_number(word) if notation.is_python else _no_number(word))


def _string(cursor: Cursor, notation: Notation, write: Write) -> Reading[None]:
    for quote in notation.quotes:
        if (yield from cursor.take(quote)):
            break
    else:
        raise Malformed("a string")
    write('"')
    if notation.escapes is None:
        if not (yield from cursor.until((quote,), lambda text: write(quoted(text)))):
            raise Malformed(quote)
    else:
        yield from _escaped(cursor, notation, quote, write)
    write('"')


def _escaped(cursor: Cursor, notation: Notation, quote: str, write: Write) -> Reading[None]:
    """Read the rest of a string with escapes."""
    while True:
        found = yield from cursor.until((quote, "\\"), lambda text: write(quoted(text)))
        if found == quote:
            return
        if not found:
            raise Malformed(quote)
        write((yield from _escape(cursor, notation)))


def _escape(cursor: Cursor, notation: Notation) -> Reading[str]:
    """Read what follows a backslash; returns JSON text."""
    char = yield from cursor.char()
    assert notation.escapes is not None
    if char in notation.code_escapes:
        digits = ""
        for _ in range(notation.code_escapes[char]):
            digits += yield from cursor.char()
        return _code_point(digits)
    if char in notation.escapes:
        return notation.escapes[char]
    if notation.is_python:  # as in Python
        return quoted("\\" + char)
    raise Malformed("an escape")


def _code_point(digits: str) -> str:
    if not _HEX.match(digits) or int(digits, 16) > 0x10FFFF:
        raise Malformed("hexadecimal digits")
    code = int(digits, 16)
    return f"\\u{code:04x}" if code < 0x10000 else chr(code)  # half a character may follow: it stays escaped


def _python_number(word: str) -> str:
    for kind in (lambda: int(word, 0), lambda: int(word), lambda: float(word)):
        try:
            number: float = kind()
        except ValueError:
            continue
        if isfinite(number):
            return repr(number)
    return _no_number(word)


def _no_number(word: str) -> str:
    raise Malformed(f"a value, got {word}")


_refuse: Callable[[str], Any] = _no_number
