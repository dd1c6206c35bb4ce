"""`fewbit chat`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from click.core import ParameterSource

from ..errors import FewbitError
from .model import load
from .options import given, max_tokens_option, model_options, sampling_options, split_options, system_option
from .remote import RemoteModel, Server


@click.command()
@click.argument("model", required=False)
@system_option
@max_tokens_option(1024)
@sampling_options
@model_options
@click.option("--server", metavar="URL", help="Talk with a model of a server; MODEL is its name there.")
@click.option("--json", "as_json", is_flag=True, help="Print each answer as JSON, on a line.")
def chat(
    model: str | None, system: str | None, max_tokens: int, server: str | None, as_json: bool, **options: Any
) -> None:
    """Talk with a model.

    MODEL is a GGUF file, a URL, hf:org/repo or a built-in name; without one the default model answers. Ctrl-C stops
    an answer, Ctrl-D leaves, /help lists the commands. Lines that are pasted together are one message; so is what
    stands between three quotes. Where standard input is not a terminal, each line of it is a message. When the context
    is full, the oldest messages are forgotten.

    \b
    Examples:
      fewbit chat
      fewbit chat model.gguf --system "Answer in one sentence."
      fewbit chat --server http://127.0.0.1:8000
      fewbit chat hf:org/repo --temp 0.2 --kv q8_0
      printf 'Hi!\\nWhat did I just say?\\n' | fewbit chat --json
    """
    from ..files.hub import cache_folder
    from ..llm import LLM
    from .conversation import Conversation
    from .screen import History, JsonLines, Lines, Terminal
    from .talk import talk

    if sys.stdin is None:
        raise FewbitError("there is no standard input to read messages from")
    of_model, settings = split_options(options)
    with remote(server, model) if server is not None else load(model, **of_model) as llm:
        if isinstance(llm, LLM) and not llm.can_chat:
            raise FewbitError("the model has no chat template, so it cannot chat; fewbit run continues a text")
        limits = {"max_tokens": max_tokens, **given(settings)}
        conversation = Conversation(llm, system, limits, llm.count_tokens)
        if as_json or not sys.stdin.isatty():
            talk(conversation, JsonLines(llm.model_name) if as_json else Lines())
            return
        screen = Terminal()
        screen.note(f"{llm.model_name}, {llm.ctx} tokens of context; /help lists the commands, /bye leaves")
        with History(cache_folder() / "history"):
            talk(conversation, screen)


@contextmanager
def remote(url: str, model: str | None) -> Iterator[RemoteModel]:
    """A model of a server. Options of models are the server's: they cannot be given here."""
    given_here = [
        name for name in split_options(click.get_current_context().params)[0]
        if click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]  # fmt: skip
    if given_here:
        option = f"--{given_here[0].replace('_', '-')}"
        raise click.UsageError(f"{option} is for models that are loaded here; give it to fewbit serve")
    yield RemoteModel(Server(url), model)
