"""Calls as Python writes them: Llama 4, OLMo 3, LFM2."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .cursor import Cursor, Reading
from .json_calls import read_objects
from .lark import Lark
from .output import Output
from .schemas import properties, required
from .value_rules import ValueRules
from .values import PYTHON, quoted, read_value

_NAME = re.compile(r"[^\s<>\"'=(){}\[\],;]+")

_WORDS = {"true": "True", "false": "False", "null": "None"}


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """`[f(x=1), g(y="a")]`.

    Args:
        begin: What begins calls, or "".
        end: What ends them, or "".
        has_list: The model was trained to write a list, and not a line for each call. Both are read.
        aliases: What may stand in place of `begin`.
    """

    begin: str = ""
    end: str = ""
    has_list: bool = True
    aliases: tuple[str, ...] = ()

    has_channels = False

    @property
    def bare(self) -> str:
        return "[" if self.has_list else ""

    @property
    def openings(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.begin, *self.aliases)))

    @property
    def literals(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.begin, self.end, *self.aliases)))

    def read(self, cursor: Cursor, output: Output, marker: str) -> Reading[None]:
        yield from cursor.skip_space()
        if (yield from cursor.peek()) == "{":  # as Llama 3 writes it
            yield from read_objects(cursor, output)
        else:
            yield from self._calls(cursor, output)
        if self.end:
            yield from cursor.take(self.end)

    def grammar(self, lark: Lark, tools: dict[str, Any], is_parallel: bool) -> str:
        call = lark.any_of(self._call_rule(lark, name, schema) for name, schema in tools.items())
        if self.has_list:
            repeated = f' (", " {call})*' if is_parallel else ""
            return lark.rule(f'"[" {call}{repeated} "]" {lark.text(self.end)}')
        repeated = f' ("\\n" {call})*' if is_parallel else ""
        return lark.rule(f'"\\n" {call}{repeated} "\\n" {lark.text(self.end)}')

    def _call_rule(self, lark: Lark, name: str, schema: Any) -> str:
        needed = required(schema)
        values = ValueRules(lark, "", '"{}": ', ", ", _WORDS)
        rules = [
            (f"{lark.text(f'{key}=')} {values.value(value, schema)}", key in needed)
            for key, value in properties(schema).items()
        ]
        return lark.rule(f'{lark.text(f"{name}(")} {lark.members(rules)} ")"')

    def _calls(self, cursor: Cursor, output: Output) -> Reading[None]:
        in_list = yield from cursor.take("[")
        while True:
            yield from cursor.skip_space()
            yield from self._call(cursor, output)
            yield from cursor.skip_space()
            if in_list and not (yield from cursor.take("]")):
                yield from cursor.expect(",")
                continue
            yield from cursor.skip_space()
            next_char = yield from cursor.peek()
            if in_list or not (next_char.isidentifier() and self.end):
                return

    def _call(self, cursor: Cursor, output: Output) -> Reading[None]:
        name = yield from cursor.run(_NAME)
        yield from cursor.skip_space()
        yield from cursor.expect("(")
        output.start_call(name)
        comma = ""
        output.arguments("{")
        while True:
            yield from cursor.skip_space()
            if (yield from cursor.take(")")):
                break
            if comma:
                yield from cursor.expect(",")
                yield from cursor.skip_space()
                if (yield from cursor.take(")")):
                    break
            yield from self._argument(cursor, output, comma)
            comma = ", "
        output.arguments("}")
        output.end_call()

    def _argument(self, cursor: Cursor, output: Output, comma: str) -> Reading[None]:
        key = yield from cursor.run(_NAME)
        yield from cursor.skip_space()
        yield from cursor.expect("=")
        output.arguments(f'{comma}"{quoted(key)}": ')
        yield from read_value(cursor, PYTHON, output.arguments)
