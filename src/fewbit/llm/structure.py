"""Structured output: options as a grammar, and finished texts as objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import RequestError
from ..validation import to_flag

if TYPE_CHECKING:
    from ..text.grammar import Grammar, OutputType

STRUCTURE_OPTIONS = ("schema", "regex", "choice", "grammar", "json")


@dataclass(frozen=True)
class OutputStructure:
    """What the outputs of a call must look like.

    Args:
        grammar: Holds an output while it is written.
        output_type: The Python type that it is read as. None: plain values if it is JSON.
    """

    grammar: Grammar
    output_type: OutputType | None = None

    def parse(self, text: str) -> Any:
        """The object that a finished text describes; None where it need not be JSON.

        Raises:
            RequestError: The text breaks what the grammar could not hold.
        """
        if (fault := self.grammar.check(text)) is not None:
            raise RequestError(fault)
        if self.output_type is not None:
            return self.output_type.parse(text)
        return json.loads(text) if self.grammar.kind == "schema" else None


def pop_structure(options: dict[str, Any]) -> OutputStructure | None:
    """Take the options for structured output out of those of a call.

    >>> pop_structure({"regex": "[a-z]+", "choice": ["a", "b"]})
    Traceback (most recent call last):
        ...
    fewbit.errors.RequestError: regex and choice cannot be used together: give one of schema, regex, choice, ...
    """
    found = {name: options.pop(name) for name in STRUCTURE_OPTIONS if name in options}
    if not to_flag(found.get("json", False), "json"):
        found.pop("json", None)
    given = {name: value for name, value in found.items() if value is not None}
    names = [*given, *(["constraint"] if options.get("constraint") is not None else [])]
    if len(names) > 1:
        every = ", ".join(STRUCTURE_OPTIONS)
        raise RequestError(f"{names[0]} and {names[1]} cannot be used together: give one of {every} and constraint")
    return _make(*given.popitem()) if given else None


def _make(name: str, value: Any) -> OutputStructure:
    from ..text.grammar import Grammar, OutputType  # few calls need it

    if isinstance(value, Grammar):
        return OutputStructure(value)
    if name == "json":
        return OutputStructure(Grammar.json())
    if name == "grammar":
        return OutputStructure(Grammar.parse(value))
    if name == "schema" and not isinstance(value, Mapping | bool | str):
        output_type = OutputType(value)
        return OutputStructure(Grammar.schema(output_type.schema), output_type)
    return OutputStructure(getattr(Grammar, name)(value))
