"""What holds an output while it is written: the end of its thought, its calls, the format of its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import RequestError
from ..llm import LLM
from ..text.grammar import Grammar, Trigger
from ..text.grammar.holding import hold
from ..text.reply import CallGrammar, call_grammar
from .errors import ApiError
from .openings import Factory, OpeningConstraint, OpeningMark
from .replies import ReplyStyle
from .tools import Tools

Tool = Mapping[str, Any]


def constraint_of(
    llm: LLM, answer: Factory | None, tools: Tools, style: ReplyStyle | None, thought_tokens: int | None
) -> Factory | None:
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
    rest = _with_calls(llm, answer, tools, style) if style.tools else answer
    return rest if rest is None and thought_tokens is None else _after_thought(llm, rest, style, thought_tokens)


def _with_calls(llm: LLM, answer: Factory | None, tools: Tools, style: ReplyStyle) -> Factory | None:
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


def _calls(llm: LLM, answer: Factory | None, tools: Tools, style: ReplyStyle, schemas: Sequence[Tool]) -> Factory:
    compiler, is_parallel = llm.grammars, style.max_calls is None
    found: CallGrammar = call_grammar(style.format, schemas, tools.name, is_parallel, llm.control_tokens(style.format))
    if tools.choice == "required":
        return compiler.compile(Grammar.lark(found.whole))
    triggers = [Trigger(text, Grammar.lark(source)) for text, source in found.triggers]
    if answer is None:
        return compiler.lazily(triggers, repeats=is_parallel)
    marks = [_mark(llm, trigger.text, compiler.compile(trigger.grammar)) for trigger in triggers]
    return lambda: OpeningConstraint(marks, answer, compiler.vocabulary)


def _after_thought(llm: LLM, rest: Factory | None, style: ReplyStyle, thought_tokens: int | None) -> Factory | None:
    """The same for a model that may think first."""
    compiler, tags = llm.grammars, style.format.thought
    if tags is None:
        return rest
    if style.opens_thought:
        return compiler.after(tags.end, rest, thought_tokens)
    if not style.may_think:
        return rest
    mark = _mark(llm, tags.begin, compiler.after(tags.end, rest, thought_tokens))
    return lambda: OpeningConstraint([mark], rest, compiler.vocabulary)


def _mark(llm: LLM, text: str, follower: Factory) -> OpeningMark:
    return OpeningMark(tuple(llm.grammars.vocabulary.marker(text)), follower)


def _schemas(tools: Sequence[Tool]) -> list[Sequence[Tool]]:
    """Tools with their schemas, with what a grammar can hold of these, and with any object."""
    return [tools, [_relaxed(tool, is_held=True) for tool in tools], [_relaxed(tool, is_held=False) for tool in tools]]


def _relaxed(tool: Tool, is_held: bool) -> Tool:
    function = tool["function"]
    try:
        schema = hold(function["parameters"]).source if is_held else {"type": "object"}
    except (RequestError, RecursionError):
        schema = {"type": "object"}
    return {**tool, "function": {**function, "parameters": schema}}


def _check_strict(tools: Tools) -> None:
    """Refuse strict functions with what a grammar cannot hold."""
    for function in (one["function"] for one in tools.functions):
        if function["name"] in tools.strict:
            try:
                Grammar.schema(function["parameters"], strict=True)
            except RequestError as error:
                raise ApiError(400, f"tools: the function {function['name']}: {error}", "tools",
                               "invalid_grammar") from None  # fmt: skip
