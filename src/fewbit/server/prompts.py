"""Prompts of conversations: tools that the template ignores, answers to continue, messages that do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache
from typing import Any, NamedTuple, TypeVar

from ..errors import RequestError, TemplateError, TooLong, ToolsIgnored
from ..llm import LLM
from ..text.reply import HERMES
from .log import log
from .replies import ReplyStyle
from .volatile import without_volatile

Message = Mapping[str, Any]
T = TypeVar("T")
TAIL_TOKENS = 16  # of a prompt, among which is what opens a thought

_TOOL_PROMPT = """You can call these functions:
{tools}

To call one, write a JSON object with its name and arguments, like this and without other text:
<tool_call>
{{"name": "function name", "arguments": {{"argument": "value"}}}}
</tool_call>
The next message has the result. If no function helps, answer as usual."""


@dataclass(frozen=True, slots=True)
class ChatInput:
    """What is asked of a model that chats.

    Args:
        messages: As `LLM.chat` takes them.
        tools: Functions that the model may call.
        needs_call: It must call one: if the template ignores tools, a message tells of them.
        is_parallel: There may be several calls in an answer.
        template: Names that the chat template looks for.
        continues: Whether the answer continues the last message; None if that is the assistant's.
        policy: What happens to tools that the template ignores: "omit", "prompt" (a message tells of them) or "refuse".
        keeps_volatile: Lines of system messages that change in every request stay where they are; see volatile.py.
    """

    messages: Sequence[Message]
    tools: Sequence[Message] | None = None
    template: Mapping[str, Any] | None = None
    continues: bool | None = None
    policy: str = "omit"
    keeps_volatile: bool = False
    needs_call: bool = False
    is_parallel: bool = True

    def options(self) -> dict[str, Any]:
        """The options of `LLM.chat_prompt`."""
        return {"tools": self.tools, "template": self.template, "continue_final_message": bool(self.continues)}


@dataclass(slots=True)
class Prompt:
    """Token ids, the tools that the model knows of, how it writes its reply, and what was left out of the request."""

    tokens: list[int]
    style: ReplyStyle
    tools: Sequence[Message] | None = None
    ignored: list[str] = field(default_factory=list)
    messages: Sequence[Message] = ()  # whose images it has


class Truncation(NamedTuple):
    """A prompt of more than `most` tokens loses its oldest messages until it has at most `target`."""

    most: int
    target: int


def chat_prompt(llm: LLM, chat: ChatInput, truncation: Truncation | None = None) -> Prompt:
    """The prompt of a conversation."""
    if not llm.can_chat:
        raise RequestError(f"{llm.model_name} has no chat template, so it cannot chat; use /v1/completions")
    chat, changed = _prepared(replace(chat, messages=llm.take_images(chat.messages)))
    prompt = _prompt(llm, chat) if truncation is None else _shortened(llm, chat, truncation)
    prompt.ignored += changed
    return prompt


def count_tokens(llm: LLM, chat: ChatInput) -> int:
    """Number of tokens of a conversation's prompt, whether they fit into the context or not."""
    return _rendered(llm.count_tokens, _prepared(chat)[0])[0]


def _prepared(chat: ChatInput) -> tuple[ChatInput, list[str]]:
    """The conversation as it is rendered, and what was changed in it."""
    chat = with_last_message(chat)
    messages, changed = (chat.messages, []) if chat.keeps_volatile else without_volatile(chat.messages)
    return replace(chat, messages=messages), changed


def with_last_message(chat: ChatInput) -> ChatInput:
    """The same, knowing whether the last message is an answer to continue. An empty one is none.

    >>> chat = with_last_message(ChatInput([{"role": "assistant", "content": "I"}]))
    >>> chat.continues, with_last_message(ChatInput([{"role": "user", "content": "I"}])).continues
    (True, False)
    """
    last = chat.messages[-1] if chat.messages else {}
    is_answer = last.get("role") == "assistant" and not last.get("tool_calls")
    if is_answer and not last.get("content") and chat.continues is not False and len(chat.messages) > 1:
        return replace(chat, messages=chat.messages[:-1], continues=False)
    return replace(chat, continues=is_answer if chat.continues is None else chat.continues)


def _prompt(llm: LLM, chat: ChatInput) -> Prompt:
    tokens, found = _rendered(llm.chat_prompt, chat)
    is_omitted = bool(chat.tools) and found is not Told.TEMPLATE and found is not Told.MESSAGE
    tools = None if is_omitted else chat.tools or None
    style = _style(llm, chat, tokens, tools, found)
    return Prompt(tokens, style, tools, ["tools"] if is_omitted else [], chat.messages)


class Told(Enum):
    """Who tells the model of its tools."""

    NOBODY = 0
    TEMPLATE = 1
    MESSAGE = 2


def _rendered(render: Callable[..., T], chat: ChatInput) -> tuple[T, Told]:
    """What a function of the LLM makes of a conversation, and who tells the model of tools."""
    try:
        found = render(chat.messages, refuse_ignored_tools=True, **chat.options())
        return found, Told.TEMPLATE if chat.tools else Told.NOBODY
    except ToolsIgnored:
        if chat.policy == "refuse":
            raise
    options = replace(chat, tools=None).options()
    if chat.policy == "omit" and not chat.needs_call:
        return render(chat.messages, **options), Told.NOBODY
    text, messages = tool_prompt(chat.tools or ()), as_text(chat.messages)
    try:
        return render(joined(messages, "system", text), **options), Told.MESSAGE
    except TemplateError:  # it has no system messages
        return render(joined(messages, "user", text), **options), Told.MESSAGE


def _style(llm: LLM, chat: ChatInput, tokens: list[int], tools: Sequence[Message] | None, told_by: Told) -> ReplyStyle:
    """How the model writes its reply; in the form that the message asks for, if a message tells of tools."""
    found = llm.reply_format(bool(tools))
    form = replace(found, calls=HERMES.calls) if told_by is Told.MESSAGE else found
    if tools and not form.is_known:
        log_unknown_form(llm.model_name, form.name)
    tail = llm.tokenizer.decode(tokens[-TAIL_TOKENS:])
    answer = chat.messages[-1].get("content") if chat.continues else None
    opens = form.opens_thought(tail, answer if isinstance(answer, str) else None)
    may_think = form.thinks and not chat.continues and not form.ends_thought(tail)
    return ReplyStyle(form, tools or (), opens, may_think, None if chat.is_parallel else 1)


@cache
def log_unknown_form(model: str, form: str) -> None:
    """Say once for each model that its template does not tell how calls are written."""
    log("unknown template", model=model, reason=f"it does not tell how tool calls are written; assumed: {form}")


def tool_prompt(tools: Sequence[Message]) -> str:
    """What a model is told of tools whose chat template ignores them."""
    lines = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    return _TOOL_PROMPT.format(tools=lines)


def joined(messages: Sequence[Message], role: str, text: str) -> list[Message]:
    """The messages with a text before those of a role, in the first of them or in one of its own.

    >>> joined([{"role": "system", "content": "Be brief."}], "system", "Hi.")
    [{'role': 'system', 'content': 'Hi.\\n\\nBe brief.'}]
    """
    first = messages[0] if messages else {}
    if first.get("role") == role:
        content = first.get("content") or ""
        joined_content = [text, *content] if isinstance(content, list) else f"{text}\n\n{content}"
        return [{**first, "content": joined_content}, *messages[1:]]
    return [{"role": role, "content": text}, *messages]


def as_text(messages: Sequence[Message]) -> list[Message]:
    """Tool calls and results as text, in the form that the model is asked for.

    >>> as_text([{"role": "tool", "content": "2"}])
    [{'role': 'user', 'content': '<tool_response>\\n2\\n</tool_response>'}]
    """
    found: list[Message] = []
    for message in messages:
        content = message.get("content") or ""
        if message["role"] == "tool":
            found.append({"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"})
        elif calls := message.get("tool_calls"):
            texts = [content, *(_call_text(call["function"]) for call in calls)]
            found.append({"role": message["role"], "content": "\n".join(filter(None, texts))})
        else:
            found.append(message)
    return found


def _call_text(function: Message) -> str:
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {json.dumps(function["name"])}, "arguments": {arguments}}}\n</tool_call>'


def _shortened(llm: LLM, chat: ChatInput, limits: Truncation) -> Prompt:
    """System messages and the last message stay; of the others the oldest are left out. A result needs its call."""
    try:
        whole = _prompt(llm, chat)
        if len(whole.tokens) <= limits.most:
            return whole
    except TooLong:
        pass
    messages = chat.messages
    starts = [number for number, one in enumerate(messages) if number and one["role"] not in ("system", "tool")]
    found, low, high = None, 0, len(starts) - 1
    error = TooLong(f"the last message is too long: at most {limits.most} tokens fit")
    while low <= high:  # the first start from which the rest fits
        middle = (low + high) // 2
        kept = [one for number, one in enumerate(messages) if number >= starts[middle] or one["role"] == "system"]
        try:
            prompt = _prompt(llm, replace(chat, messages=kept))
            _check_length(prompt.tokens, limits.most if middle == len(starts) - 1 else limits.target)
            found, high = prompt, middle - 1
        except TooLong as too_long:
            error, low = too_long, middle + 1
    if found is None:
        raise error
    found.ignored.append("messages (the oldest)")
    return found


def _check_length(tokens: list[int], most: int) -> None:
    if len(tokens) > most:
        raise TooLong(f"a prompt of {len(tokens)} tokens is too long: at most {most} fit", len(tokens), most)
