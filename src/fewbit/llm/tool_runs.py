"""Rounds of a conversation in which a model calls tools: each call is made, and its result goes back to the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ..errors import RequestError
from .completion import Completion, ToolCall
from .tools import Tool, call_function, tool_functions

OnCall: TypeAlias = "Callable[[ToolCall], object]"
Chat: TypeAlias = "Callable[[list[Mapping[str, Any]], str], Completion]"

REFUSED = "Error: the user refused this call"


def run_rounds(
    chat: Chat,
    messages: list[Mapping[str, Any]],
    tools: Sequence[Tool],
    max_rounds: int,
    on_call: OnCall | None,
    choice: str,
) -> Completion:
    """Chat until there is an answer. `messages` grows by the rounds.

    Args:
        chat: Answers messages, with a tool choice.
        messages: The conversation.
        tools: The tools, of which functions are called.
        max_rounds: Most answers with calls. Then the model must answer without.
        on_call: Sees each call before it is made; False refuses it.
        choice: The tool choice of the first round.
    """
    if max_rounds < 1:
        raise RequestError(f"max_rounds must be at least 1, got {max_rounds}")
    functions = tool_functions(tools)
    for _ in range(max_rounds):
        completion = chat(messages, choice)
        messages.append(completion.message)
        if not completion.tool_calls or any(call.name not in functions for call in completion.tool_calls):
            return completion
        for call in completion.tool_calls:
            is_refused = on_call is not None and on_call(call) is False
            text = REFUSED if is_refused else call_function(functions[call.name], call)
            messages.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text})
        choice = "auto"
    completion = chat(messages, "none")
    messages.append(completion.message)
    return completion
