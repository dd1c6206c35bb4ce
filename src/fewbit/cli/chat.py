"""`fewbit chat`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ..errors import FewbitError
from .completion import ModelName
from .model import load
from .options import (
    given,
    max_tokens_option,
    model_options,
    quiet_option,
    sampling_options,
    server_option,
    split_options,
    stop_option,
    stop_setting,
    system_option,
)
from .output import is_quiet
from .remote import RemoteModel, Server, open_remote

if TYPE_CHECKING:
    from ..llm import LLM

CHAT_TOKENS = 1024  # of an answer


@click.command()
@click.argument("model", required=False, type=ModelName())
@system_option
@max_tokens_option(CHAT_TOKENS)
@stop_option
@sampling_options
@model_options
@server_option
@quiet_option
@click.option("--json", "as_json", is_flag=True, help="Print each answer as JSON, on a line.")
def chat(
    model: str | None,
    system: str | None,
    max_tokens: int,
    stop: tuple[str, ...],
    server: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Talk with a model.

    MODEL is a GGUF file, a URL, hf:org/repo or a name; without one the default model answers. Ctrl-C stops an answer,
    Ctrl-D leaves, /help lists the commands, Tab completes them. What is typed during an answer is kept for the next
    message. Lines that are pasted together are one message; so is what stands between three quotes. Where standard
    input is not a terminal, each line of it is a message. When the context is full, the model no longer sees the oldest
    messages.

    \b
    Examples:
      fewbit chat
      fewbit chat model.gguf --system "Answer in one sentence."
      fewbit chat --server http://127.0.0.1:8000
      fewbit chat hf:org/repo --temp 0.2 --kv q8_0
      printf 'Hi!\\nWhat did I just say?\\n' | fewbit chat --json
    """
    if sys.stdin is None:
        raise FewbitError("there is no standard input to read messages from")
    of_model, settings = split_options(options)
    limits = {"max_tokens": max_tokens, **stop_setting(stop), **given(settings)}
    with load(model, **of_model) if server is None else open_remote(Server(server), model) as llm:
        converse(llm, system, limits, as_json)


def converse(llm: LLM | RemoteModel, system: str | None, settings: dict[str, Any], as_json: bool = False) -> None:
    """A conversation with a model that is loaded, on the terminal or with lines of standard input."""
    from ..files.hub import cache_folder
    from .conversation import Conversation
    from .screen import History, JsonLines, Lines, Terminal
    from .talk import talk

    if not getattr(llm, "can_chat", True):
        raise FewbitError('the model has no chat template, so it cannot chat; fewbit run MODEL "TEXT" continues a text')
    conversation = Conversation(llm, system, settings, llm.count_tokens)
    if as_json or not sys.stdin.isatty():
        talk(conversation, JsonLines(llm.model_name) if as_json else Lines())
        return
    screen = Terminal()
    if not is_quiet():
        context = f", {llm.ctx} tokens of context" if llm.ctx else ""
        screen.note(f"{llm.model_name}{context}; /help lists the commands, /bye leaves")
    with History(cache_folder() / "history"):
        talk(conversation, screen)
