"""Chat prompts: messages, by the model's template, to the text that is tokenized."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from operator import add
from typing import Any, NamedTuple

from ..errors import RequestError, TemplateError, ToolsIgnored
from .images import ImageMark, count_images
from .marks import Marker, choose_mark
from .messages import render_messages, text_of
from .reply import ReplyFormat, find_format
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
    answer: str | None = None  # the text that the answer continues
    image: str = ""  # the character that stands for an image; "": there is none

    @property
    def unmarked(self) -> str:
        return self.text.replace(self.mark, "") if self.mark else self.text

    def with_images(self, texts: Sequence[str]) -> ChatPrompt:
        """The prompt with the text of each image in its place."""
        if not self.image:
            return self
        first, *rest = self.text.split(self.image)
        return self._replace(text=first + "".join(map(add, texts, rest)), image="")

    def encode(self, tokenizer: Tokenizer) -> list[int]:
        """Its token ids. The template writes BOS itself, if there is to be one."""
        return tokenizer.encode(self.text, parse_special=True, mark=self.mark)


class ChatTemplates:
    """The chat templates of a model.

    Args:
        tokenizer: The model's tokenizer, which has their sources.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._templates: dict[str, tuple[ChatTemplate, Marker]] = {}
        self._formats: dict[str, ReplyFormat] = {}

    def template(self, has_tools: bool = False) -> ChatTemplate:
        """The usual template; where there are tools the one for them, if the model has one."""
        return self._find(has_tools)[0]

    def prompt(
        self,
        messages: Messages,
        tools: Tools = None,
        names: Mapping[str, Any] | None = None,
        trust_content: bool = False,
        continue_final_message: bool = False,
        refuse_ignored_tools: bool = False,
        image_placeholder: str = "",
    ) -> ChatPrompt:
        """The prompt for an answer.

        Args:
            messages: The conversation.
            tools: Functions that the model may call.
            names: What else the template looks for, such as `enable_thinking`.
            trust_content: Special tokens that messages spell count as such.
            continue_final_message: The prompt ends with the text of the last message, which the answer continues.
            refuse_ignored_tools: Raise an error, and not a warning, if the template ignores tools.
            image_placeholder: What templates of the model write for an image.
        """
        names = {**(names or {})}
        for name in _RESERVED:
            if name in names:
                raise RequestError(f"template cannot set {name}; give it as an argument of its own")
        template, marker = self._find(bool(tools))
        mark = "" if trust_content else choose_mark(template.source, messages, tools)

        num_images = count_images(messages)
        char = choose_mark(template.source, messages, tools, mark) if num_images else ""

        def render(messages: Messages, tools: Tools, **changed: Any) -> str:
            def make(form: Messages) -> str:
                return template.render(*marker.mark([form, tools], mark), **(names | changed))

            images = ImageMark(char, image_placeholder, count_images(messages)) if char else None
            return render_messages(messages, make, mark, images)

        final = None
        if continue_final_message:
            if names.get("add_generation_prompt"):
                raise RequestError("continue_final_message adds no generation prompt, so template cannot ask for one")
            final = FinalMessage(messages, choose_mark(template.source, messages, tools, mark, char))

        def write(tools: Tools) -> str:
            if final is None:
                return render(messages, tools)
            if final.has_thoughts:
                return final.after(render(messages[:-1], tools), marker.mark(final.text, mark))
            return final.cut(render(final.messages, tools, add_generation_prompt=False))

        text = write(tools)
        if tools and _ignores_tools(write, text):
            if refuse_ignored_tools:
                raise ToolsIgnored(_IGNORED)
            warnings.warn(_IGNORED, stacklevel=_caller_level())
        return ChatPrompt(text, mark, None if final is None else final.text, char)

    def format(self, has_tools: bool = False) -> ReplyFormat:
        """How the model writes replies, by its template."""
        template, _ = self._find(has_tools)
        if template.source not in self._formats:
            known = find_format(template.source, lambda text: self._tokenizer.token_id(text) is not None)
            self._formats[template.source] = known
        return self._formats[template.source]

    def _find(self, has_tools: bool) -> tuple[ChatTemplate, Marker]:
        name = "tool_use" if has_tools and "tool_use" in self._tokenizer.chat_templates else "default"
        if name not in self._templates:
            template = ChatTemplate.for_tokenizer(self._tokenizer, name)
            self._templates[name] = template, Marker(self._tokenizer.control_texts(), template.literals())
        return self._templates[name]


class FinalMessage:
    """The assistant's message that an answer continues: it says where the prompt ends.

    Templates end a message with special tokens, and some strip it. So `messages` are rendered with `end`, a character
    that stands nowhere else, after the text, and the prompt is `cut` there.

    Templates drop or rewrite the thoughts of earlier answers. A text that `has_thoughts` follows the generation prompt
    unchanged, since that is where the model wrote it.
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


def _ignores_tools(write: Callable[[Tools], str], text: str) -> bool:
    try:
        return write(None) == text
    except TemplateError:
        return False


def _caller_level() -> int:
    """The `stacklevel` at which a warning names the line that called fewbit."""
    level, frame = 0, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("fewbit."):
        level, frame = level + 1, frame.f_back
    return level + 1
