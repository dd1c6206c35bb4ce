"""Tools and the types of their arguments, as JSON schemas tell them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from .cursor import Malformed
from .values import parse

_MAX_REFERENCES = 16
_TYPES = {  # as some write them in schemas
    "str": "string", "text": "string", "int": "integer", "float": "number", "double": "number", "bool": "boolean",
    "dict": "object", "list": "array", "none": "null",
}  # fmt: skip
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


def tool_schemas(tools: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The schema of the arguments of each tool, by name.

    >>> tool_schemas([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])
    {'f': {'type': 'object'}}
    """
    found = {}
    for tool in tools:
        inner = tool.get("function")
        function = inner if isinstance(inner, Mapping) else tool
        name = function.get("name")
        schema = function.get("parameters", function.get("input_schema"))
        if isinstance(name, str) and name:
            found[name] = schema if isinstance(schema, Mapping) else {"type": "object", "properties": {}}
    return found


def properties(schema: Any, root: Any = None) -> dict[str, Any]:
    """The schemas of an object's members."""
    found = resolved(schema, schema if root is None else root).get("properties")
    return dict(found) if isinstance(found, Mapping) else {}


def types_of(schema: Any, root: Any) -> frozenset[str]:
    """The JSON types that a schema allows; empty if it does not say.

    >>> sorted(types_of({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/n"}]}, {"$defs": {"n": {"enum": [1]}}}))
    ['integer', 'string']
    """
    return frozenset(_types(schema, root, 0))


def _types(schema: Any, root: Any, depth: int) -> set[str]:
    schema = resolved(schema, root)
    if depth > _MAX_REFERENCES:
        return set()
    kinds = schema.get("type")
    found = {kinds} if isinstance(kinds, str) else set(kinds) if isinstance(kinds, list | tuple) else set()
    found = {_TYPES.get(kind.lower(), kind.lower()) for kind in found if isinstance(kind, str)}
    if not found:
        values = schema.get("enum", [schema["const"]] if "const" in schema else ())
        found = {_type(value) for value in values} if isinstance(values, list | tuple) else set()
    for key in ("anyOf", "oneOf", "allOf"):
        options = schema.get(key)
        if not found and isinstance(options, list | tuple):
            found = set().union(*(_types(option, root, depth + 1) for option in options[:_MAX_REFERENCES]))
    return found | ({"null"} if found and schema.get("nullable") is True else set())


def converted(text: str, types: frozenset[str]) -> Any:
    """The value of an argument that is written without quotes.

    >>> converted("5", frozenset(["integer"])), converted("5", frozenset(["string"])), converted("[1]", frozenset())
    (5, '5', [1])
    """
    if types == {"string"}:
        return text
    inner = text.strip()
    try:
        value = parse(_PYTHON_WORDS.get(inner, inner))
    except Malformed:
        return text
    if "integer" in types and isinstance(value, float) and value.is_integer() and math.isfinite(value):
        value = int(value)
    allowed = not types or _type(value) in types or (_type(value) == "integer" and "number" in types)
    return value if allowed or "string" not in types else text


def to_json(value: Any) -> str:
    """JSON text of a value."""
    return json.dumps(value, ensure_ascii=False)


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def resolved(schema: Any, root: Any) -> Mapping[str, Any]:
    """A schema without a reference at its top."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        schema = root if reference.startswith("#") else {}
        for key in reference.removeprefix("#").split("/")[1:]:
            schema = schema.get(key.replace("~1", "/").replace("~0", "~"), {}) if isinstance(schema, Mapping) else {}
    return {}


def required(schema: Any) -> frozenset[str]:
    """The members that an object must have."""
    found = resolved(schema, schema).get("required")
    return frozenset(key for key in found if isinstance(key, str)) if isinstance(found, list | tuple) else frozenset()


def with_definitions(schema: Any, root: Any) -> Any:
    """The schema of a member as one of its own: with what it may refer to."""
    if not isinstance(schema, Mapping) or not isinstance(root, Mapping):
        return schema
    return {**{key: root[key] for key in ("$defs", "definitions") if key in root}, **schema}
