"""JSON schemas: read within limits, in one form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ...errors import RequestError
from .limits import MAX_DEPTH, MAX_OPTIONS, MAX_PROPERTIES, MAX_REGEX_BYTES, MAX_SCHEMA_BYTES, MAX_VALUES, check_bytes

DRAFT_4, DRAFT_7 = (f"http://json-schema.org/draft-0{number}/schema#" for number in (4, 7))

_NAME_MAPS = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}

_TEXTS = {"$schema", "$id", "$ref", "$anchor", "$dynamicRef", "$dynamicAnchor"}


class SchemaNode(NamedTuple):
    """A value in a schema, and the keyword that it belongs to; "" for values that have a name or a number."""

    value: Any
    keyword: str
    depth: int


def read_schema(schema: Mapping[str, Any] | bool | str) -> str:
    """A schema as JSON text, checked against the limits.

    Schemas that do not say their draft and use keywords of an old one get its `$schema`.

    >>> read_schema({"items": [{"type": "null"}]})
    '{"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "null"}]}'
    """
    if isinstance(schema, str):
        check_bytes(schema, "the JSON schema", MAX_SCHEMA_BYTES)
        schema = _parsed(schema)
    if schema is False:
        raise RequestError("the JSON schema is false, which no text matches")
    if schema is True:
        return "{}"
    if not isinstance(schema, Mapping):
        raise RequestError(f"a JSON schema must be an object or a boolean, not {type(schema).__name__}")
    kept = {key: value for key, value in schema.items() if key != "x-guidance"}
    nodes = _checked(kept)
    if "$schema" not in kept and (draft := _old_draft(nodes)):
        kept = {"$schema": draft, **kept}
    text = _dumped(kept)
    check_bytes(text, "the JSON schema", MAX_SCHEMA_BYTES)
    return text


def nodes_of(schema: Any) -> Iterator[SchemaNode]:
    """All values in a schema.

    >>> [(node.keyword, node.depth) for node in nodes_of({"properties": {"a": True}})]
    [('', 1), ('properties', 2), ('', 3)]
    """
    stack = [SchemaNode(schema, "", 1)]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node.value, Mapping):
            named = node.keyword in _NAME_MAPS
            stack += [SchemaNode(value, "" if named else str(key), node.depth + 1) for key, value in node.value.items()]
        elif isinstance(node.value, list | tuple):
            stack += [SchemaNode(value, "", node.depth + 1) for value in node.value]


def without_patterns(value: Any, patterns: set[str]) -> Any:
    """A copy of a schema without the keyword `pattern` where its value is one of `patterns`."""
    if isinstance(value, list):
        return [without_patterns(item, patterns) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {key: item for key, item in value.items() if key != "pattern" or str(item) not in patterns}
    return {key: without_patterns(item, patterns) for key, item in kept.items()}


def _checked(schema: Mapping[str, Any]) -> list[SchemaNode]:
    """The values of a schema that is within the limits."""
    nodes, num_values = [], 0
    for node in nodes_of(schema):
        if node.depth > MAX_DEPTH:
            raise RequestError(f"the JSON schema is nested more than {MAX_DEPTH} deep")
        if node.keyword == "properties" and isinstance(node.value, Mapping) and len(node.value) > MAX_PROPERTIES:
            raise RequestError(
                f"an object of the JSON schema has {len(node.value)} properties, the limit is {MAX_PROPERTIES}"
            )
        if node.keyword == "enum" and isinstance(node.value, list | tuple):
            num_values += len(node.value)
        if node.keyword == "pattern" and isinstance(node.value, str):
            check_bytes(node.value, "a pattern of the JSON schema", MAX_REGEX_BYTES)
        if node.keyword in _TEXTS and not isinstance(node.value, str):
            raise RequestError(f"{node.keyword} of the JSON schema must be a string, not {node.value!r:.60}")
        nodes.append(node)
        if len(nodes) > MAX_VALUES:
            raise RequestError(f"the JSON schema has more than {MAX_VALUES} values")
    if num_values > MAX_OPTIONS:
        raise RequestError(f"the enums of the JSON schema have {num_values} values, the limit is {MAX_OPTIONS}")
    return nodes


def _old_draft(nodes: list[SchemaNode]) -> str | None:
    """The draft that gave a meaning to keywords of a schema which the current one does not know."""
    draft = None
    for node in nodes:
        if node.keyword in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(node.value, bool):
            return DRAFT_4
        is_tuple = node.keyword == "items" and isinstance(node.value, list | tuple)
        if is_tuple or node.keyword in ("additionalItems", "dependencies"):
            draft = DRAFT_7
    return draft


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise RequestError(f"the JSON schema is not JSON: {error}") from None
    except RecursionError:
        raise RequestError(f"the JSON schema is nested more than {MAX_DEPTH} deep") from None


def _dumped(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(schema, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise RequestError(f"the JSON schema cannot be written as JSON: {error}") from None
