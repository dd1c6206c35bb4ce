"""What is asked of `/v1/responses`, and what of it is handed to the chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal
from uuid import uuid4

from msgspec import Meta

from .bodies import Body
from .errors import ApiError, unsupported
from .openai_messages import Name
from .openai_types import Count, Share, effort_names
from .template_input import check_tool_choice, function_call, function_tool, given, part_text

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
    """A message, a function call, its output, or reasoning, which is not told to the model again."""

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
    schema: Any = None
    strict: bool | None = None
    description: str | None = None


class TextOptions(Body):
    format: TextFormat | None = None
    verbosity: str | None = None  # for the client to ask for in the input


class Reasoning(Body):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


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
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None

    def check(self) -> None:
        """Refuse what is known and cannot be served."""
        form = self.text.format if self.text is not None else None
        if form is not None and form.type != "text":
            raise unsupported(f"text.format {form.type}", "ask for JSON in the input")
        check_tool_choice(self.tool_choice)

    @property
    def template_names(self) -> dict[str, Any] | None:
        return effort_names(self.reasoning.effort if self.reasoning else None)


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
    for item in items:
        if item["type"] == "message":
            text = "".join(part.get("text", part.get("refusal", "")) for part in item["content"])
            role = "system" if item["role"] == "developer" else item["role"]
            _add(found, role, text)
        elif item["type"] == "function_call":
            _add_call(found, function_call(item["call_id"], item["name"], item["arguments"]))
        elif item["type"] == "function_call_output":
            found.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
    return found


def template_tools(
    tools: list[FunctionTool] | None, choice: str | dict[str, Any] | None
) -> list[dict[str, Any]] | None:
    """Functions as chat templates expect them; none where the model is told not to call any.

    Tools of other types beside functions are left out: they may be called, but need not.
    """
    functions = [tool for tool in tools or () if tool.type == "function"]
    if tools and not functions:
        raise unsupported(f"tools[0]: the type {tools[0].type[:40]!r}", "only functions can be described")
    for number, tool in enumerate(functions):
        if tool.name is None:
            raise ApiError(400, f"tools[{number}] needs a name", f"tools[{number}].name", "invalid_request")
    if not functions or choice == "none":
        return None
    return [function_tool(tool.name, tool.description, tool.parameters) for tool in functions]


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
        texts = [part["text"] for part in _parts(item.output, "user", f"{at}.output")]
        return {"type": kind, "id": item.id or new_id("fco"), "call_id": item.call_id, "output": "\n".join(texts),
                "status": "completed"}  # fmt: skip
    if kind == "reasoning":
        return {"type": kind, "id": item.id or new_id("rs"), "summary": item.summary or []}
    raise ApiError(400, f"{at}: an item of type {kind[:40]!r} is not supported", at, "unsupported_content")


def _parts(content: str | list[Part], role: str, at: str) -> list[dict[str, Any]]:
    kind = "output_text" if role == "assistant" else "input_text"
    if isinstance(content, str):
        return [text_part(kind, content)]
    return [_part(one, kind, f"{at}[{number}]") for number, one in enumerate(content)]


def _part(part: Part, kind: str, at: str) -> dict[str, Any]:
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
