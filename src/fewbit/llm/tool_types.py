"""Python types as JSON schemas, and values of JSON as instances of them.

Plain types need no package. Others (dataclasses, pydantic and msgspec models, TypedDict) go through `OutputType` of the
extra `grammar`.
"""

from __future__ import annotations

import enum
import json
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

_SCALARS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"}, int: {"type": "integer"}, float: {"type": "number"}, bool: {"type": "boolean"},
    type(None): {"type": "null"}, None: {"type": "null"}, Any: {}, object: {}, dict: {"type": "object"},
    list: {"type": "array"}, tuple: {"type": "array"}, set: {"type": "array"},
}  # fmt: skip


def type_schema(annotation: Any, name: str) -> Mapping[str, Any]:
    """The JSON schema of a type.

    Args:
        annotation: The type.
        name: What has it, for errors.

    >>> type_schema(list[int] | None, "x")
    {'anyOf': [{'type': 'array', 'items': {'type': 'integer'}}, {'type': 'null'}]}
    """
    if _is_plain(annotation):
        return _plain_schema(annotation, name)
    from ..text.grammar import OutputType

    return OutputType(annotation).schema


def from_json(value: Any, annotation: Any) -> Any:
    """A value of JSON as a type has it: an instance of a dataclass or model, a member of an enum."""
    if _is_plain(annotation):
        return _plain_value(value, annotation)
    from ..text.grammar import OutputType

    return OutputType(annotation).parse(json.dumps(value))


def _plain_schema(annotation: Any, name: str) -> dict[str, Any]:
    if _is_enum(annotation):
        return {"enum": [member.value for member in annotation]}
    if annotation in _SCALARS:
        return dict(_SCALARS[annotation])
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _plain_schema(arguments[0], name)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [dict(type_schema(option, name)) for option in arguments]}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": dict(type_schema(arguments[1], name))}
    return {"type": "array", "items": dict(type_schema(arguments[0], name))}


def _plain_value(value: Any, annotation: Any) -> Any:
    if _is_enum(annotation):
        return annotation(value)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if origin is Annotated:
        return _plain_value(value, arguments[0])
    if origin in (list, Sequence, set, tuple) and isinstance(value, list):
        items = [_plain_value(item, arguments[0]) for item in value]
        return origin(items) if origin in (set, tuple) else items
    if annotation in (set, tuple) and isinstance(value, list):
        return annotation(value)
    return value


def _is_plain(annotation: Any) -> bool:
    if _is_enum(annotation):
        return True
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return all(isinstance(extra, str) for extra in arguments[1:]) and _is_plain(arguments[0])
    if origin is Literal:
        return True
    if origin in (Union, types.UnionType, list, set, Sequence, dict, Mapping):
        return all(map(_is_plain, arguments))
    if origin is tuple:
        return len(arguments) == 2 and arguments[1] is Ellipsis and _is_plain(arguments[0])
    try:
        return annotation in _SCALARS
    except TypeError:  # it has no hash
        return False


def _is_enum(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, enum.Enum)
