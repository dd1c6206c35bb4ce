"""Messages and tools of OpenAI's chat API, and what of them is handed to the chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from .bodies import Body
from .errors import ApiError
from .images import content_of, image_part
from .openai_types import NOTHING
from .template_input import function_call, function_tool, part_text
from .tools import Tools

Name = Annotated[str, Meta(pattern="^[a-zA-Z0-9_.-]{1,64}$")]


class ContentPart(Body):
    type: str
    text: str | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None
    refusal: str | None = None


class FunctionCall(Body):
    name: str
    arguments: str


class MessageCall(Body):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"
    index: int | None = None  # some clients send back what was streamed


class Message(Body):
    """A message of a conversation. What stands after `reasoning` comes back from clients."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {"function_call": NOTHING}
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[MessageCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None  # chat templates say whether a model is told again what it thought
    reasoning: str | None = None  # the same, as some clients call it
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: Any = None


class Function(Body):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None  # all of the schema is held, or the tool is refused


class Tool(Body):
    type: Literal["function"]
    function: Function


class NamedFunction(Body):
    name: str


class NamedTool(Body):
    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Body):
    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class ToolChoiceObject(Body):
    """One tool that must be called, or several that may or must be."""

    type: Literal["function", "allowed_tools"]
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


ToolChoice = Literal["none", "auto", "required"] | ToolChoiceObject


def template_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """Messages as `LLM.chat` takes them."""
    return [_template_message(message, f"messages[{number}]") for number, message in enumerate(messages)]


def read_tools(tools: list[Tool] | None, choice: ToolChoice | None, parallel: bool | None) -> Tools:
    """Tools as chat templates expect them, and whether one must be called."""
    functions = [tool.function for tool in tools or ()]
    described = [function_tool(one.name, one.description, one.parameters) for one in functions]
    strict = frozenset(one.name for one in functions if one.strict)
    found = Tools(described, parallel=parallel is not False, strict=strict)
    if choice is None or isinstance(choice, str):
        return replace(found, choice=choice or "auto")
    if choice.function is not None:
        return replace(found, choice="required", name=choice.function.name)
    if choice.allowed_tools is None:
        raise ApiError(400, f"tool_choice {choice.type} needs {choice.type}", "tool_choice", "invalid_request")
    allowed = [one.function.name for one in choice.allowed_tools.tools]
    return replace(found.only(allowed), choice=choice.allowed_tools.mode)


def _template_message(message: Message, where: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _content(message.content, where),
    }
    if message.content is None and not message.tool_calls:
        raise ApiError(400, f"{where} has no content", f"{where}.content", "invalid_request")
    if message.role == "tool" and message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        found["name"] = message.name
    if message.role == "assistant" and (thought := message.reasoning_content or message.reasoning):
        found["reasoning_content"] = thought
    if message.tool_calls:
        found["tool_calls"] = [
            function_call(call.id, call.function.name, call.function.arguments) for call in message.tool_calls
        ]
    return found


def _content(content: str | list[ContentPart] | None, where: str) -> str | list[Any] | None:
    if content is None or isinstance(content, str):
        return content
    return content_of(_part(part, f"{where}.content[{number}]") for number, part in enumerate(content))


def _part(part: ContentPart, at: str) -> str | dict[str, Any]:
    if part.type != "image_url":
        return part_text(part.type, part.text, at)
    given = part.image_url
    return image_part(given.get("url") if isinstance(given, dict) else given, f"{at}.image_url")
