"""Calls that are JSON objects with a name and arguments: Hermes, Qwen, Llama 3, Mistral, Granite, Phi."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from .cursor import Cursor, Malformed, Reading
from .lark import Lark
from .output import Output
from .schemas import to_json
from .values import JSON, parse, quoted, read_string, read_value

_ARGUMENTS = ("arguments", "parameters")


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """`{"name": "f", "arguments": {..}}`, alone or in a list.

    Args:
        begin: What begins a call or a list of them; "": nothing does.
        end: What ends it, or "".
        key: Key of the arguments.
        form: What the model was trained to write. Both are read: objects, and lists of them.
        aliases: What may stand in place of `begin`.
        aliases_end: What may stand in place of `end`.
    """

    begin: str
    end: str = ""
    key: Literal["arguments", "parameters"] = "arguments"
    form: Literal["object", "list"] = "object"
    aliases: tuple[str, ...] = ()
    aliases_end: tuple[str, ...] = ()

    bare = "{["  # models leave the beginning out
    has_channels = False

    @property
    def openings(self) -> tuple[str, ...]:
        """What begins calls."""
        return tuple(filter(None, (self.begin, *self.aliases)))

    @property
    def literals(self) -> tuple[str, ...]:
        """All texts of the syntax that may be control tokens."""
        return tuple(filter(None, (*self.openings, self.end, *self.aliases_end)))

    def read(self, cursor: Cursor, output: Output, marker: str) -> Reading[None]:
        """Read calls after a marker, or calls without one."""
        yield from read_objects(cursor, output, is_bare=not marker)
        for end in filter(None, (self.end, *self.aliases_end)):
            if (yield from cursor.take(end)):
                return

    def grammar(self, lark: Lark, tools: dict[str, Any], is_parallel: bool) -> str:
        """A rule for calls, after what begins them."""
        objects = [lark.any_of([self._object(lark, name, schema) for name, schema in tools.items()])]
        if self.form == "list":
            repeated = f' (", " {objects[0]})*' if is_parallel else ""
            return f'" "? "[" {objects[0]}{repeated} "]" {lark.text(self.end)}'
        space = '"\\n"' if self.end else ""
        call = f"{space} {objects[0]} {space} {lark.text(self.end)}"
        separator = '"; "' if not self.end else f'"\\n" {lark.text(self.begin)}'
        return lark.rule(f"{call} ({separator} {call})*" if is_parallel else call)

    def _object(self, lark: Lark, name: str, schema: Any) -> str:
        head = lark.text(f'{{"name": "{quoted(name)}", "{self.key}": ')
        return lark.rule(f'{head} {lark.json(schema)} "}}"')


def read_objects(cursor: Cursor, output: Output, is_bare: bool = False) -> Reading[None]:
    """Read objects that are calls, in a list or one after the other, and whitespace after them."""
    yield from cursor.skip_space()
    in_list = yield from cursor.take("[")
    while True:
        yield from cursor.skip_space()
        yield from _CallObject(cursor, output, is_bare).read()
        output.end_call()
        yield from cursor.skip_space()
        if in_list and (yield from cursor.take("]")):
            in_list = False
            yield from cursor.skip_space()
        if in_list:
            yield from cursor.expect(",")
        elif not (yield from cursor.take(";")) and (yield from cursor.peek()) != "{":
            return


class _CallObject:
    """Reads one object. Arguments are held back until the name is known."""

    def __init__(self, cursor: Cursor, output: Output, is_bare: bool) -> None:
        self._cursor, self._output, self._is_bare = cursor, output, is_bare
        self._name: str | None = None
        self._held: list[str] = []
        self._has_arguments = False

    def read(self) -> Reading[None]:
        yield from self._object()
        if self._name is None:
            raise Malformed("a name")
        if not self._has_arguments:
            if self._is_bare:
                raise Malformed("arguments")
            self._output.arguments("{}")

    def _object(self) -> Reading[None]:
        cursor = self._cursor
        yield from cursor.expect("{")
        while True:
            yield from cursor.skip_space()
            key = yield from read_string(cursor, JSON)
            yield from cursor.skip_space()
            yield from cursor.expect(":")
            yield from cursor.skip_space()
            yield from self._member(key)
            yield from cursor.skip_space()
            if not (yield from cursor.take(",")):
                break
        yield from cursor.expect("}")

    def _member(self, key: str) -> Reading[None]:
        is_object = (yield from self._cursor.peek()) == "{"
        if key in ("name", "function") and not is_object:
            self._start((yield from read_string(self._cursor, JSON)))
        elif key == "function":
            yield from self._object()
        elif key in _ARGUMENTS and not self._has_arguments:
            self._has_arguments = True
            yield from self._arguments(is_object)
        elif self._is_bare and key not in ("type", "id"):
            raise Malformed("a key of a call")
        else:
            yield from read_value(self._cursor, JSON, _ignore)

    def _start(self, name: str) -> None:
        if self._name is not None:
            raise Malformed("one name")
        self._name = name
        self._output.start_call(name)
        self._write("".join(self._held))

    def _arguments(self, is_object: bool) -> Reading[None]:
        if is_object:
            yield from read_value(self._cursor, JSON, self._write)
            return
        parts: list[str] = []
        yield from read_value(self._cursor, JSON, parts.append)
        value = parse("".join(parts))
        if isinstance(value, str):  # JSON in a string
            value = parse(value) if value.strip() else {}
        if value is not None and not isinstance(value, dict):
            raise Malformed("an object of arguments")
        self._write(to_json(value or {}))

    def _write(self, text: str) -> None:
        if self._name is None:
            self._held.append(text)
        else:
            self._output.arguments(text)


_ignore: Callable[[str], None] = lambda _: None  # noqa: E731
