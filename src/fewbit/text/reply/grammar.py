"""Grammars that hold a call to the schema of its tool, in the form of a family."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import RequestError
from .formats import ReplyFormat
from .harmony import HarmonyCalls
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
    has_thought: bool = False,
    opens_thought: bool = False,
) -> CallGrammar:
    """The grammar of calls.

    Args:
        format: How the model writes them.
        tools: The tools that may be called, as OpenAI's clients describe them.
        name: The only one that may be called.
        is_parallel: There may be several calls.
        control: Ids of the control tokens by text.
        has_thought: A thought may come before.
        opens_thought: The reply begins inside a thought.
    """
    schemas = tool_schemas(tools)
    if name is not None:
        if name not in schemas:
            raise RequestError(f"tool_choice names {name!r}, and the tools are {', '.join(schemas) or 'none'}")
        schemas = {name: schemas[name]}
    if not schemas:
        raise RequestError("a tool must be called, and no tools were given")
    schemas = {known: _closed(schema) for known, schema in schemas.items()}
    lark = Lark(control)
    rule = format.calls.grammar(lark, schemas, is_parallel)
    openings = format.calls.openings[:1]
    thought = _thought(lark, format, opens_thought) if has_thought or opens_thought else ""
    whole = lark.source(f"{thought} {lark.text(*openings)} {rule}")
    if isinstance(format.calls, HarmonyCalls):
        text, rule = format.calls.lazy_grammar(lark, schemas)
        return CallGrammar(whole, ((text, lark.source(rule)),))
    return CallGrammar(whole, tuple((text, lark.source(rule)) for text in openings))


def _closed(schema: Any) -> Any:
    """The schema of arguments that has no others than it names, unless it says that it has."""
    named = isinstance(schema, Mapping) and "properties" in schema
    return {"additionalProperties": False, **schema} if named else schema


def _thought(lark: Lark, format: ReplyFormat, is_open: bool) -> str:
    """A rule for a thought, or for the rest of one."""
    if format.thought is None:
        begin, end = "<|channel|>analysis<|message|>", "<|end|>"
        return f"({lark.text(begin)} {lark.until(end)} {lark.text('<|start|>assistant')})?"
    tags = format.thought
    space = r"/\s{0,4}/"
    return (
        f"{lark.until(tags.end)} {space}" if is_open else f"({lark.text(tags.begin)} {lark.until(tags.end)} {space})?"
    )
