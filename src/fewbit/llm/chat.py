"""Messages to prompts, by the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_type_hints

from ..errors import DtypeError, RequestError
from ..validation import to_flag
from .prompts import PromptEncoder
from .sampling_options import ChatOptions, PromptOptions, check_names, to_list

if TYPE_CHECKING:
    from ..text.chat import ChatPrompt, ChatTemplates

ChatMessage = Mapping[str, Any]
Messages = Sequence[ChatMessage]


class ChatEncoder:
    """Makes the prompts of conversations.

    Args:
        prompts: Encodes their text.
    """

    def __init__(self, prompts: PromptEncoder) -> None:
        self._prompts = prompts

    @property
    def can_chat(self) -> bool:
        """Whether there is a template, or the tokens of ChatML, and the model writes text."""
        from ..text.template import find_source  # Jinja is loaded when it is needed

        return not self._prompts.engine.is_encoder and find_source(self._prompts.tokenizer) is not None

    @cached_property
    def templates(self) -> ChatTemplates:
        """The chat templates of the model."""
        from ..text.chat import ChatTemplates

        return ChatTemplates(self._prompts.tokenizer)

    def encode(self, messages: Messages, refuse_ignored_tools: bool, options: PromptOptions) -> list[int]:
        """The token ids of a conversation's prompt. Messages that cannot fit are refused before they are rendered."""
        self._prompts.engine.check_writes()
        for message in check_messages(messages):
            if message["role"] != "assistant" and isinstance(message.get("content"), str):
                self._prompts.refuse_long(message["content"])
        prompt = self._render(messages, refuse_ignored_tools, options)
        self._prompts.refuse_long(prompt.unmarked)
        return prompt.encode(self._prompts.tokenizer)

    def count(self, messages: Messages, refuse_ignored_tools: bool, options: PromptOptions) -> int:
        """Number of tokens of a conversation's prompt, whether it fits or not."""
        prompt = self._render(check_messages(messages), refuse_ignored_tools, options)
        return len(prompt.encode(self._prompts.tokenizer))

    def encode_all(
        self, messages: Messages | Sequence[Messages], stream: bool, options: ChatOptions
    ) -> tuple[Any, dict[str, Any]]:
        """The prompt of a conversation, or a list for several, and the options that are not `PromptOptions`."""
        self._prompts.engine.check_writes()
        rest: dict[str, Any] = {**options}
        own: Any = {name: rest.pop(name) for name in get_type_hints(PromptOptions) if name in rest}
        conversations, several = split_conversations(messages)
        if stream and several:
            raise RequestError("stream=True takes one conversation, got a list of them")
        prompts = [self.encode(conversation, False, own) for conversation in conversations]
        return (prompts if several else prompts[0]), rest

    def _render(self, messages: Messages, refuse_ignored_tools: bool, options: PromptOptions) -> ChatPrompt:
        check_names(options, PromptOptions)
        return self.templates.prompt(messages, refuse_ignored_tools=refuse_ignored_tools, **_check_options(options))


def split_conversations(messages: Messages | Sequence[Messages]) -> tuple[list[list[ChatMessage]], bool]:
    """A list of conversations, checked, and whether a list was given.

    >>> hi = {"role": "user", "content": "hi"}
    >>> split_conversations([hi])[1], split_conversations([[hi], [hi]])[1]
    (False, True)
    """
    items = to_list(messages, "messages must be a list of dicts with role and content")
    if not items or not isinstance(items[0], list | tuple):
        return [check_messages(items)], False
    return [check_messages(item, f" of conversation {number}") for number, item in enumerate(items)], True


def check_messages(messages: Messages, where: str = "") -> list[ChatMessage]:
    """Messages as chat templates expect them: each has a role, and a content."""
    items = to_list(messages, f"messages{where} must be a list of dicts with role and content")
    if not items:
        raise RequestError(f"messages{where} must not be empty")
    for number, message in enumerate(items):
        _check_message(message, f"message {number}{where}")
    return items


def _check_options(options: PromptOptions) -> dict[str, Any]:
    tools, names = options.get("tools"), options.get("template")
    if tools is not None:
        tools = to_list(tools, "tools must be a list of dicts")
        for number, tool in enumerate(tools):
            if not isinstance(tool, Mapping):
                raise DtypeError(f"tools must be a list of dicts, got {type(tool).__name__} at {number}")
    if names is not None and (not isinstance(names, Mapping) or not all(isinstance(name, str) for name in names)):
        raise DtypeError(f'template must be a dict such as {{"enable_thinking": False}}, got {names!r}')
    flags = ("trust_content", "continue_final_message")
    return {"tools": tools, "names": names, **{name: to_flag(options.get(name, False), name) for name in flags}}


def _check_message(message: Any, which: str) -> None:
    if not isinstance(message, Mapping):
        raise DtypeError(f"{which} must be a dict with role and content, not {type(message).__name__}")
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise RequestError(
            f"{which} must have a role, such as 'user'; its keys are {', '.join(map(str, message)) or 'none'}"
        )
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise RequestError(f"{which} must have a content")
    if not isinstance(content, str | list | tuple | None):
        raise DtypeError(f"the content of {which} must be a str or a list of parts, not {type(content).__name__}")
