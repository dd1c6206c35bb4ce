"""Bodies as clients really send them: fields that nobody knows, null where a field has a default, 5.0 for 5."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from .errors import unsupported

T = TypeVar("T")

_NUMBER = re.compile(r"\[\d+\]")


def tidied(value: Any, kind: type[T]) -> tuple[T, list[str]]:
    """Plain values as a struct, and the names of the fields that were ignored.

    Fields that would change the answer are refused: see `Body`.
    """
    ignored: dict[str, None] = {}
    found = msgspec.convert(_tidy(value, _info(kind), "", ignored), kind)  # type: ignore[arg-type]
    return found, [*ignored]


@cache
def _info(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _tidy(value: Any, kind: inspect.Type, at: str, ignored: dict[str, None]) -> Any:
    kind = _chosen(kind, value)
    if isinstance(value, dict) and isinstance(kind, inspect.StructType):
        return _tidy_fields(value, kind, at, ignored)
    if isinstance(value, list) and isinstance(kind, inspect.ListType):
        return [_tidy(one, kind.item_type, f"{at}[{number}]", ignored) for number, one in enumerate(value)]
    if isinstance(value, float) and isinstance(kind, inspect.IntType) and value.is_integer():
        return int(value)
    return value


def _tidy_fields(given: dict[str, Any], kind: inspect.StructType, at: str, ignored: dict[str, None]) -> dict[str, Any]:
    fields = {field.encode_name: field for field in kind.fields}
    found: dict[str, Any] = {}
    for name, value in given.items():
        where, field = f"{at}.{name}" if at else name, fields.get(name)
        if field is None:
            _check_effect(where, name, value, getattr(kind.cls, "refused", {}))
            ignored[_NUMBER.sub("[]", where)] = None
        elif value is None and not field.required and not _takes_null(field.type):
            ignored[_NUMBER.sub("[]", where)] = None
        else:
            found[name] = _tidy(value, field.type, where, ignored)
    return found


def _check_effect(where: str, name: str, value: Any, refused: Mapping[str, tuple[Any, ...]]) -> None:
    if name in refused and value is not None and value not in refused[name]:
        raise unsupported(where[:100], "leave it out")


def _chosen(kind: inspect.Type, value: Any) -> inspect.Type:
    """The member of a union that a value can be."""
    if not isinstance(kind, inspect.UnionType):
        return kind
    wanted: dict[type, type] = {dict: inspect.StructType, list: inspect.ListType, float: inspect.IntType}
    if isinstance(value, float) and any(isinstance(one, inspect.FloatType) for one in kind.types):
        return kind
    found = (one for one in kind.types if isinstance(one, wanted.get(type(value), inspect.NoneType)))
    return next(found, kind)


def _takes_null(kind: inspect.Type) -> bool:
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return any(isinstance(one, inspect.NoneType | inspect.AnyType) for one in kinds)
