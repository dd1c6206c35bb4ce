"""Calls whose arguments stand between tags, as text: Qwen3-Coder and later, GLM, DeepSeek V3.2, MiniMax, Seed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .cursor import Cursor, Malformed, Reading, Write
from .lark import Lark
from .output import Output
from .schemas import converted, properties, required, to_json, types_of, with_definitions
from .values import quoted

_NAME = re.compile(r"[^\s<>\"'=(){}\[\],;]+")
_STRING = frozenset(["string"])
_MAX_KEY = 256  # characters


@dataclass(frozen=True, slots=True)
class TagCalls:
    """`<function=f><parameter=x>1</parameter></function>` and the like. Line breaks and spaces between tags are free.

    Args:
        begin: What begins all calls; "": nothing does.
        call: What begins a call.
        named: What ends its name.
        key: What begins an argument.
        keyed: What ends its key.
        value: What begins its value, after `keyed` or after attributes; "": `keyed` does.
        value_end: What ends the value.
        call_end: What ends a call.
        end: What ends all calls, or "".
        says_string: An attribute of each argument says whether it is a string.
        is_trimmed: A line break begins and ends values, and is no part of them.
        space: What the model was trained to write between tags.
    """

    begin: str
    call: str
    named: str
    key: str
    keyed: str
    value: str
    value_end: str
    call_end: str
    end: str = ""
    says_string: bool = False
    is_trimmed: bool = False
    space: str = "\n"

    bare = ""
    has_channels = False

    @property
    def openings(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.begin, self.call)))

    @property
    def literals(self) -> tuple[str, ...]:
        opening = (self.begin, self.call, self.named, self.key, self.keyed, self.value)
        return tuple(filter(None, (*opening, self.value_end, self.call_end, self.end)))

    def read(self, cursor: Cursor, output: Output, marker: str) -> Reading[None]:
        if marker == self.begin:
            yield from cursor.skip_space()
            yield from cursor.expect(self.call)
        while True:
            yield from self._call(cursor, output)
            yield from cursor.skip_space()
            if self.end and (yield from cursor.take(self.end)):
                return
            if not (self.begin and (yield from cursor.take(self.call))):
                return

    def grammar(self, lark: Lark, tools: dict[str, Any], is_parallel: bool) -> str:
        call = lark.any_of(self._call_rule(lark, name, schema) for name, schema in tools.items())
        if not self.begin:
            return lark.rule(f"{call} ({lark.text(chr(10), self.call)} {call})*" if is_parallel else call)
        call = f"{lark.text(self.space, self.call)} {call}"
        return lark.rule(f"{call}{f' ({call})*' if is_parallel else ''} {lark.text(self.space, self.end)}")

    def _call_rule(self, lark: Lark, name: str, schema: Any) -> str:
        needed = required(schema)
        parts = [lark.text(name, self.named, self.space)]
        for key, value in properties(schema).items():
            rule = self._argument_rule(lark, key, value, schema)
            parts.append(rule if key in needed else f"({rule})?")
        return lark.rule(" ".join([*parts, lark.text(self.call_end)]))

    def _argument_rule(self, lark: Lark, key: str, schema: Any, root: Any) -> str:
        is_text = types_of(schema, root) in (frozenset(), _STRING)
        attribute = f' string="{str(is_text).lower()}"' if self.says_string else ""
        space = self.space if self.value.startswith("<") else ""
        edge = "\n" if self.is_trimmed else ""
        head = lark.text(self.key, key, self.keyed, attribute, space, self.value, edge)
        options = schema.get("enum", [schema["const"]] if "const" in schema else None) if is_text else None
        if options:
            value = f"{lark.any_of(lark.text(str(option)) for option in options)} {lark.text(edge, self.value_end)}"
        elif is_text:
            value = lark.until(edge + self.value_end)
        else:
            value = f"{lark.json(with_definitions(schema, root))} {lark.text(edge, self.value_end)}"
        return lark.rule(f"{head} {value} {lark.text(self.space)}")

    def _call(self, cursor: Cursor, output: Output) -> Reading[None]:
        schema = output.start_call((yield from cursor.run(_NAME)))
        yield from cursor.take(self.named) if self.named else cursor.skip_space()
        members, comma = properties(schema), ""
        output.arguments("{")
        while True:
            yield from cursor.skip_space()
            if (yield from cursor.take(self.call_end)):
                break
            yield from cursor.expect(self.key)
            key, is_string = yield from self._key(cursor)
            output.arguments(f'{comma}"{quoted(key)}": ')
            types = types_of(members.get(key), schema) or (_STRING if is_string else frozenset())
            yield from self._value(cursor, types, output.arguments)
            comma = ", "
        output.arguments("}")
        output.end_call()

    def _key(self, cursor: Cursor) -> Reading[tuple[str, bool | None]]:
        """Read the key of an argument, and whether it says that it is a string."""
        key: list[str] = []
        attributes: list[str] = []
        found = yield from cursor.until((self.keyed,), key.append, _MAX_KEY)
        if found and self.value:
            found = yield from cursor.until((self.value,), attributes.append, _MAX_KEY)
        if not found:
            raise Malformed(self.keyed)
        text = "".join(attributes)
        return "".join(key).strip(), "true" in text if "string=" in text else None

    def _value(self, cursor: Cursor, types: frozenset[str], write: Write) -> Reading[None]:
        """Read a value; a string is written as it arrives."""
        is_string = types == _STRING
        parts: list[str] = []
        inner: Write = (lambda text: write(quoted(text))) if is_string else parts.append
        if is_string:
            write('"')
        inner = _Trimmed(inner).write if self.is_trimmed else inner
        forgotten = (f"\n{self.key}", f"\n{self.call_end}") if self.is_trimmed else ()
        end = yield from cursor.until((self.value_end, *forgotten), inner)
        if end in forgotten:  # models forget what ends a value
            cursor.back(len(end) - 1)
        elif not end:
            raise Malformed(self.value_end)
        write('"' if is_string else to_json(converted("".join(parts), types)))


class _Trimmed:
    """Writes text without one line break at its beginning, and one at its end."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._has_begun = False
        self._held = ""

    def write(self, text: str) -> None:
        if not self._has_begun:
            self._has_begun, text = True, text.removeprefix("\n")
        text = self._held + text
        body = text.removesuffix("\n")
        self._held = text[len(body) :]
        if body:
            self._write(body)
