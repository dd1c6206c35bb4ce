"""What is asked of `/v1/responses`, and what of it is handed to the chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, cast
from uuid import uuid4

from msgspec import Meta

from .bodies import Body
from .errors import ApiError, unsupported
from .images import RESULT_IS_IMAGE, image_part
from .openai_messages import Name
from .openai_types import Count, Share, ThoughtTokens, effort_names, max_tokens_of
from .output_formats import OutputFormat, Schema, named_format
from .template_input import function_call, function_tool, given, part_text
from .tools import Choice, Tools

LOGPROBS = "message.output_text.logprobs"
TEXT_PARTS = ("input_text", "output_text", "text")
SystemText = Annotated[str, Meta(max_length=1 << 24)]


class Part(Body):
    type: str
    text: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    image_url: Any = None
    file_id: Any = None
    file_url: Any = None
    file_data: Any = None
    filename: Any = None
    input_audio: Any = None
    detail: Any = None


class Item(Body):
    """A message, a function call, its output, or reasoning."""

    type: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[Part] | None = None
    id: str | None = None
    status: str | None = None
    phase: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None
    summary: list[Any] | None = None
    encrypted_content: str | None = None


class FunctionTool(Body):
    type: str
    name: Name | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class TextFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: Schema | None = None
    strict: bool | None = None
    description: str | None = None


class TextOptions(Body):
    format: TextFormat | None = None
    verbosity: str | None = None  # for the client to ask for in the input


class Reasoning(Body):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    max_tokens: ThoughtTokens | None = None  # after which a thought is ended


class NamedChoice(Body):
    type: str
    name: str | None = None


class ResponseToolChoice(Body):
    """One function that must be called, or several that may or must be."""

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[NamedChoice] | None = None


class ResponseStreamOptions(Body):
    include_obfuscation: bool | None = None  # events are as long as their text


class InputTokensRequest(Body):
    """What tokens are counted of."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {"conversation": (), "prompt": (), "background": (False,)}
    input: str | Annotated[list[Item], Meta(min_length=1)]
    model: str | None = None
    instructions: SystemText | None = None
    previous_response_id: str | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=1024)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None

    def output(self) -> OutputFormat | None:
        given = None if self.text is None else self.text.format
        return None if given is None else named_format(given.type, given.schema, given.strict, "text.format", "schema")

    def read_tools(self) -> Tools:
        return read_tools(self.tools, self.tool_choice, self.parallel_tool_calls)

    @property
    def template_names(self) -> dict[str, Any] | None:
        return effort_names(self.reasoning.effort if self.reasoning else None)

    @property
    def thought_tokens(self) -> int | None:
        return max_tokens_of(self.reasoning.max_tokens) if self.reasoning else None


class ResponseRequest(InputTokensRequest, kw_only=True):
    """The last fields change nothing by contract."""

    max_output_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    include: list[str] | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    cache_salt: Annotated[str, Meta(max_length=256)] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    max_tool_calls: int | None = None  # of tools that run in the server: there are none

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if LOGPROBS in (self.include or ()) or self.top_logprobs else None

    def options(self) -> dict[str, Any]:
        return {"max_tokens": self.max_output_tokens, **given(temperature=self.temperature, top_p=self.top_p)}


def items_of(items: str | list[Item]) -> list[dict[str, Any]]:
    """Input as items with ids, as they are told again."""
    if isinstance(items, str):
        return [_message_item("user", [text_part("input_text", items)], None)]
    return [_item(one, f"input[{number}]") for number, one in enumerate(items)]


def template_messages(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items, of input and of output, as messages that `LLM.chat` takes."""
    found: list[dict[str, Any]] = []
    thought = ""  # that the next item followed
    for item in items:
        if item["type"] == "message":
            role = "system" if item["role"] == "developer" else item["role"]
            if any(part.get("type") == "input_image" for part in item["content"]):
                found.append({"role": role, "content": [*map(_seen_part, item["content"])]})
            else:
                _add(found, role, "".join(map(_part_text, item["content"])))
        elif item["type"] == "function_call":
            _add_call(found, function_call(item["call_id"], item["name"], item["arguments"]))
        elif item["type"] == "function_call_output":
            found += _result(item)
        elif text := "".join(part["text"] for part in item.get("content") or ()):
            thought = text
            continue
        if thought and found[-1]["role"] == "assistant":
            found[-1]["reasoning_content"] = thought
        thought = ""
    return found


def read_tools(
    tools: list[FunctionTool] | None, choice: str | ResponseToolChoice | None, parallel: bool | None
) -> Tools:
    """Functions as chat templates expect them, and whether one must be called.

    Tools of other types beside functions are left out: they may be called, but need not.
    """
    functions = [tool for tool in tools or () if tool.type == "function"]
    if tools and not functions:
        raise unsupported(f"tools[0]: the type {tools[0].type[:40]!r}", "only functions can be described")
    for number, tool in enumerate(functions):
        if tool.name is None:
            raise ApiError(400, f"tools[{number}] needs a name", f"tools[{number}].name", "invalid_request")
    described = [function_tool(tool.name or "", tool.description, tool.parameters) for tool in functions]
    strict = frozenset(tool.name or "" for tool in functions if tool.strict)
    found = Tools(described, parallel=parallel is not False, strict=strict)
    if choice is None or isinstance(choice, str):
        return replace(found, choice=cast("Choice", choice or "auto"))
    if choice.type == "function" and choice.name is not None:
        return replace(found, choice="required", name=choice.name)
    if choice.type == "allowed_tools" and choice.tools is not None:
        return replace(found.only([one.name or "" for one in choice.tools]), choice=choice.mode or "auto")
    raise unsupported(f"tool_choice of the type {choice.type[:40]!r}", "name a function")


def left_out_tools(tools: list[FunctionTool] | None) -> list[str]:
    """The names under which tools that are no functions are noted."""
    return [f"tools ({tool.type})" for tool in tools or () if tool.type != "function"]


def _add(found: list[dict[str, Any]], role: str, text: str) -> None:
    """Instructions and system messages at the start are one: many templates take no second."""
    if role == "system" and len(found) == 1 and found[0]["role"] == "system":
        found[0]["content"] += f"\n\n{text}"
    else:
        found.append({"role": role, "content": text})


def _add_call(found: list[dict[str, Any]], call: dict[str, Any]) -> None:
    """Calls belong to the message of the model before them."""
    if not found or found[-1]["role"] != "assistant":
        found.append({"role": "assistant", "content": None})
    found[-1].setdefault("tool_calls", []).append(call)


def _result(item: dict[str, Any]) -> list[dict[str, Any]]:
    """What a function gave. Templates take images of users, so a message of theirs with them follows."""
    output, found = item["output"], {"role": "tool", "tool_call_id": item["call_id"]}
    if isinstance(output, str):
        return [{**found, "content": output}]
    images = [_seen_part(part) for part in output if part["type"] == "input_image"]
    text = "\n".join(part["text"] for part in output if part["type"] != "input_image")
    return [{**found, "content": text or RESULT_IS_IMAGE}, {"role": "user", "content": images}]


def _item(item: Item, at: str) -> dict[str, Any]:
    kind = item.type or "message"
    if kind == "message":
        if item.role is None or item.content is None:
            raise ApiError(400, f"{at}: a message needs role and content", at, "invalid_request")
        return _message_item(item.role, _parts(item.content, item.role, f"{at}.content"), item.id)
    if kind == "function_call":
        if item.call_id is None or item.name is None or item.arguments is None:
            raise ApiError(400, f"{at}: a function_call needs call_id, name and arguments", at, "invalid_request")
        return {"type": kind, "id": item.id or new_id("fc"), "call_id": item.call_id, "name": item.name,
                "arguments": item.arguments, "status": "completed"}  # fmt: skip
    if kind == "function_call_output":
        if item.call_id is None or item.output is None:
            raise ApiError(400, f"{at}: a function_call_output needs call_id and output", at, "invalid_request")
        parts = _parts(item.output, "user", f"{at}.output")
        has_images = any(part["type"] == "input_image" for part in parts)
        output = parts if has_images else "\n".join(part["text"] for part in parts)
        return {"type": kind, "id": item.id or new_id("fco"), "call_id": item.call_id, "output": output,
                "status": "completed"}  # fmt: skip
    if kind == "reasoning":
        thoughts = item.content if isinstance(item.content, list) else []
        content = [{"type": "reasoning_text", "text": part.text} for part in thoughts if part.text]
        return {"type": kind, "id": item.id or new_id("rs"), "summary": item.summary or [], "content": content}
    raise ApiError(400, f"{at}: an item of type {kind[:40]!r} is not supported", at, "unsupported_content")


def _parts(content: str | list[Part], role: str, at: str) -> list[dict[str, Any]]:
    kind = "output_text" if role == "assistant" else "input_text"
    if isinstance(content, str):
        return [text_part(kind, content)]
    return [_part(one, kind, f"{at}[{number}]") for number, one in enumerate(content)]


def _part_text(part: dict[str, Any]) -> str:
    text: str = part.get("text", part.get("refusal", ""))
    return text


def _seen_part(part: dict[str, Any]) -> Any:
    """A part of a message with images, as `LLM.chat` takes it."""
    return image_part(part["image_url"], "input") if part.get("type") == "input_image" else _part_text(part)


def _part(part: Part, kind: str, at: str) -> dict[str, Any]:
    if part.type == "input_image" and kind == "input_text":
        image_part(part.image_url, f"{at}.image_url")  # refuses what is none
        return {"type": "input_image", "image_url": part.image_url, "detail": part.detail or "auto"}
    if part.type == "refusal" and part.refusal is not None:
        return {"type": "refusal", "refusal": part.refusal}
    return text_part(kind, part_text(part.type, part.text, at, TEXT_PARTS))


def text_part(kind: str, text: str) -> dict[str, Any]:
    """A text of an item, as it is told again."""
    return {"type": kind, "text": text, **({"annotations": []} if kind == "output_text" else {})}


def _message_item(role: str, parts: list[dict[str, Any]], name: str | None) -> dict[str, Any]:
    return {"type": "message", "id": name or new_id("msg"), "role": role, "status": "completed", "content": parts}


def new_id(kind: str) -> str:
    return f"{kind}_{uuid4().hex}"
