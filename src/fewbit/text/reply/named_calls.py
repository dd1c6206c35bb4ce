"""Calls that are a name and then JSON: new Mistral models, DeepSeek V3, Kimi K2."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .cursor import Cursor, Malformed, Reading
from .json_calls import read_objects
from .lark import Lark
from .output import Output
from .values import JSON, read_value

MAX_HEADER = 512  # characters before the arguments


@dataclass(frozen=True, slots=True)
class NamedCalls:
    """`[TOOL_CALLS]f[ARGS]{..}` and the like.

    Args:
        begin: What begins a call.
        header: A pattern of what stands between it and the arguments, with a group `name`.
        before: What the model was trained to write before the name.
        between: The same, between name and arguments.
        end: What ends a call, or "".
        fence: What may stand before `end`.
        section: What begins all calls, and what ends them, or "".
        tokens: Other texts of the syntax that may be control tokens.
    """

    begin: str
    header: re.Pattern[str]
    before: str = ""
    between: str = ""
    end: str = ""
    fence: str = ""
    section: tuple[str, str] = ("", "")
    tokens: tuple[str, ...] = ()

    has_channels = False

    @property
    def bare(self) -> str:
        """Characters that begin calls where the model leaves the beginning out: in a list of objects."""
        return "" if self.section[0] else "["

    @property
    def openings(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.section[0], self.begin)))

    @property
    def literals(self) -> tuple[str, ...]:
        return tuple(filter(None, (*self.section, self.begin, self.end, *self.tokens)))

    def read(self, cursor: Cursor, output: Output, marker: str) -> Reading[None]:
        if marker and marker == self.section[0]:
            yield from cursor.skip_space()
            yield from cursor.expect(self.begin)
        yield from cursor.skip_space()
        if (yield from cursor.peek()) in ("[", "{") and not self.section[0]:  # as older models write it
            yield from read_objects(cursor, output)
            return
        yield from self._call(cursor, output)
        while (yield from cursor.take(self.begin)):
            yield from self._call(cursor, output)
        if self.section[1]:
            yield from cursor.take(self.section[1])

    def grammar(self, lark: Lark, tools: dict[str, Any], is_parallel: bool) -> str:
        calls = [self._rule(lark, name, schema) for name, schema in tools.items()]
        call = lark.any_of(calls)
        begin = lark.text(self.begin)
        repeated = f" ({begin} {call})*" if is_parallel else ""
        return lark.rule(f"{begin if self.section[0] else ''} {call}{repeated} {lark.text(self.section[1])}")

    def _rule(self, lark: Lark, name: str, schema: Any) -> str:
        head, end = lark.text(self.before + name + self.between), lark.text(self.fence and f"\n{self.fence}", self.end)
        return lark.rule(f"{head} {lark.json(schema)} {end}")

    def _call(self, cursor: Cursor, output: Output) -> Reading[None]:
        yield from cursor.skip_space()
        name = yield from self._name(cursor)
        output.start_call(name)
        yield from read_value(cursor, JSON, output.arguments)
        output.end_call()
        for text in filter(None, (self.fence, self.end)):
            yield from cursor.skip_space()
            yield from cursor.take(text)
        yield from cursor.skip_space()

    def _name(self, cursor: Cursor) -> Reading[str]:
        parts: list[str] = []
        yield from cursor.stream(_NOT_ARGUMENTS, parts.append, MAX_HEADER)
        found = self.header.fullmatch("".join(parts).strip())
        if found is None or (yield from cursor.peek()) != "{":
            raise Malformed("a name and arguments")
        return str(found["name"])


_NOT_ARGUMENTS = re.compile(r"[^{]+")
