"""What holds a reply while it is written: the end of its thought, its calls, the format of its answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..errors import RequestError

if TYPE_CHECKING:
    from ..text.grammar import ConstraintFactory, GrammarCompiler
    from ..text.reply import ReplyFormat


@dataclass(frozen=True, slots=True)
class ReplyRules:
    """What a reply may consist of.

    Args:
        format: How the model writes its thoughts and calls.
        control: Ids of the control tokens by text.
        tools: Schemas of the arguments of the functions that it may call, by name.
        name: The only one that may be called.
        is_required: It must call one.
        is_parallel: There may be several calls.
        strict: Names of functions whose arguments are held to all of their schemas, or refused.
        may_think: The reply may begin with a thought.
        opens_thought: The prompt ends inside one.
        thought_tokens: After which a thought is ended.
    """

    format: ReplyFormat
    control: Mapping[str, int] = field(default_factory=dict)
    tools: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    is_required: bool = False
    is_parallel: bool = True
    strict: frozenset[str] = frozenset()
    may_think: bool = False
    opens_thought: bool = False
    thought_tokens: int | None = None


def reply_constraint(
    compiler: Callable[[], GrammarCompiler], rules: ReplyRules, answer: ConstraintFactory | None
) -> ConstraintFactory | None:
    """Makes the constraint of each output; None: nothing holds it.

    Args:
        compiler: Gives the grammars of the model.
        rules: What the reply may consist of.
        answer: Makes the constraint of the answer; None: it is free.
    """
    is_free = answer is None and rules.thought_tokens is None and not rules.is_required
    if is_free and (not rules.tools or find_spec("llguidance") is None):
        return None  # calls are read as the model writes them
    if rules.format.calls.has_channels:
        return _in_channels(compiler(), rules, answer)
    rest = _with_calls(compiler(), rules, answer) if rules.tools else answer
    return rest if rest is None and rules.thought_tokens is None else _after_thought(compiler(), rules, rest)


def _with_calls(
    compiler: GrammarCompiler, rules: ReplyRules, answer: ConstraintFactory | None
) -> ConstraintFactory | None:
    """Calls are held to the schemas of their tools: from the start where one must come, else once one has begun."""
    _check_strict(rules)
    for relax in _RELAXATIONS:
        try:
            return _calls(compiler, rules, answer, relax)
        except RequestError as error:
            reason = error
    if rules.is_required or answer is not None:
        raise RequestError(f"tools: {reason}")
    return None  # calls are free, and found in the text


def _calls(
    compiler: GrammarCompiler, rules: ReplyRules, answer: ConstraintFactory | None, relax: Callable[[Any], Any]
) -> ConstraintFactory | None:
    from ..text.grammar import Grammar, Trigger
    from ..text.grammar.holding import STYLE  # spaces as JSON usually has them
    from ..text.reply import call_grammar

    tools = [
        {"function": {"name": name, "parameters": {**relax(schema), "x-guidance": STYLE}}}
        for name, schema in rules.tools.items()
    ]
    found = call_grammar(
        rules.format, tools, rules.name, rules.is_parallel, rules.control, rules.format.calls.has_channels
    )
    if rules.is_required:
        return compiler.compile(Grammar.lark(found.whole))
    triggers = [Trigger(text, Grammar.lark(source)) for text, source in found.triggers]
    if not triggers:
        return answer
    if answer is None:
        return compiler.lazily(triggers, repeats=rules.is_parallel)
    return compiler.opening([(trigger.text, compiler.compile(trigger.grammar)) for trigger in triggers], answer)


def _in_channels(
    compiler: GrammarCompiler, rules: ReplyRules, answer: ConstraintFactory | None
) -> ConstraintFactory | None:
    """The same for a model whose thoughts, answers and calls stand in channels: with tools its answer is not held."""
    from ..text.reply import FINAL

    if rules.tools:
        return _with_calls(compiler, rules, None)
    return compiler.after(FINAL, answer, rules.thought_tokens)


def _after_thought(
    compiler: GrammarCompiler, rules: ReplyRules, rest: ConstraintFactory | None
) -> ConstraintFactory | None:
    """The same for a model that may think first."""
    tags, tokens = rules.format.thought, rules.thought_tokens
    if tags is None:
        return rest
    if rules.opens_thought:
        return compiler.after(tags.end, rest, tokens)
    if not rules.may_think:
        return rest
    return compiler.opening([(tags.begin, compiler.after(tags.end, rest, tokens))], rest)


def _held(schema: Any) -> Any:
    from ..text.grammar.holding import hold

    try:
        return json.loads(hold(schema).source)
    except (RequestError, RecursionError):
        return {"type": "object"}


# Schemas as they are, then what a grammar can hold of them, then any object.
_RELAXATIONS: tuple[Callable[[Any], Any], ...] = (lambda schema: schema, _held, lambda _: {"type": "object"})


def _check_strict(rules: ReplyRules) -> None:
    """Refuse strict functions with what a grammar cannot hold."""
    from ..text.grammar import Grammar

    for name in (name for name in rules.tools if name in rules.strict):
        try:
            Grammar.schema(rules.tools[name], strict=True)
        except RequestError as error:
            raise RequestError(f"tools: the function {name}: {error}") from None


def read_choice(choice: Any, names: Sequence[str]) -> str | Mapping[str, Any]:
    """The option `tool_choice`, checked: a word, or a dict with the name of a tool.

    >>> read_choice("add", ["add"]), read_choice({"type": "function", "function": {"name": "add"}}, ["add"])
    ({'name': 'add'}, {'name': 'add'})
    """
    if isinstance(choice, Mapping):
        inner = choice.get("function", choice)
        name = inner.get("name") if isinstance(inner, Mapping) else None
    elif choice in ("auto", "none", "required"):
        if choice == "required" and not names:
            raise RequestError("tool_choice is 'required', and no tools were given")
        return str(choice)
    else:
        name = choice
    if name not in names:
        known = ", ".join(names) or "none"
        raise RequestError(f"tool_choice must be 'auto', 'none', 'required' or the name of a tool, got {choice!r}; the "
                           f"tools are {known}")  # fmt: skip
    return {"name": name}
