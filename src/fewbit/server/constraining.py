"""What holds an output while it is written: the end of its thought, its calls, the format of its answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import RequestError
from ..llm import LLM
from ..text.grammar import ConstraintFactory, Grammar, Trigger
from ..text.grammar.holding import STYLE, hold
from ..text.reply import FINAL, CallGrammar, call_grammar
from .errors import ApiError
from .replies import ReplyStyle
from .tools import Tools

Tool = Mapping[str, Any]


def constraint_of(
    llm: LLM, answer: ConstraintFactory | None, tools: Tools, style: ReplyStyle | None, thought_tokens: int | None
) -> ConstraintFactory | None:
    """Makes the constraint of each output; None: nothing holds it.

    Args:
        llm: The model.
        answer: Makes the constraint of the answer; None: it is free.
        tools: Whether a function must be called.
        style: How the model writes its reply; None: its text is the answer.
        thought_tokens: After which a thought is ended.
    """
    if style is None:
        return answer
    if style.format.calls.has_channels:
        return _in_channels(llm, answer, tools, style, thought_tokens)
    rest = _with_calls(llm, answer, tools, style) if style.tools else answer
    return rest if rest is None and thought_tokens is None else _after_thought(llm, rest, style, thought_tokens)


def _with_calls(
    llm: LLM, answer: ConstraintFactory | None, tools: Tools, style: ReplyStyle
) -> ConstraintFactory | None:
    """Calls are held to the schemas of their tools: from the start where one must come, else once one has begun."""
    _check_strict(tools)
    for schemas in _schemas(style.tools):
        try:
            return _calls(llm, answer, tools, style, schemas)
        except RequestError as error:
            reason = error
    if tools.choice == "required" or answer is not None:
        raise ApiError(400, f"tools: {reason}", "tools", "invalid_grammar")
    return None  # calls are free, and found in the text


def _calls(
    llm: LLM, answer: ConstraintFactory | None, tools: Tools, style: ReplyStyle, schemas: Sequence[Tool]
) -> ConstraintFactory:
    compiler, is_parallel = llm.grammars, style.max_calls is None
    found: CallGrammar = call_grammar(
        style.format, schemas, tools.name, is_parallel, llm.control_tokens(style.format),
        has_thought=style.format.calls.has_channels,
    )  # fmt: skip
    if tools.choice == "required":
        return compiler.compile(Grammar.lark(found.whole))
    triggers = [Trigger(text, Grammar.lark(source)) for text, source in found.triggers]
    if answer is None:
        return compiler.lazily(triggers, repeats=is_parallel)
    return compiler.opening([(trigger.text, compiler.compile(trigger.grammar)) for trigger in triggers], answer)


def _in_channels(
    llm: LLM, answer: ConstraintFactory | None, tools: Tools, style: ReplyStyle, thought_tokens: int | None
) -> ConstraintFactory | None:
    """The same for a model whose thoughts, answers and calls stand in channels: with tools its answer is not held."""
    if style.tools:
        return _with_calls(llm, None, tools, style)
    if answer is None and thought_tokens is None:
        return None
    return llm.grammars.after(FINAL, answer, thought_tokens)


def _after_thought(
    llm: LLM, rest: ConstraintFactory | None, style: ReplyStyle, thought_tokens: int | None
) -> ConstraintFactory | None:
    """The same for a model that may think first."""
    compiler, tags = llm.grammars, style.format.thought
    if tags is None:
        return rest
    if style.opens_thought:
        return compiler.after(tags.end, rest, thought_tokens)
    if not style.may_think:
        return rest
    return compiler.opening([(tags.begin, compiler.after(tags.end, rest, thought_tokens))], rest)


def _schemas(tools: Sequence[Tool]) -> list[Sequence[Tool]]:
    """Tools with their schemas, with what a grammar can hold of these, and with any object."""
    return [[_with_schema(tool, relax(tool["function"]["parameters"])) for tool in tools] for relax in _RELAXATIONS]


def _held(schema: Any) -> Any:
    try:
        return json.loads(hold(schema).source)
    except (RequestError, RecursionError):
        return {"type": "object"}


_RELAXATIONS: tuple[Callable[[Any], Any], ...] = (lambda schema: schema, _held, lambda _: {"type": "object"})


def _with_schema(tool: Tool, schema: Any) -> Tool:
    """A tool whose arguments are written with spaces as JSON usually has them."""
    return {**tool, "function": {**tool["function"], "parameters": {**schema, "x-guidance": STYLE}}}


def _check_strict(tools: Tools) -> None:
    """Refuse strict functions with what a grammar cannot hold."""
    for function in (one["function"] for one in tools.functions):
        if function["name"] in tools.strict:
            try:
                Grammar.schema(function["parameters"], strict=True)
            except RequestError as error:
                raise ApiError(400, f"tools: the function {function['name']}: {error}", "tools",
                               "invalid_grammar") from None  # fmt: skip
