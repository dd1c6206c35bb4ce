"""Messages to prompts, by the model's chat template."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, get_type_hints

from ..errors import DtypeError, RequestError
from ..validation import to_flag
from .images import ImagePrompts, PromptImage, images_of
from .prompts import PromptEncoder
from .replies import ReplyPlan
from .reply_constraint import ReplyRules, read_choice, reply_constraint
from .sampling_options import ChatOptions, PromptOptions, ReplyOptions, check_names, to_list
from .tools import describe, tool_name

if TYPE_CHECKING:
    from ..text.chat import ChatPrompt, ChatTemplates
    from ..text.grammar import ConstraintFactory, GrammarCompiler
    from ..text.reply import ReplyFormat

NO_BUDGET = "reasoning_budget needs a model that thinks between tags, and a prompt that lets it think"
logger = logging.getLogger(__name__)

ChatMessage = Mapping[str, Any]
Messages = Sequence[ChatMessage]


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """A conversation as it is run: what the model reads, and how its reply is read.

    Args:
        prompt: Token ids.
        reply: How the reply is read.
        hold: Makes what holds the reply of what holds its answer; None for either is nothing.
        options: The options that are those of `LLM.generate`.
        dropped: Messages that were left out, since they do not fit.
        images: Those of the conversation, in their order.
    """

    prompt: list[int]
    reply: ReplyPlan
    hold: Callable[[ConstraintFactory | None], ConstraintFactory | None]
    options: dict[str, Any]
    dropped: int = 0
    images: Sequence[PromptImage] = ()

    def constraint(self, given: Any) -> Any:
        """What holds the reply: a constraint that is given as such, or else one with the structure that is given."""
        return given if self.options.get("constraint") is not None else self.hold(given)


class ChatEncoder:
    """Makes the prompts of conversations.

    Args:
        prompts: Encodes their text.
        compiler: Gives the grammars of the model.
        images: Makes embeddings of images.
    """

    def __init__(self, prompts: PromptEncoder, compiler: Callable[[], GrammarCompiler], images: ImagePrompts) -> None:
        self._prompts, self._compiler, self._images = prompts, compiler, images
        self._has_warned = False
        self._controls: dict[str, dict[str, int]] = {}  # of each format

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
        return self._prompt(messages, refuse_ignored_tools, options).encode(self._prompts.tokenizer)

    def count(self, messages: Messages, refuse_ignored_tools: bool, options: PromptOptions) -> int:
        """Number of tokens of a conversation's prompt, whether it fits or not."""
        prompt = self._render(self._images.take(check_messages(messages)), refuse_ignored_tools, options)
        return len(prompt.encode(self._prompts.tokenizer))

    def plan_all(
        self, messages: Messages | Sequence[Messages], stream: bool, options: ChatOptions
    ) -> tuple[list[ChatPlan], bool]:
        """The plan of each conversation, and whether a list of them was given."""
        conversations, several = split_conversations(messages)
        if stream and several:
            raise RequestError("stream=True takes one conversation, got a list of them")
        return [self.plan(conversation, False, options) for conversation in conversations], several

    def plan(self, messages: Messages, refuse_ignored_tools: bool, options: ChatOptions) -> ChatPlan:
        """How a conversation is run."""
        self._prompts.engine.check_writes()
        rest: dict[str, Any] = {**options}
        own: Any = {name: rest.pop(name) for name in get_type_hints(PromptOptions) if name in rest}
        reply: Any = {name: rest.pop(name) for name in get_type_hints(ReplyOptions) if name in rest}
        tools = to_list(own.get("tools") or [], "tools must be a list of functions or dicts")
        choice = read_choice(reply.get("tool_choice") or "auto", [tool_name(tool) for tool in tools])
        if choice == "none":
            own["tools"], tools = None, []
        messages, dropped = self._images.take(check_messages(messages)), 0
        if to_flag(reply.get("truncate", False), "truncate"):
            messages, dropped = self._fitting(messages, own, rest.get("max_tokens", 256))
        prompt = self._prompt(messages, refuse_ignored_tools, own)
        tokens = prompt.encode(self._prompts.tokenizer)
        described = [describe(tool) for tool in tools]
        plan = self._planned(prompt, tokens, described, choice, reply, rest)
        return replace(plan, dropped=dropped, images=images_of(messages))

    def _fitting(
        self, messages: list[ChatMessage], options: PromptOptions, max_tokens: int | None
    ) -> tuple[list[ChatMessage], int]:
        """The messages that fit with room for an answer, and how many of the oldest were left out."""
        longest = self._prompts.engine.max_length
        room = min(longest // 4, max_tokens if isinstance(max_tokens, int) else longest)
        system = [one for one in messages if one["role"] == "system"]
        rest = [one for one in messages if one["role"] != "system"]
        starts = [0, *(i for i, one in enumerate(rest) if i and one["role"] == "user")]
        low, high = 0, len(starts) - 1
        while low < high:  # the first turn from which the rest fits
            middle = (low + high) // 2
            fits = self.count([*system, *rest[starts[middle] :]], False, options) + room <= longest
            low, high = (low, middle) if fits else (middle + 1, high)
        return (messages, 0) if low == 0 else ([*system, *rest[starts[low] :]], starts[low])

    def _planned(
        self, prompt: ChatPrompt, tokens: list[int], tools: list[dict[str, Any]], choice: Any,
        reply: ReplyOptions, rest: dict[str, Any],
    ) -> ChatPlan:  # fmt: skip
        from ..text.reply import tool_schemas

        format = self.templates.format(bool(tools))
        if tools and not format.is_known and not self._has_warned:
            self._has_warned = True
            logger.warning("the chat template does not tell how tool calls are written: %s", format.name)
        opens = format.opens_thought(prompt.unmarked, prompt.answer)
        is_parallel = to_flag(reply.get("parallel_tool_calls", True), "parallel_tool_calls")
        if rest.get("constraint") is not None and choice not in ("auto", "none"):
            raise RequestError("constraint and a tool_choice that demands a call cannot be used together")
        control = self.control_tokens(format)
        may_think, budget = format.thinks and not format.ends_thought(prompt.unmarked), reply.get("reasoning_budget")
        if budget is not None and not (format.calls.has_channels or (format.thought and (may_think or opens))):
            raise RequestError(
                "reasoning_budget needs a model that thinks between tags, and a prompt that lets it think"
            )
        rules = ReplyRules(
            format, control, tool_schemas(tools), choice["name"] if isinstance(choice, Mapping) else None,
            choice not in ("auto", "none"), is_parallel, may_think=may_think, opens_thought=opens,
            thought_tokens=budget,
        )  # fmt: skip
        hold = partial(reply_constraint, self._compiler, rules)
        plan = ReplyPlan(format, tools, opens, None if is_parallel else 1, frozenset(control.values()))
        return ChatPlan(tokens, plan, hold, rest)

    def control_tokens(self, format: ReplyFormat) -> dict[str, int]:
        """The control tokens that are part of a format, with their ids."""
        if format.name not in self._controls:
            tokenizer = self._prompts.tokenizer
            ids = {text: tokenizer.token_id(text) for text in format.visible_tokens(tokenizer.control_texts())}
            self._controls[format.name] = {text: token for text, token in ids.items() if token is not None}
        return self._controls[format.name]

    def _prompt(self, messages: Messages, refuse_ignored_tools: bool, options: PromptOptions) -> ChatPrompt:
        """A prompt that may fit."""
        messages = self._images.take(check_messages(messages))
        for message in messages:
            if message["role"] != "assistant" and isinstance(message.get("content"), str):
                self._prompts.refuse_long(message["content"])
        prompt = self._render(messages, refuse_ignored_tools, options)
        self._prompts.refuse_long(prompt.unmarked)
        return prompt

    def _render(self, messages: Messages, refuse_ignored_tools: bool, options: PromptOptions) -> ChatPrompt:
        check_names(options, PromptOptions)
        prompt = self.templates.prompt(
            messages, refuse_ignored_tools=refuse_ignored_tools, image_placeholder=self._images.placeholder,
            **_check_options(options),
        )  # fmt: skip
        return prompt.with_images([image.prepared.text for image in images_of(messages)])


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
        tools = to_list(tools, "tools must be a list of functions or dicts")
        for number, tool in enumerate(tools):
            if not isinstance(tool, Mapping) and not callable(tool):
                raise DtypeError(f"tools must be a list of functions or dicts, got {type(tool).__name__} at {number}")
        tools = [describe(tool) for tool in tools]
    if names is not None and (not isinstance(names, Mapping) or not all(isinstance(name, str) for name in names)):
        raise DtypeError(f'template must be a dict such as {{"enable_thinking": False}}, got {names!r}')
    names = {**_thinking(options), **(names or {})} or None
    flags = ("trust_content", "continue_final_message")
    return {"tools": tools, "names": names, **{name: to_flag(options.get(name, False), name) for name in flags}}


def _thinking(options: PromptOptions) -> dict[str, Any]:
    """The names by which chat templates are told how much to think."""
    effort, enabled = options.get("reasoning_effort"), options.get("enable_thinking")
    if effort is not None and not isinstance(effort, str):
        raise DtypeError(f'reasoning_effort must be a str such as "low", got {effort!r}')
    if enabled is None and effort == "none":
        enabled = False
    found: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    if enabled is not None:
        flag = to_flag(enabled, "enable_thinking")
        found |= {"enable_thinking": flag, "thinking": flag}  # some templates look for the one, some for the other
    return found


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
