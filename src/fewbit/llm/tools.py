"""Python functions as tools: their descriptions for a model, made of signature and docstring, and their calls."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

from ..errors import DtypeError, FewbitError, RequestError
from .completion import ToolCall
from .tool_types import from_json, type_schema

Tool: TypeAlias = "Mapping[str, Any] | Callable[..., Any]"
Tools: TypeAlias = "Sequence[Tool]"

_SECTION = re.compile(r"^\s*(Args|Arguments|Parameters|Params)\s*:?\s*$")
_OTHER_SECTION = re.compile(r"^\s*(Returns?|Raises|Yields?|Examples?|Notes?|See Also)\s*:?\s*$")
_ARGUMENT = re.compile(r"^(?P<indent>\s*)\*{0,2}(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)$")
_SPHINX = re.compile(r"^\s*:param\s+(?:[^:]*\s)?(?P<name>\w+)\s*:\s*(?P<text>.*)$")


def describe(tool: Tool) -> dict[str, Any]:
    """A tool as OpenAI's clients describe it. Functions are described by their signature and docstring.

    >>> def add(x: int, y: int = 0) -> int:
    ...     '''Add two numbers.
    ...
    ...     Args:
    ...         x: The first.
    ...     '''
    >>> found = describe(add)["function"]
    >>> found["name"], found["description"], found["parameters"]["required"]
    ('add', 'Add two numbers.', ['x'])
    >>> found["parameters"]["properties"]
    {'x': {'type': 'integer', 'description': 'The first.'}, 'y': {'type': 'integer', 'default': 0}}
    """
    if isinstance(tool, Mapping):
        return dict(tool)
    if not callable(tool):
        raise DtypeError(f"a tool is a dict or a function, not {type(tool).__name__}")
    summary, texts = read_docstring(inspect.getdoc(tool) or "")
    function = {"name": tool_name(tool), "description": summary, "parameters": parameters_schema(tool, texts)}
    return {"type": "function", "function": function}


def tool_name(tool: Tool) -> str:
    """The name of a tool."""
    if not isinstance(tool, Mapping):
        return str(getattr(tool, "__name__", type(tool).__name__))
    inner = tool.get("function", tool)
    return str(inner.get("name", "")) if isinstance(inner, Mapping) else ""


def parameters_schema(function: Callable[..., Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """The JSON schema of a function's parameters.

    Args:
        function: The function.
        texts: What its docstring says of each parameter.
    """
    hints = _hints(function)
    members, required, definitions = {}, [], {}
    for name, parameter in _parameters(function).items():
        annotation = hints.get(name, Any)
        schema = dict(type_schema(annotation, f"parameter {name} of {tool_name(function)}"))
        definitions.update(schema.pop("$defs", {}))
        text = texts.get(name) or _annotated_text(annotation)
        if text:
            schema["description"] = text
        if parameter.default is inspect.Parameter.empty:
            required.append(name)
        elif _is_json(parameter.default):
            schema["default"] = parameter.default
        members[name] = schema
    found = {"type": "object", "properties": members, "required": required, "additionalProperties": False}
    return {**found, "$defs": definitions} if definitions else found


def call_function(function: Callable[..., Any], call: ToolCall) -> str:
    """The result of a call as text. What goes wrong is a text too, so that the model can read it."""
    try:
        hints = _hints(function)
        known = _parameters(function)
        if unknown := ", ".join(name for name in call.arguments if name not in known):
            return f"Error: {call.name} has no parameter {unknown}; it has {', '.join(known) or 'none'}"
        arguments = {name: from_json(value, hints.get(name, Any)) for name, value in call.arguments.items()}
        inspect.signature(function).bind(**arguments)
        return result_text(function(**arguments))
    except FewbitError as error:
        return f"Error: {error}"
    except Exception as error:
        return f"Error: {type(error).__name__}: {error}"


def result_text(value: Any) -> str:
    """What a function returned, as text: JSON where that is possible."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """What a docstring says before its sections, and of each parameter.

    >>> read_docstring("Add.\\n\\nArgs:\\n    x: One number,\\n        or another.\\n\\nReturns:\\n    The sum.")
    ('Add.', {'x': 'One number, or another.'})
    """
    summary: list[str] = []
    lines = text.splitlines()
    found: dict[str, list[str]] = {}
    section, name, indent = "summary", "", -1
    for line in lines:
        if _SECTION.match(line) or _OTHER_SECTION.match(line):
            section, indent = ("args" if _SECTION.match(line) else ""), -1
        elif sphinx := _SPHINX.match(line):
            section, found[sphinx["name"]] = "", [sphinx["text"]]
        elif section == "args" and line.strip():
            argument = _ARGUMENT.match(line)
            if argument is not None and (indent < 0 or len(argument["indent"]) <= indent):
                name, indent = argument["name"], len(argument["indent"])
                found[name] = [argument["text"]]
            elif name:
                found[name].append(line.strip())
        elif section == "summary":
            summary.append(line)
    return "\n".join(summary).strip(), {name: " ".join(filter(None, parts)) for name, parts in found.items()}


def tool_functions(tools: Iterable[Tool]) -> dict[str, Callable[..., Any]]:
    """The functions among tools, by name."""
    return {tool_name(tool): tool for tool in tools if not isinstance(tool, Mapping)}


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    if inspect.iscoroutinefunction(function):
        raise RequestError(f"the tool {tool_name(function)} is a coroutine function; give a plain function")
    found = dict(inspect.signature(function).parameters)
    for name, parameter in found.items():
        if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
            raise RequestError(f"the tool {tool_name(function)} has the parameter {parameter}; a tool takes its "
                               f"arguments by name, so {name} must be a plain parameter")  # fmt: skip
    return found


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise RequestError(f"the annotations of the tool {tool_name(function)} cannot be read: {error}") from None


def _annotated_text(annotation: Any) -> str:
    """The text in `Annotated[int, "the text"]`."""
    if get_origin(annotation) is not Annotated:
        return ""
    return next((extra for extra in get_args(annotation)[1:] if isinstance(extra, str)), "")


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return value is not None
