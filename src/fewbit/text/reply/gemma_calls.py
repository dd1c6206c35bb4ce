"""Calls as Gemma 4 writes them: keys without quotes, strings between tokens of their own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .cursor import Cursor, Malformed, Reading
from .lark import Lark
from .output import Output
from .value_rules import ValueRules
from .values import GEMMA, read_value

QUOTE = '<|"|>'
_NAME = re.compile(r"[^\s<>\"'=(){}\[\],;:]+")


@dataclass(frozen=True, slots=True)
class GemmaCalls:
    """`<|tool_call>call:f{x:1,y:<|"|>a<|"|>}<tool_call|>`.

    Args:
        begin: What begins a call.
        end: What ends it.
    """

    begin: str = "<|tool_call>"
    end: str = "<tool_call|>"

    bare = ""
    has_channels = False

    @property
    def openings(self) -> tuple[str, ...]:
        return (self.begin,)

    @property
    def literals(self) -> tuple[str, ...]:
        return self.begin, self.end, QUOTE

    def read(self, cursor: Cursor, output: Output, marker: str) -> Reading[None]:
        yield from cursor.skip_space()
        yield from cursor.take("call:")
        output.start_call((yield from cursor.run(_NAME)))
        yield from cursor.skip_space()
        if (yield from cursor.peek()) != "{":
            raise Malformed("arguments")
        yield from read_value(cursor, GEMMA, output.arguments)
        output.end_call()
        yield from cursor.skip_space()
        yield from cursor.take(self.end)

    def grammar(self, lark: Lark, tools: dict[str, Any], is_parallel: bool) -> str:
        constants = {word: word for word in ("true", "false", "null")}
        values = ValueRules(lark, QUOTE, "{}:", ",", constants)
        rules = (
            lark.rule(f"{lark.text('call:', name)} {values.object(schema, schema)} {lark.text(self.end)}")
            for name, schema in tools.items()
        )
        call = lark.any_of(rules)
        return lark.rule(f"{call} ({lark.text(self.begin)} {call})*" if is_parallel else call)
