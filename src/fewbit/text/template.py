"""Chat templates: messages to the prompt that the model was trained on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from ..errors import TemplateError
from .marks import is_mark
from .sandbox import MAX_CHARS, MAX_SECONDS, BoundedEnvironment, bounded, check_size, shown
from .tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_INDENT_CHARS = MAX_CHARS >> 6  # so that an indent is at most 64 wide


class ChatTemplate:
    """A Jinja chat template as Hugging Face models have them, run in a sandbox.

    Args:
        source: The template.
        bos_token: Text of the token that begins a text.
        eos_token: Text of the token that ends a text.
        clock: Where `strftime_now` in a template gets the time from.

    >>> template = ChatTemplate("{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}", "^")
    >>> template.render([{"role": "user", "content": "hi"}])
    '^user: hi'
    """

    def __init__(
        self, source: str, bos_token: str = "", eos_token: str = "", clock: Callable[[], datetime] = datetime.now
    ) -> None:
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._environment = _environment(clock)
        with _errors_of("cannot be read"):
            self._template = self._environment.from_string(source)

    @classmethod
    def for_tokenizer(cls, tokenizer: Tokenizer, name: str = "default") -> ChatTemplate:
        """The template of a model file, or ChatML if its vocabulary has the tokens for it.

        Args:
            tokenizer: The tokenizer of the model, which holds its templates.
            name: Name of the template, where a model has several.
        """
        source = find_source(tokenizer, name)
        if source is None:
            known = ", ".join(tokenizer.chat_templates) or "none"
            raise TemplateError(
                f"the model has no chat template {name!r} (it has {known}), and its tokens do not tell how it was "
                "trained; give a template, or use plain text"
            )
        return cls(source, tokenizer.bos_token, tokenizer.eos_token)

    def literals(self) -> set[str]:
        """The string constants in the template's expressions."""
        with _errors_of("cannot be read"):
            found = self._environment.parse(self.source).find_all(nodes.Const)
            return {node.value for node in found if isinstance(node.value, str)}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        max_seconds: float = MAX_SECONDS,
        **variables: Any,
    ) -> str:
        """The prompt for messages.

        Args:
            messages: Dicts with `role` and `content`.
            tools: Functions that the model may call, as OpenAI's clients describe them.
            add_generation_prompt: End with the header of the assistant's answer.
            max_seconds: Time limit for the template.
            **variables: Other variables of the template, such as `enable_thinking`.
        """
        names: dict[str, Any] = {**self._tokens, "messages": messages, "tools": tools, "documents": None}
        names |= {"add_generation_prompt": add_generation_prompt, **variables}
        parts, size = [], 0
        with _errors_of("refuses these messages"), bounded(max_seconds):
            for part in self._template.generate(names):
                parts.append(part)
                size += len(part)
                check_size(size)
        return "".join(parts)


def find_source(tokenizer: Tokenizer, name: str = "default") -> str | None:
    """The source of a template: the file's; else ChatML, if the model has the tokens for it."""
    source = tokenizer.chat_templates.get(name)
    if source is None and name == "default" and None not in map(tokenizer.token_id, ("<|im_start|>", "<|im_end|>")):
        return CHATML
    return source


class _Generation(Extension):
    """`{% generation %}` marks what the assistant said, for training; here it only holds its text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment(clock: Callable[[], datetime]) -> BoundedEnvironment:
    environment = BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: clock().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own it leaves <, > and & as they are."""
    check_size(_INDENT_CHARS * (len(indent) if isinstance(indent, str) else indent or 0))
    shown(value)
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return _NOT_ASCII.sub(_escaped, text) if ensure_ascii else text


def _escaped(found: re.Match[str]) -> str:
    return found[0] if is_mark(found[0]) else json.dumps(found[0])[1:-1]


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


@contextmanager
def _errors_of(what: str) -> Iterator[None]:
    """What goes wrong in a template, as one kind of error. Anything can: it is a program from somewhere else."""
    try:
        yield
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"the chat template {what}: {error.message} in line {error.lineno}") from error
    except jinja2.TemplateError as error:
        raise TemplateError(f"the chat template {what}: {error.message}") from error
    except Exception as error:
        raise TemplateError(f"the chat template {what}: {type(error).__name__}: {error}") from error
