"""Messages, tools and calls as chat templates take them: what all APIs make of theirs."""

from __future__ import annotations

from typing import Any

from .errors import ApiError

Plain = dict[str, Any]


def function_tool(name: str | None, description: str | None, parameters: Plain | None) -> Plain:
    """A tool as chat templates expect it.

    >>> function_tool("now", None, None)["function"]
    {'name': 'now', 'description': '', 'parameters': {'type': 'object', 'properties': {}}}
    """
    schema = parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": description or "", "parameters": schema}}


def function_call(call_id: str, name: str, arguments: str | Plain) -> Plain:
    """A call in a message of the model."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def part_text(kind: str, text: str | None, at: str, kinds: tuple[str, ...] = ("text",), what: str = "part") -> str:
    """The text of a part of a message; parts of other kinds are refused.

    Args:
        kind: The part's type.
        text: Its text, if it has one.
        at: Where it is in the request.
        kinds: Types whose text is read.
        what: What the API calls a part.
    """
    if kind not in kinds:
        raise ApiError(400, f"{at}: a {what} of type {kind[:40]!r} is not supported: the model reads text only", at,
                       "unsupported_content")  # fmt: skip
    if text is None:
        raise ApiError(400, f"{at} has no text", f"{at}.text", "invalid_request")
    return text


def given(**options: Any) -> Plain:
    """The options that are not None.

    >>> given(seed=3, top_p=None)
    {'seed': 3}
    """
    return {name: value for name, value in options.items() if value is not None}
