"""Grammars that hold a call to the schema of its tool, in the form of a family."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import RequestError
from .formats import ReplyFormat
from .lark import Lark
from .schemas import tool_schemas


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """Lark sources (in llguidance's dialect) for tool calls.

    Args:
        whole: Calls from their beginning: for a reply that must be a call.
        triggers: Texts that begin calls, each with the source for what follows it: for a reply that may be a call.
    """

    whole: str
    triggers: tuple[tuple[str, str], ...]


def call_grammar(
    format: ReplyFormat,
    tools: Iterable[Mapping[str, Any]],
    name: str | None = None,
    is_parallel: bool = True,
    control: Mapping[str, int] | None = None,
) -> CallGrammar:
    """The grammar of calls.

    Args:
        format: How the model writes them.
        tools: The tools that may be called, as OpenAI's clients describe them.
        name: The only one that may be called.
        is_parallel: There may be several calls.
        control: Ids of the control tokens by text.
    """
    schemas = tool_schemas(tools)
    if name is not None:
        if name not in schemas:
            raise RequestError(f"tool_choice names {name!r}, and the tools are {', '.join(schemas) or 'none'}")
        schemas = {name: schemas[name]}
    if not schemas:
        raise RequestError("a tool must be called, and no tools were given")
    lark = Lark(control)
    rule = format.calls.grammar(lark, schemas, is_parallel)
    openings = format.calls.openings[:1]
    whole = lark.source(f"{lark.text(*openings)} {rule}")
    return CallGrammar(whole, tuple((text, lark.source(rule)) for text in openings))
