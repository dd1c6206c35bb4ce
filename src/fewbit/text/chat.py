"""Chat prompts: messages, by the model's template, to the text that is tokenized."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import RequestError, TemplateError, ToolsIgnored
from .marks import Marker, choose_mark
from .messages import render_messages, text_of
from .template import ChatTemplate
from .tokenizer import Tokenizer

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None

_RESERVED = ("messages", "tools", "max_seconds")
_THOUGHTS = "<think>", "</think>"
_OPENED = re.compile(r"<think>\s*(</think>\s*)?\Z")
_IGNORED = "the model's chat template ignores tools: the model is not told of them; describe them in a system message"


class ChatPrompt(NamedTuple):
    """A rendered prompt, and the mark that breaks the control tokens that messages spell in it; "": there is none."""

    text: str
    mark: str = ""

    @property
    def unmarked(self) -> str:
        return self.text.replace(self.mark, "") if self.mark else self.text

    def encode(self, tokenizer: Tokenizer) -> list[int]:
        """Its token ids. The template writes BOS itself, if there is to be one."""
        return tokenizer.encode(self.text, parse_special=True, mark=self.mark)


class Chat:
    """The chat templates of a model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._templates: dict[str, tuple[ChatTemplate, Marker]] = {}

    def template(self, has_tools: bool = False) -> ChatTemplate:
        """The usual template; where there are tools the one for them, if the model has one."""
        return self._find(has_tools)[0]

    def prompt(
        self,
        messages: Messages,
        tools: Tools = None,
        names: Mapping[str, Any] | None = None,
        trust_content: bool = False,
        refuse_ignored_tools: bool = False,
        continue_final: bool = False,
    ) -> ChatPrompt:
        """The prompt for an answer, or with `continue_final` for the rest of the answer that the last message begins.

        `names` are what else the template looks for, such as `enable_thinking`.
        """
        template, marker = self._find(bool(tools))
        more = {**(names or {})}
        for name in _RESERVED:
            if name in more:
                raise RequestError(f"template cannot set {name}; give it as an argument of its own")
        mark = "" if trust_content else choose_mark(template.source, messages, tools)

        def render(messages: Messages, tools: Tools, **changed: Any) -> str:
            def make(form: Messages) -> str:
                return template.render(*marker.mark([form, tools], mark), **(more | changed))

            return render_messages(messages, make, mark)

        begun = None
        if continue_final:
            if more.get("add_generation_prompt"):
                raise RequestError("continue_final_message adds no generation prompt, so template cannot ask for one")
            begun = Begun(messages, choose_mark(template.source, messages, tools, mark))

        def write(tools: Tools) -> str:
            if begun is None:
                return render(messages, tools)
            if begun.has_thoughts:
                return begun.after(render(messages[:-1], tools), marker.mark(begun.text, mark))
            return begun.cut(render(begun.messages, tools, add_generation_prompt=False))

        text = write(tools)
        if tools and _ignored(write, text):
            if refuse_ignored_tools:
                raise ToolsIgnored(_IGNORED)
            warnings.warn(_IGNORED, stacklevel=5)
        return ChatPrompt(text, mark)

    def _find(self, has_tools: bool) -> tuple[ChatTemplate, Marker]:
        name = "tool_use" if has_tools and "tool_use" in self._tokenizer.chat_templates else "default"
        if name not in self._templates:
            template = ChatTemplate.for_tokenizer(self._tokenizer, name)
            self._templates[name] = template, Marker(self._tokenizer.control_texts(), template.literals())
        return self._templates[name]


class Begun:
    """An answer that the last message begins: where its prompt ends.

    Templates end a message with special tokens, and some strip it. So `messages` are rendered with `end`, a character
    that stands nowhere else, at the end of the text, and the prompt is `cut` there.

    Templates drop or rewrite thoughts, as they should for earlier answers. A text that `has_thoughts` is put after the
    generation prompt as it is, since that is where the model wrote it.
    """

    def __init__(self, messages: Messages, end: str) -> None:
        last = messages[-1] if messages else {}
        if last.get("role") != "assistant" or last.get("tool_calls"):
            found = "tool calls" if last.get("tool_calls") else f"the role {last.get('role')!r}"
            raise RequestError(f"continue_final_message needs an assistant's text as the last message, got {found}")
        self.text = text_of(last.get("content"), f"message {len(messages) - 1}") or ""
        self.messages = [*messages[:-1], {**last, "content": self.text + end}]
        self._end = end

    @property
    def has_thoughts(self) -> bool:
        return any(tag in self.text for tag in _THOUGHTS)

    def cut(self, prompt: str) -> str:
        if self._end not in prompt:
            raise TemplateError("the chat template leaves the last message out, so it cannot be continued")
        return prompt[: prompt.rindex(self._end)]

    def after(self, prompt: str, text: str) -> str:
        """The text after a generation prompt; if both open the thoughts, the text does."""
        if self.text.lstrip().startswith("<think>"):
            prompt = _OPENED.sub("", prompt)
        return prompt + text


def _ignored(write: Callable[[Tools], str], text: str) -> bool:
    try:
        return write(None) == text
    except TemplateError:
        return False
