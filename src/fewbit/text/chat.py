"""Chat prompts: messages, by the model's template, to the text that is tokenized."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import RequestError, TemplateError
from .marks import Marker, choose_mark
from .messages import render_messages
from .template import ChatTemplate
from .tokenizer import Tokenizer

Tools = Sequence[Mapping[str, Any]] | None

_RESERVED = ("messages", "tools", "max_seconds")
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
        messages: Sequence[Mapping[str, Any]],
        tools: Tools = None,
        names: Mapping[str, Any] | None = None,
        trust_content: bool = False,
        refuse_ignored_tools: bool = False,
    ) -> ChatPrompt:
        """The prompt for an answer. `names` are what else the template looks for, such as `enable_thinking`."""
        template, marker = self._find(bool(tools))
        more = {**(names or {})}
        for name in _RESERVED:
            if name in more:
                raise RequestError(f"template cannot set {name}; give it as an argument of its own")
        mark = "" if trust_content else choose_mark(template.source, messages, tools)

        def render(given: Tools) -> str:
            return render_messages(
                messages, lambda form: template.render(*marker.mark([form, given], mark), **more), mark
            )

        text = render(tools)
        if tools and _ignored(render, text):
            if refuse_ignored_tools:
                raise RequestError(_IGNORED)
            warnings.warn(_IGNORED, stacklevel=4)
        return ChatPrompt(text, mark)

    def _find(self, has_tools: bool) -> tuple[ChatTemplate, Marker]:
        name = "tool_use" if has_tools and "tool_use" in self._tokenizer.chat_templates else "default"
        if name not in self._templates:
            template = ChatTemplate.for_tokenizer(self._tokenizer, name)
            self._templates[name] = template, Marker(self._tokenizer.control_texts(), template.literals())
        return self._templates[name]


def _ignored(render: Callable[[Tools], str], text: str) -> bool:
    try:
        return render(None) == text
    except TemplateError:
        return False
