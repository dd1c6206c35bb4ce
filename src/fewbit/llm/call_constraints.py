"""What holds a reply to its tools: grammars of calls, and the end of a thought that takes too long."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..errors import RequestError

if TYPE_CHECKING:
    from ..text.grammar import ConstraintFactory, GrammarCompiler
    from ..text.reply import ReplyFormat

_NO_BUDGET = "reasoning_budget needs a model that thinks between tags, and a prompt that lets it think"


def reply_constraint(
    compiler: Callable[[], GrammarCompiler],
    format: ReplyFormat,
    control: Mapping[str, int],
    tools: Sequence[Mapping[str, Any]],
    choice: str | Mapping[str, Any],
    is_parallel: bool,
    thinks: bool,
    opens_thought: bool,
    budget: int | None,
    answer: ConstraintFactory | None = None,
) -> ConstraintFactory | None:
    """The constraint of a reply; None if nothing holds it.

    Args:
        compiler: Gives the grammars of the model.
        format: How the model writes replies.
        control: Ids of the control tokens by text.
        tools: The tools that it may call.
        choice: "auto", "none", "required", or a tool by name, as `read_choice` gives it.
        is_parallel: There may be several calls.
        thinks: The reply may begin with a thought.
        opens_thought: It begins inside one.
        budget: Most tokens of the thought.
        answer: Holds the answer.
    """
    from ..text.grammar import Grammar, Trigger
    from ..text.reply import call_grammar, tool_schemas

    is_free = choice == "none" or not tool_schemas(tools)
    in_channels = format.calls.has_channels and not is_free  # calls are held, and the answer is checked
    if answer is not None and (is_free or choice == "auto") and not in_channels:
        marks = [] if is_free else call_grammar(format, tools, None, is_parallel, control).triggers
        calls = [(text, compiler().compile(Grammar.lark(source))) for text, source in marks]
        return _held_answer(compiler(), format, calls, answer, thinks, opens_thought, budget)
    if is_free and budget is None:
        return None
    if choice == "auto" and budget is None and find_spec("llguidance") is None:
        return None  # calls are read as the model writes them
    found = None
    if not is_free:
        name = choice.get("name") if isinstance(choice, Mapping) else None
        is_before = budget is None
        grammar = call_grammar(
            format, tools, name, is_parallel, control, thinks and is_before, opens_thought and is_before
        )
        if choice == "auto":
            triggers = [Trigger(text, Grammar.lark(source)) for text, source in grammar.triggers]
            found = compiler().lazily(triggers) if triggers else None
            if opens_thought and is_before and format.thought is not None and found is not None:
                return compiler().after(format.thought.end, found)
        else:
            found = compiler().compile(Grammar.lark(grammar.whole))
    if budget is None:
        return found
    if format.thought is None or not (thinks or opens_thought):
        raise RequestError(_NO_BUDGET)
    return compiler().after(format.thought.end, found, budget)


def _held_answer(
    compiler: GrammarCompiler,
    format: ReplyFormat,
    calls: list[tuple[str, ConstraintFactory]],
    answer: ConstraintFactory,
    thinks: bool,
    opens_thought: bool,
    budget: int | None,
) -> ConstraintFactory:
    """A reply that is an answer or calls, both held, and may think first."""
    from ..text.reply import FINAL

    if format.calls.has_channels:
        return compiler.after(FINAL, answer, budget)
    rest = compiler.opening(calls, answer) if calls else answer
    tags = format.thought
    if tags is not None and opens_thought:
        return compiler.after(tags.end, rest, budget)
    if tags is not None and thinks:
        return compiler.opening([(tags.begin, compiler.after(tags.end, rest, budget))], rest)
    if budget is not None:
        raise RequestError(_NO_BUDGET)
    return rest


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
