"""Messages and tools of OpenAI's chat API, and what of them is handed to the chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from .bodies import Body
from .errors import ApiError
from .openai_types import NOTHING
from .template_input import check_tool_choice, function_call, function_tool, part_text

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


class ToolCall(Body):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"
    index: int | None = None  # some clients send back what was streamed


class Message(Body):
    """A message of a conversation. What stands after `tool_call_id` comes back from clients."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {"function_call": NOTHING}
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None  # what a model thought is not told to it again
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: Any = None


class Function(Body):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None  # arguments are not constrained


class Tool(Body):
    type: Literal["function"]
    function: Function


class NamedFunction(Body):
    name: str


class NamedTool(Body):
    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def template_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """Messages as `LLM.chat` takes them."""
    return [_template_message(message, f"messages[{number}]") for number, message in enumerate(messages)]


def template_tools(tools: list[Tool] | None, choice: ToolChoice | None) -> list[dict[str, Any]] | None:
    """Tools as chat templates expect them; none where the model is told not to call any."""
    check_tool_choice(choice)
    if not tools or choice == "none":
        return None
    functions = [tool.function for tool in tools]
    return [function_tool(one.name, one.description, one.parameters) for one in functions]


def _template_message(message: Message, where: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _text(message.content, where),
    }
    if message.content is None and not message.tool_calls:
        raise ApiError(400, f"{where} has no content", f"{where}.content", "invalid_request")
    if message.role == "tool" and message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        found["name"] = message.name
    if message.tool_calls:
        found["tool_calls"] = [
            function_call(call.id, call.function.name, call.function.arguments) for call in message.tool_calls
        ]
    return found


def _text(content: str | list[ContentPart] | None, where: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    parts = enumerate(content)
    return "\n".join(part_text(part.type, part.text, f"{where}.content[{number}]") for number, part in parts)
