"""Calls of tools in a conversation: they are shown, and made when the user agrees."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

MAX_SHOWN = 400  # characters of a call's arguments, and of its result
REFUSED = "The user does not want this call to be made."
UNKNOWN = "There is no such tool."


class Toolbox(Protocol):
    """Tools that can be called."""

    @property
    def described(self) -> list[dict[str, Any]]:
        """They, as OpenAI's clients describe them."""

    def __contains__(self, name: str) -> bool: ...

    def call(self, name: str, arguments: dict[str, Any]) -> str: ...


class AskingScreen(Protocol):
    """Where the user is asked."""

    def note(self, text: str) -> None: ...

    def choose(self, question: str, options: str) -> str: ...


class ToolCaller:
    """Makes the calls that the user agrees to.

    Args:
        tools: What can be called.
    """

    def __init__(self, tools: Toolbox) -> None:
        self.tools = tools
        self._always: set[str] = set()

    def results(self, calls: Sequence[Any], screen: AskingScreen) -> list[dict[str, Any]]:
        """The messages that answer calls."""
        return [{"role": "tool", "tool_call_id": call.id, "content": self._result(call, screen)} for call in calls]

    def _result(self, call: Any, screen: AskingScreen) -> str:
        text = described(call)
        if call.name not in self.tools:
            screen.note(f"the model calls {text}, and there is no such tool")
            return UNKNOWN
        if call.name in self._always:
            screen.note(f"calls {text}")
        else:
            choice = screen.choose(f"the model calls {text}; make this call?", "y/N/always").strip().lower()
            if choice in ("a", "always"):
                self._always.add(call.name)
            elif choice not in ("y", "yes"):
                return REFUSED
        result = self.tools.call(call.name, call.arguments)
        screen.note(cut(result))
        return result


def described(call: Any) -> str:
    """A call in a line.

    >>> from types import SimpleNamespace
    >>> described(SimpleNamespace(name="add", arguments={"x": 1}))
    'add({"x": 1})'
    """
    return f"{call.name}({cut(json.dumps(call.arguments, ensure_ascii=False))})"


def cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text)} characters)"
