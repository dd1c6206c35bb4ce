"""Messages, tools and answers of Anthropic's API, and what of them is handed to the chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from .bodies import Body
from .errors import ApiError, unsupported
from .images import RESULT_IS_IMAGE, content_of, image_part
from .jobs import Usage
from .openai_types import Share, effort_names, thinking_names
from .output_formats import OutputFormat
from .template_input import function_call, function_tool, given, part_text
from .tools import Choice, Tools

Role = Literal["user", "assistant", "system"]
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "invalid"]
SIGNATURE = "fewbit"  # of thoughts: clients send it back, and nothing looks at it


class Block(Body):
    """A part of a message. `cache_control` has no effect: prefixes are kept anyway. Nor have the fields after it."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None
    source: Any = None
    cache_control: Any = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    caller: Any = None
    citations: Any = None


class InputMessage(Body):
    role: Role
    content: str | list[Block]


class Metadata(Body):
    user_id: str | None = None


class CustomTool(Body):
    name: Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,128}$")]
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None
    cache_control: Any = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None  # it comes at once anyway

    @property
    def is_custom(self) -> bool:
        return self.type in (None, "custom")


class AnthropicToolChoice(Body):
    type: Literal["auto", "none", "any", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    type: Literal["disabled", "enabled", "adaptive"]
    budget_tokens: int | None = None
    display: str | None = None


class AnthropicFormat(Body):
    type: Literal["json_schema"]
    schema: dict[str, Any] | bool


class OutputConfig(Body):
    effort: str | None = None
    format: AnthropicFormat | None = None


class CountTokensRequest(Body):
    """What tokens are counted of."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {"mcp_servers": ([],)}
    model: str
    messages: Annotated[list[InputMessage], Meta(min_length=1)]
    system: str | list[Block] | None = None
    tools: Annotated[list[CustomTool], Meta(max_length=1024)] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: AnthropicFormat | None = None  # the same as that of `output_config`, as older clients send it

    def template_messages(self) -> list[dict[str, Any]]:
        return template_messages(self.system, self.messages)

    def read_tools(self) -> Tools:
        return read_tools(self.tools, self.tool_choice)

    def output(self) -> OutputFormat | None:
        given = None if self.output_config is None else self.output_config.format
        if given is not None:
            return OutputFormat("schema", given.schema, "output_config.format")
        old = self.output_format
        return None if old is None else OutputFormat("schema", old.schema, "output_format")

    @property
    def shows_thoughts(self) -> bool:
        """Clients that did not ask for thoughts expect a text as the first block."""
        return self.thinking is not None and self.thinking.type != "disabled" and self.thinking.display != "omitted"

    def template_names(self) -> dict[str, Any] | None:
        effort = None if self.output_config is None else self.output_config.effort
        is_enabled = None if self.thinking is None else self.thinking.type != "disabled"
        return effort_names(effort, thinking_names(is_enabled))

    def left_out_tools(self) -> list[str]:
        """The names under which tools of the server are noted."""
        return [f"tools ({tool.type})" for tool in self.tools or () if not tool.is_custom]


class MessagesRequest(CountTokensRequest, kw_only=True):
    """The last fields change nothing by contract."""

    max_tokens: Annotated[int, Meta(ge=0, le=1 << 31)]  # 0: the prompt is run and kept in the cache
    stop_sequences: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=16)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)] | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
    service_tier: str | None = None
    speed: str | None = None
    cache_control: Any = None

    def options(self) -> dict[str, Any]:
        return given(
            max_tokens=self.max_tokens, stop=self.stop_sequences, temperature=self.temperature, top_p=self.top_p,
            top_k=self.top_k,
        )  # fmt: skip


class TokenCount(msgspec.Struct):
    input_tokens: int


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str
    citations: None = None


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(msgspec.Struct):
    """`input_tokens` are those that were not found in the cache."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    service_tier: Literal["standard"] = "standard"


class OutputProblem(msgspec.Struct):
    """Why an answer is not what was asked for."""

    message: str
    type: str = "invalid_output"


class AnswerMessage(msgspec.Struct):
    id: str
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    usage: MessageUsage
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    error: OutputProblem | msgspec.UnsetType = msgspec.UNSET
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


def message_usage(usage: Usage) -> MessageUsage:
    new = usage.prompt_tokens - usage.cached_tokens
    return MessageUsage(new, usage.completion_tokens, usage.cached_tokens)


def template_messages(system: str | list[Block] | None, messages: Sequence[InputMessage]) -> list[dict[str, Any]]:
    """Messages as `LLM.chat` takes them."""
    text = _joined(system, "system") if system is not None else ""
    found: list[dict[str, Any]] = [{"role": "system", "content": text}] if text else []
    for number, message in enumerate(messages):
        found += _template_message(message, f"messages[{number}]")
    return found


def read_tools(tools: list[CustomTool] | None, choice: AnthropicToolChoice | None) -> Tools:
    """Tools as chat templates expect them, and whether one must be called.

    Tools of the server beside others are left out: they may be called, but need not.
    """
    custom = [tool for tool in tools or () if tool.is_custom]
    if tools and not custom:
        raise unsupported(f"tools[0]: the type {(tools[0].type or '')[:40]!r}", "describe the tool yourself")
    described = [function_tool(tool.name, tool.description, tool.input_schema) for tool in custom]
    strict = frozenset(tool.name for tool in custom if tool.strict)
    if choice is None:
        return Tools(described, strict=strict)
    if choice.type == "tool" and choice.name is None:
        raise ApiError(400, "tool_choice of the type tool needs a name", "tool_choice.name", "invalid_request")
    kinds: dict[str, Choice] = {"none": "none", "auto": "auto", "any": "required", "tool": "required"}
    name = choice.name if choice.type == "tool" else None
    return Tools(described, kinds[choice.type], name, not choice.disable_parallel_tool_use, strict)


def _template_message(message: InputMessage, where: str) -> list[dict[str, Any]]:
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    if message.role == "assistant":
        return [_assistant(message.content, where)]
    found: list[dict[str, Any]] = []
    texts: list[str | dict[str, Any]] = []
    for number, block in enumerate(message.content):
        at = f"{where}.content[{number}]"
        if block.type == "tool_result":
            found.append(_result(block, at))
            texts += _result_images(block, at)
        elif block.type == "image":
            texts.append(_image(block, at))
        else:
            texts.append(_text(block, at))
    if texts or not found:
        found.append({"role": message.role, "content": content_of(texts)})  # results come first, as templates want them
    return found


def _assistant(blocks: list[Block], where: str) -> dict[str, Any]:
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for number, block in enumerate(blocks):
        at = f"{where}.content[{number}]"
        if block.type == "tool_use":
            calls.append(_call(block, at))
        elif block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type != "redacted_thinking":
            texts.append(_text(block, at))
    found: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts) if texts or not calls else None}
    if thought := "\n".join(filter(None, thoughts)):
        found["reasoning_content"] = thought
    return {**found, "tool_calls": calls} if calls else found


def _call(block: Block, at: str) -> dict[str, Any]:
    if block.id is None or block.name is None or block.input is None:
        raise ApiError(400, f"{at}: a tool_use needs id, name and input", at, "invalid_request")
    return function_call(block.id, block.name, json.dumps(block.input, ensure_ascii=False))


def _result(block: Block, at: str) -> dict[str, Any]:
    if block.tool_use_id is None:
        raise ApiError(400, f"{at}: a tool_result needs tool_use_id", at, "invalid_request")
    blocks = block.content or ""
    texts = blocks if isinstance(blocks, str) else [one for one in blocks if one.type != "image"]
    text = _joined(texts, f"{at}.content") or (RESULT_IS_IMAGE if blocks else "")
    return {
        "role": "tool",
        "tool_call_id": block.tool_use_id,
        "content": f"Error: {text}" if block.is_error else text,
    }


def _result_images(block: Block, at: str) -> list[dict[str, Any]]:
    """The images of a result: templates take those of users, so they follow it in the user's message."""
    blocks = block.content if isinstance(block.content, list) else []
    return [_image(one, f"{at}.content[{number}]") for number, one in enumerate(blocks) if one.type == "image"]


def _joined(content: str | list[Block], where: str) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_text(block, f"{where}[{number}]") for number, block in enumerate(content))


def _image(block: Block, at: str) -> dict[str, Any]:
    source = block.source if isinstance(block.source, dict) else {}
    if source.get("type") == "url":
        return image_part(source.get("url"), f"{at}.source.url")
    if source.get("type") != "base64":
        raise unsupported(f"{at}.source", "its type must be base64 or url")
    return image_part(source.get("data"), f"{at}.source.data", is_url=False)


def _text(block: Block, at: str) -> str:
    return part_text(block.type, block.text, at, what="block")
