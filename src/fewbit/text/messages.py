"""Messages as OpenAI's clients send them, in the ways that chat templates take them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..errors import RequestError, TemplateError
from .images import ImageMark, as_parts, with_chars

Message = dict[str, Any]
Render = Callable[[list[Message]], str]


def render_messages(
    messages: Sequence[Mapping[str, Any]], render: Render, mark: str = "", image: ImageMark | None = None
) -> str:
    """What a template makes of messages, in the first form that it takes and shows.

    Templates differ: one wants the arguments of a tool call as an object, another as the JSON that they came as; one
    has a place for tool calls, another leaves them out. What `render` gives may hold marks. `image` stands for images.
    """
    first: str | None = None
    error: TemplateError | None = None
    for form in forms(messages) if image is None else image_forms(messages, image.char):
        try:
            text = render(form) if image is None else image.find(render(form))
        except TemplateError as refused:
            error = error or refused
            continue
        if _shows(text.replace(mark, "") if mark else text, form, None if image is None else image.char):
            return text
        first = text if first is None else first
    if first is None:
        raise error or TemplateError("there are no messages")
    return first


def forms(messages: Sequence[Mapping[str, Any]]) -> Iterator[list[Message]]:
    """The forms of messages, the most usual first."""
    plain = [_plain(message, number) for number, message in enumerate(messages)]
    yield plain
    empty = [_without_null(message) for message in plain]
    if empty != plain:
        yield empty
    if any("tool_calls" in message for message in plain):
        yield [_with_json(message) for message in plain]
        yield [_with_json(message) for message in empty]
    flat = flattened(empty)
    if flat != empty:
        yield flat
    yield [_with_parts(message) for message in empty]
    if flat != empty:
        yield [_with_parts(message) for message in flat]


def image_forms(messages: Sequence[Mapping[str, Any]], char: str) -> Iterator[list[Message]]:
    """The same where the character stands for images: with all texts as parts, with those beside images, with none."""
    every = [*forms([with_chars(message, char) for message in messages])]
    texts = [form for form in every if not any(isinstance(message["content"], list) for message in form)]
    for form in texts:
        if all(message["content"] is not None for message in form):
            yield [as_parts(message, char) for message in form]
    for form in texts:
        yield [as_parts(one, char) if char in (one["content"] or "") else one for one in form]
    yield from every


def flattened(messages: Sequence[Message]) -> list[Message]:
    """Tool calls and their results as text, for a template that knows neither.

    >>> call = {"function": {"name": "f", "arguments": {"x": 1}}}
    >>> flattened([{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "2"}])
    ... # doctest: +NORMALIZE_WHITESPACE
    [{'role': 'assistant', 'content': '{"tool_call": {"name": "f", "arguments": {"x": 1}}}'},
     {'role': 'user', 'content': '{"tool_result": "2"}'}]
    """
    found: list[Message] = []
    for message in messages:
        kept = {key: value for key, value in message.items() if key not in ("tool_calls", "tool_call_id")}
        calls = [_json({"tool_call": call.get("function", call)}) for call in message.get("tool_calls", ())]
        if calls:
            kept["content"] = "\n".join([*filter(None, [message["content"]]), *calls])
        if message["role"] != "tool":
            found.append(kept)
            continue
        text = _json({"tool_result": message["content"]})
        if found and found[-1].pop("is_result", False):  # several results are one message: roles may have to alternate
            text = f"{found.pop()['content']}\n{text}"
        found.append({"role": "user", "content": text, "is_result": True})
    return [{key: value for key, value in message.items() if key != "is_result"} for message in found]


def text_of(content: Any, which: str) -> str | None:
    """The text of a content: a string, or a list of parts.

    >>> text_of([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "message 0")
    'a\\nb'
    """
    if content is None or isinstance(content, str):
        return content
    return "\n".join(_part_text(part, which) for part in content)


def _part_text(part: Any, which: str) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, Mapping) else None
    if isinstance(part, Mapping) and part.get("type", "text") in ("text", "input_text") and isinstance(text, str):
        return text
    kind = repr(part.get("type")) if isinstance(part, Mapping) else type(part).__name__
    raise RequestError(f"{which} has a part that is not text ({kind}): the model reads text only")


def _plain(message: Mapping[str, Any], number: int) -> Message:
    plain = {**message, "content": text_of(message.get("content"), f"message {number}")}
    calls = plain.pop("tool_calls", None)
    if calls:
        plain["tool_calls"] = [_with_arguments(call, _parsed) for call in calls]
    return plain


def _without_null(message: Message) -> Message:
    return {**message, "content": ""} if message["content"] is None else message


def _with_parts(message: Message) -> Message:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def _with_json(message: Message) -> Message:
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [_with_arguments(call, _json) for call in calls]} if calls else message


def _with_arguments(call: Any, change: Callable[[Any], Any]) -> Any:
    if not isinstance(call, Mapping):
        raise RequestError(f"a tool call is a dict with a function, not {type(call).__name__}")
    function = call.get("function")
    if not isinstance(function, Mapping):
        return dict(call)
    return {**call, "function": {**function, "arguments": change(function.get("arguments", {}))}}


def _parsed(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _shows(text: str, messages: Sequence[Message], image: str | None = None) -> bool:
    """Whether a prompt holds what was last asked, the tool calls and their results, and holds them as text."""
    if image is not None:
        return all(_shown(text, piece) for message in messages for piece in _pieces(message, image))
    contents = [message["content"] for message in messages]
    if ("None" in text and None in contents) or any(isinstance(one, list) and _repeats(text, one) for one in contents):
        return False
    asked = [message["content"] for message in messages if message["role"] == "user"][-1:]
    results = [message["content"] for message in messages if message["role"] == "tool"]
    calls = [call.get("function") for message in messages for call in message.get("tool_calls", ())]
    names = [function.get("name") for function in calls if isinstance(function, Mapping)]
    return all(_shown(text, text_of(one, "") or "") for one in [*asked, *results, *names])


def _pieces(message: Message, image: str) -> list[str]:
    """The texts of a message between its images. Templates may drop the thoughts of answers."""
    content = message["content"]
    if isinstance(content, list):
        return [part["text"] for part in content if "text" in part]
    return [] if content is None or "</think>" in content else content.split(image)


def _repeats(text: str, parts: list[Any]) -> bool:
    """Whether a list was printed, and not its text."""
    return str(parts) in text or json.dumps(parts, ensure_ascii=False) in text


def _shown(text: str, content: str) -> bool:
    inner = content.strip()
    return inner in text or json.dumps(inner, ensure_ascii=False)[1:-1] in text
