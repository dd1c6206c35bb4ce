"""What the checks of clients ask for, and how they look at what comes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

import jsonschema
import pytest

from .scripted import SCHEMA

HELLO: Any = [{"role": "user", "content": "hello"}]
LONG: Any = [{"role": "user", "content": "x" * 6000}]
FUNCTION = {"name": "weather", "description": "It.", "parameters": SCHEMA}
TOOL: Any = {"type": "function", "function": FUNCTION}
CITY = {"city": "Riga"}
PERSON: Any = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "home": {"type": "object", "properties": {"city": {"enum": ["Riga", "Oslo"]}}, "required": ["city"],
                 "additionalProperties": False},
    },
    "required": ["name", "age", "home"],
    "additionalProperties": False,
}  # fmt: skip


def raises(kind: Any, call: Callable[[], Any], words: str = "") -> None:
    """Check that a call fails as the client expects it."""
    with pytest.raises(kind, match=re.escape(words)):
        call()


def person() -> Any:
    """A nested model of pydantic."""
    from pydantic import Field, create_model

    home: Any = create_model("Home", city=(Literal["Riga", "Oslo"], ...))
    return create_model("Person", name=(str, ...), age=(Annotated[int, Field(ge=0, le=99)], ...), home=(home, ...))


def check_person(text: str) -> None:
    jsonschema.validate(json.loads(text), PERSON)
