"""Python types as schemas and back."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

from fewbit.errors import RequestError
from fewbit.text.grammar import Grammar, OutputType

from .walks import compiler, text_of, walk


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 3


@dataclass
class Shape:
    color: Color
    points: list[Point] = field(default_factory=list)
    parent: Shape | None = None


class Model(pydantic.BaseModel):
    color: Color
    share: float = pydantic.Field(ge=0, le=1)


class Open(pydantic.BaseModel, extra="allow"):
    a: int


class Row(TypedDict, total=False):
    a: int


class Pair(NamedTuple):
    a: int
    b: bool


class Struct(msgspec.Struct):
    a: Literal["x", "y"]


TYPES: list[tuple[Any, str, Any]] = [
    (Shape, '{"color": "red", "points": [{"x": 1}]}', Shape(Color.RED, [Point(1)])),
    (Model, '{"color": "red", "share": 0.5}', Model(color=Color.RED, share=0.5)),
    (list[Model], '[{"color": "red", "share": 1}]', [Model(color=Color.RED, share=1)]),
    (Open, '{"a": 1, "b": 2}', Open(a=1, b=2)),  # type: ignore[call-arg]
    (Row, "{}", {}),
    (Pair, "[1, true]", Pair(1, True)),
    (Struct, '{"a": "y"}', Struct("y")),
    (Color, '"blue"', Color.BLUE),
    (Literal["a", 1], "1", 1),
    (int, "3", 3),
    (dict[str, int], '{"a": 1}', {"a": 1}),
    (int | None, "null", None),
    ({"type": "boolean"}, "true", True),
]


@pytest.mark.parametrize(("kind", "text", "value"), TYPES, ids=[str(case[0]) for case in TYPES])
def test_a_type_and_its_texts(kind: Any, text: str, value: Any) -> None:
    output = OutputType(kind)
    assert output.parse(text) == value
    grammar = Grammar.schema(output.schema)
    assert grammar.check(text) is None
    make = compiler("smollm2").compile(grammar)
    ended = [tokens for seed in range(6) if (tokens := walk("smollm2", make(), seed)) is not None]
    assert ended
    for tokens in ended:
        assert grammar.check(text_of("smollm2", tokens)) is None
        output.parse(text_of("smollm2", tokens))


def test_objects_of_types_are_closed_and_schemas_are_left_alone() -> None:
    assert OutputType(Point).schema["$defs"]["Point"]["additionalProperties"] is False
    assert OutputType(Open).schema["additionalProperties"] is True
    schema = {"type": "object", "properties": {}}
    assert OutputType(schema).schema == schema


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (Point, '{"x": "a"}', "the output is not a Point: Expected `int`, got `str` - at `$.x`"),
        (Model, "{}", "the output is not a Model: 2 validation errors for Model"),
        (int, "x", "the output is not a int: JSON is malformed"),
        ({}, "", "the output is not a JSON value: Expecting value"),
    ],
)
def test_a_text_of_another_type(kind: Any, text: str, reason: str) -> None:
    with pytest.raises(RequestError, match="^" + reason.replace("$", r"\$").replace(".", r"\.")):
        OutputType(kind).parse(text)


def test_a_type_without_a_schema() -> None:
    with pytest.raises(RequestError, match=r"^complex has no JSON schema: .+"):
        OutputType(complex)
