"""Grammar rules for values that are not written as JSON: Python literals, and Gemma's notation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .lark import Lark
from .schemas import properties, required, resolved, types_of, with_definitions

_MAX_DEPTH = 8  # of objects; what is deeper is any value


@dataclass(frozen=True, slots=True)
class ValueRules:
    """Makes rules for values that a schema allows: by their types and enums.

    Args:
        lark: Takes the rules.
        quote: What is around a string; "": it is written as in JSON.
        key: How a key is written, with `{}` in its place.
        comma: What stands between members.
        constants: What stands for true, false and null.
    """

    lark: Lark
    quote: str
    key: str
    comma: str
    constants: Mapping[str, str]

    def object(self, schema: Any, root: Any, depth: int = 0) -> str:
        """An object with the members of a schema."""
        needed = required(schema)
        members = [
            (f"{self.lark.text(self.key.format(key))} {self.value(value, root, depth + 1)}", key in needed)
            for key, value in properties(schema, root).items()
        ]
        return self.lark.rule(f'"{{" {self.lark.members(members, self.comma)} "}}"')

    def value(self, schema: Any, root: Any, depth: int = 0) -> str:
        """A value of a schema; one of no known type is any value."""
        schema = resolved(schema, root)
        types = types_of(schema, root)
        if "enum" in schema or "const" in schema:
            options = schema.get("enum", [schema.get("const")])
            return self.lark.any_of(self._constant(option) for option in options)
        if not types or depth > _MAX_DEPTH:
            return self._any()
        return self.lark.any_of(self._typed(kind, schema, root, depth) for kind in sorted(types))

    def _typed(self, kind: str, schema: Mapping[str, Any], root: Any, depth: int) -> str:
        if kind == "string":
            return self._string(with_definitions(schema, root))
        if kind == "object" and properties(schema, root):
            return self.object(schema, root, depth)
        if kind == "array" and "items" in schema:
            return self._list(self.value(schema["items"], root, depth + 1))
        if kind in ("boolean", "null"):
            names = ("true", "false") if kind == "boolean" else ("null",)
            return self.lark.any_of(self.lark.text(self.constants[name]) for name in names)
        return self._any() if kind in ("array", "object") else self.lark.json({**schema, "type": kind})

    def _string(self, schema: Any) -> str:
        if not self.quote:
            return self.lark.json({**schema, "type": "string"})
        return self.lark.rule(f"{self.lark.text(self.quote)} {self.lark.until(self.quote)}")

    def _list(self, item: str) -> str:
        return self.lark.rule(f'"[" ({item} ({self.lark.text(self.comma)} {item})*)? "]"')

    def _constant(self, value: Any) -> str:
        if isinstance(value, str):
            return self.lark.text(self.quote, value, self.quote) if self.quote else self.lark.text(_json(value))
        text = _json(value)
        return self.lark.text(self.constants.get(text, text))

    def _any(self) -> str:
        scalars = [self._typed(kind, {}, {}, 0) for kind in ("string", "number", "boolean", "null")]
        scalar = self.lark.any_of(scalars)
        before, after = self.key.split("{}")
        key = f"{self.lark.text(before)} /[A-Za-z_][A-Za-z0-9_]*/ {self.lark.text(after)}"
        comma = self.lark.text(self.comma)
        return self.lark.named(
            "any",
            lambda name: (
                f'{scalar} | "[" ({name} ({comma} {name})*)? "]" | "{{" ({key} {name} ({comma} {key} {name})*)? "}}"'
            ),
        )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
