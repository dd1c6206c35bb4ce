"""Schemas that are refused, bounded, or held in part."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.errors import FewbitError, RequestError
from fewbit.text.grammar import Grammar

from .walks import allowed, compiler

DEEP = '{"type": "object", "properties": {"a": ' * 5000 + "{}" + "}}" * 5000
EXPONENTIAL = {
    "$defs": {
        **{
            f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"items": {"$ref": f"#/$defs/d{i + 1}"}}]}
            for i in range(30)
        },
        "d30": {"type": "string"},
    },
    "$ref": "#/$defs/d0",
}
PRODUCT = {"allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(30)]}
HOSTILE: dict[str, Any] = {
    "bytes": '{"description": "' + "x" * (3 << 20) + '"}',
    "depth": DEEP,
    "depth of anyOf": '{"anyOf": [' * 100 + "{}" + "]}" * 100,
    "intersections": PRODUCT,
    "properties": {"type": "object", "properties": {f"p{i}": {} for i in range(5000)}},
    "enum": {"enum": list(range(20_000))},
    "many enums": {"anyOf": [{"enum": list(range(600))} for _ in range(30)]},
    "types": {"type": ["string"] * 100_000},
    "pattern bytes": {"type": "string", "pattern": "a" * 20_000},
    "pattern depth": {"type": "string", "pattern": "(" * 5000 + ")" * 5000},
    "invalid pattern": {"type": "string", "pattern": "(["},
    "cycle": {"allOf": [{"$ref": "#"}, {"type": "object"}]},
    "remote": {"$ref": "http://127.0.0.1:9/schema.json"},
    "prime": {"type": "integer", "multipleOf": 999_999_937},
    "number": '{"minimum": ' + "1" * 5000 + "}",
    "not JSON": "{",
    "a list": "[]",
    "a number": "1",
    "false": False,
    "infinite": {"minimum": float("inf")},
    "no JSON value": {"const": {1, 2}},
    "unknown type": {"type": "strin"},
    "bad not": {"type": "integer", "not": 5},
    "bad if": {"type": "integer", "if": [1]},
    "half a character": '{"const": "\ud800"}',
}
BOUNDED: dict[str, Any] = {
    "references": EXPONENTIAL,
    "maxItems": {"type": "array", "maxItems": 10**9},
    "nested minItems": {"type": "array", "minItems": 10**6, "items": {"type": "array", "minItems": 10**6}},
    "minLength": {"type": "string", "minLength": 10**9},
    "catastrophic": {"type": "string", "pattern": "^(a+)+$"},
    "repeats": {"type": "string", "pattern": "^(((a{1,100}){1,100}){1,100}){1,100}$"},
    "ambiguous": {"type": "string", "pattern": "(.*a.{20}){3}"},
    "minProperties": {"type": "object", "minProperties": 100_000},
    "own options": {"type": "null", "x-guidance": {"whitespace_pattern": "x*", "item_separator": "y"}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(RequestError) as error:
        compiler("bytes").compile(Grammar.schema(HOSTILE[name]))
    assert re.match(r"(the|a|an|\$\w+ of the) ", str(error.value))
    assert len(str(error.value)) < 500
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", BOUNDED)
def test_large_numbers_cost_nothing(name: str) -> None:
    constraint = compiler("bytes").compile(Grammar.schema(BOUNDED[name]))()
    for _ in range(20):
        if constraint.is_finished:
            break
        mask = constraint.mask()
        assert mask is not None
        assert mask.any()
        constraint.accept(min(allowed(constraint)))


KEYWORDS = [
    "type", "properties", "items", "required", "enum", "const", "anyOf", "oneOf", "allOf", "not", "if", "then",
    "$ref", "$defs", "pattern", "format", "minimum", "maxLength", "patternProperties", "additionalProperties",
    "dependencies", "uniqueItems", "multipleOf", "$schema", "$id", "minItems", "a",
]  # fmt: skip
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["a", "string", "#", "^a", "date"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(KEYWORDS), JSON_VALUES, max_size=4))
def test_any_schema_compiles_or_is_refused(schema: dict[str, Any]) -> None:
    try:
        grammar = Grammar.schema(schema)
        compiler("bytes").compile(grammar)
    except FewbitError:
        return
    for text in ("1", '{"a": []}', "[1, 1]", '"a"', "nul"):
        reason = grammar.check(text)
        assert reason is None or reason


def test_strict_names_the_features() -> None:
    schema = {"type": "array", "uniqueItems": True, "items": {"type": "string", "format": "color", "not": {}}}
    with pytest.raises(RequestError, match="the schema uses not, uniqueItems, format color, which the grammar cannot"):
        Grammar.schema(schema, strict=True)
    assert Grammar.schema({"type": "array"}, strict=True).unheld == ()


@pytest.mark.parametrize(
    ("schema", "text", "reason"),
    [
        ({"type": "array", "items": {"type": "integer"}}, '[1, "a"]', "$[1]: 'a' is not of type 'integer'"),
        ({"type": "object"}, '{"a": 1', "not JSON: Expecting ',' delimiter: line 1 column 8 (char 7)"),
        ({"multipleOf": 0.01}, "0.07", None),
        ({"multipleOf": 0.01}, "0.075", "$: 0.075 is not a multiple of 0.01"),
        ({"multipleOf": 2}, "1e999", "$: inf is not a multiple of 2"),
        ({"oneOf": [{"format": "ipv4"}, {"format": "ipv6"}]}, '"::1"', None),
        ({"format": "ipv4"}, '"1.2.3"', "$: '1.2.3' is not a 'ipv4'"),
        (
            {"uniqueItems": True},
            '[{"a": 1, "b": 2}, {"b": 2.0, "a": 1}]',
            "$: [{'a': 1, 'b': 2}, {'b': 2.0, 'a': 1}] has",
        ),
        ({"uniqueItems": True}, "[1, true, [], {}]", None),
        ({"patternProperties": {"^a": {"type": "null"}}, "additionalProperties": False}, '{"a": null}', None),
        (
            {"patternProperties": {"^a": {"type": "null"}}, "additionalProperties": False},
            '{"b": null}',
            "$: additional",
        ),
        ({"patternProperties": {"^(a+)+$": {"type": "null"}}}, json.dumps({"a" * 50 + "b": 1}), None),
        ({"$ref": "#"}, "1", "it, or the JSON schema, is nested too deeply to be checked"),
        ({}, "[" * 100_000, "it, or the JSON schema, is nested too deeply to be checked"),
        ({"items": [{"type": "null"}], "additionalItems": False}, "[null, 1]", "$: Additional items are not allowed"),
        ({"exclusiveMinimum": True, "minimum": 1}, "1", "$: 1 is less than or equal to the minimum of 1"),
    ],
)
def test_check(schema: Any, text: str, reason: str | None) -> None:
    found = Grammar.schema(schema).check(text)
    assert found is None if reason is None else (found or "").startswith(reason)


def test_a_check_is_stopped() -> None:
    grammar = Grammar.schema({"type": "string", "pattern": r"^(?=(a|b|ab)*c)(x+x+)+y$"})
    assert grammar.check(json.dumps("ab" * 40 + "x" * 60)) in (
        "checking it by the JSON schema takes more than 1 s",
        f"$: {'ab' * 40 + 'x' * 60!r:.100} does not match '^(?=(a|b|ab)*c)(x+x+)+y$'",
    )
    steps: Any = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 6} for i in range(12)}
    slow = {"$defs": {**steps, "d12": {"type": "string"}}, "not": {"$ref": "#/$defs/d0"}}
    assert Grammar.schema(slow).check("1") == "checking it by the JSON schema takes more than 1 s"


def test_a_schema_that_shares_parts_of_itself() -> None:
    nested: Any = {}
    for _ in range(30):
        nested = {"anyOf": [nested] * 6}
    with pytest.raises(RequestError, match="the JSON schema has more than 500000 values"):
        Grammar.schema(nested)


def test_other_grammars() -> None:
    assert Grammar.regex("a").check("anything") is None
    assert Grammar.regex("a").unheld == ()
    assert Grammar.schema({"a": 1}) == Grammar.schema('{"a": 1}')
    assert len({Grammar.json(), Grammar.json(), Grammar.regex("a")}) == 2
    for make, bad in (
        (Grammar.regex, ""),
        (Grammar.lark, "{}"),
        (Grammar.lark, 3),
        (Grammar.choice, []),
        (Grammar.choice, "a"),
    ):
        with pytest.raises(RequestError):
            make(bad)  # type: ignore[arg-type]
    for grammar in (Grammar.regex("(a"), Grammar.lark("start: b"), Grammar.regex("(?=a)b"), Grammar.lark("start: (")):
        with pytest.raises(RequestError, match=r"^the (regex|grammar) cannot be compiled: [^\n]+$"):
            compiler("bytes").compile(grammar)
