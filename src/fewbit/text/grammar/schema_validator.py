"""Checks of finished outputs by jsonschema: no network, bounded time, regexes and formats as the grammar holds them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from decimal import Decimal
from fractions import Fraction
from math import isfinite
from typing import Any

from ...errors import RequestError
from .packages import grammar_extra
from .patterns import FORMATS, check_pattern, has_format, search
from .schema import nodes_of

MAX_SECONDS = 1.0  # of one check

Keyword = Callable[[Any, Any, Any, Any], Iterable[Any]]

_deadline: ContextVar[float] = ContextVar("_deadline")


class SchemaValidator:
    """Checks texts by one JSON schema.

    >>> SchemaValidator({"type": "object", "required": ["a"]}).check('{"b": 1}')
    "$: 'a' is a required property"
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        with grammar_extra():
            from jsonschema import FormatChecker
            from jsonschema.validators import Draft202012Validator, extend, validator_for
            from referencing import Registry
        for pattern in _regexes(schema):
            check_pattern(pattern)
        draft = validator_for(schema, default=Draft202012Validator)
        keywords = {**draft.VALIDATORS, **_own_keywords(draft.VALIDATORS)}
        checker = FormatChecker(formats=())
        for name in FORMATS:
            checker.checks(name)(_format_check(name))
        self._schema, self._meta_schema = schema, draft.META_SCHEMA
        self._class = extend(draft, {name: _timed(keyword) for name, keyword in keywords.items()})
        try:
            self._validator = self._class(schema, format_checker=checker, registry=Registry())
        except (TypeError, AttributeError, ValueError) as error:
            raise RequestError(f"the JSON schema is invalid: {error}") from None

    def check_schema(self) -> None:
        """Refuse a schema that is invalid. One that takes too long to check is let through."""
        from jsonschema_specifications import REGISTRY

        token = _deadline.set(time.monotonic() + MAX_SECONDS)
        try:
            error = next(self._class(self._meta_schema, registry=REGISTRY).iter_errors(self._schema), None)
        except TimeoutError:
            error = None
        finally:
            _deadline.reset(token)
        if error is not None:
            raise RequestError(f"the JSON schema is invalid at {error.json_path}: {error.message}"[:400])

    def check(self, text: str) -> str | None:
        """Why a text breaks the schema; None if it holds."""
        token = _deadline.set(time.monotonic() + MAX_SECONDS)
        try:
            return self._first_error(json.loads(text))
        except TimeoutError:
            return f"checking it by the JSON schema takes more than {MAX_SECONDS:g} s"
        except RecursionError:
            return "it, or the JSON schema, is nested too deeply to be checked"
        except ValueError as error:
            return f"not JSON: {error}"
        except (TypeError, AttributeError, LookupError, ArithmeticError) as error:
            return f"it cannot be checked, since the JSON schema is invalid: {error}"
        finally:
            _deadline.reset(token)

    def _first_error(self, value: Any) -> str | None:
        from referencing.exceptions import Unresolvable

        try:
            error = next(self._validator.iter_errors(value), None)
        except Unresolvable as unresolvable:
            raise RequestError(f"the JSON schema refers to {unresolvable.ref!r}, which is not in it") from None
        return None if error is None else f"{error.json_path}: {error.message}"[:400]


def _regexes(schema: dict[str, Any]) -> Iterator[str]:
    for node in nodes_of(schema):
        if node.keyword == "pattern" and isinstance(node.value, str):
            yield node.value
        if node.keyword == "patternProperties" and isinstance(node.value, dict):
            yield from node.value


def _timed(keyword: Keyword) -> Keyword:
    def timed(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        _check_time()
        yield from keyword(validator, value, instance, schema) or ()

    return timed


def _check_time() -> float:
    """The seconds that are left."""
    remaining = _deadline.get() - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    return remaining


def _format_check(name: str) -> Callable[[object], bool]:
    return lambda value: not isinstance(value, str) or has_format(value, name)


def _own_keywords(known: dict[str, Any]) -> dict[str, Keyword]:
    """Keywords that jsonschema checks by Python's regexes, in quadratic time, or by rounded division."""
    own: dict[str, Keyword] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
        "multipleOf": _multiple_of,
    }
    return {name: keyword for name, keyword in own.items() if name in known}


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "string") and not search(pattern, instance, _check_time()):
        yield _failure(f"{instance!r:.100} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: dict[str, Any], instance: Any, schema: Any) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, subschema in patterns.items():
        for name, value in instance.items():
            if search(pattern, name, _check_time()):
                yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    names, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, value in instance.items():
        if name in names or any(search(pattern, name, _check_time()) for pattern in patterns):
            continue
        if allowed is False:
            yield _failure(f"additional property {name!r:.100} is not allowed")
        else:
            yield from validator.descend(value, allowed, path=name)


def _unique_items(validator: Any, wanted: bool, instance: Any, schema: Any) -> Iterator[Any]:
    if wanted and validator.is_type(instance, "array"):
        distinct = {json.dumps(_canonical(item), sort_keys=True) for item in instance}
        if len(distinct) < len(instance):
            yield _failure(f"{instance!r:.100} has non-unique elements")


def _multiple_of(validator: Any, divisor: float, instance: Any, schema: Any) -> Iterator[Any]:
    if not validator.is_type(instance, "number"):
        return
    if not isfinite(instance) or Fraction(Decimal(repr(instance))) % Fraction(Decimal(repr(divisor))):
        yield _failure(f"{instance!r} is not a multiple of {divisor!r}")


def _canonical(value: Any) -> Any:
    """A value in which 1.0 is 1."""
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _failure(message: str) -> Any:
    from jsonschema import ValidationError

    return ValidationError(message)
