"""Python types as JSON schemas, and texts read as objects of these types."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, get_args

from ...errors import RequestError
from .packages import grammar_extra


class OutputType:
    """A type that an output is read as.

    Args:
        type: A dataclass, TypedDict, NamedTuple, Literal, Enum, `int`, `list[...]` or another type that msgspec knows;
            a pydantic model, or a type made of those; or a JSON schema as a dict, for plain values.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class City:
    ...     name: str
    ...     people: int
    >>> cities = OutputType(list[City])
    >>> cities.schema["items"]
    {'$ref': '#/$defs/City'}
    >>> cities.parse('[{"name": "Oslo", "people": 717710}]')
    [City(name='Oslo', people=717710)]
    """

    def __init__(self, type: Any) -> None:
        self._type = type
        self.schema: dict[str, Any] = dict(type) if isinstance(type, Mapping) else closed(self._own_schema())

    def parse(self, text: str) -> Any:
        """The object that a text describes.

        Raises:
            RequestError: The text is not of this type.
        """
        try:
            return self._parse(text)
        except (ValueError, TypeError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise RequestError(f"the output is not a {self._name}: {reason}"[:400]) from None

    def _parse(self, text: str) -> Any:
        if isinstance(self._type, Mapping):
            return json.loads(text)
        if self._is_pydantic:
            return self._adapter.validate_json(text)
        import msgspec

        return msgspec.json.decode(text, type=self._type)

    def _own_schema(self) -> dict[str, Any]:
        if self._is_pydantic:
            return dict(self._adapter.json_schema())
        with grammar_extra():
            import msgspec
        try:
            return msgspec.json.schema(self._type)
        except (TypeError, RecursionError) as error:
            raise RequestError(f"{self._name} has no JSON schema: {error}") from None

    @property
    def _name(self) -> str:
        return "JSON value" if isinstance(self._type, Mapping) else getattr(self._type, "__name__", str(self._type))

    @cached_property
    def _is_pydantic(self) -> bool:
        return any(hasattr(part, "__pydantic_validator__") for part in _parts(self._type))

    @cached_property
    def _adapter(self) -> Any:
        from pydantic import TypeAdapter

        return TypeAdapter(self._type)


def closed(schema: Any) -> Any:
    """A schema of a type whose objects have no other properties than those that it names.

    >>> closed({"type": "object", "properties": {"a": {"type": "object"}}})["additionalProperties"]
    False
    """
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        inner.setdefault("additionalProperties", False)
    return inner


def _parts(type: Any) -> Iterator[Any]:
    """A type and those that it is made of, such as the items of a list."""
    yield type
    for part in get_args(type):
        yield from _parts(part)
