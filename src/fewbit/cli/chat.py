"""`fewbit chat`."""

from __future__ import annotations

import sys
from typing import Any

import click

from ..errors import FewbitError
from .model import load
from .options import given, model_options, sampling_options, split_options


@click.command()
@click.argument("model", required=False)
@click.option("--system", metavar="TEXT", help="What the model is told before all else.")
@click.option(
    "--max-tokens", type=click.IntRange(1), default=1024, show_default=True, metavar="N", help="Longest answer."
)
@sampling_options
@model_options
def chat(model: str | None, system: str | None, max_tokens: int, **options: Any) -> None:
    """Talk with a model.

    MODEL is a GGUF file, a URL, hf:org/repo or a built-in name; without one the default model answers. Ctrl-C stops
    an answer, Ctrl-D leaves, /help lists the commands, three quotes begin and end a message of several lines. Where
    standard input is no terminal, each line of it is a message.

    \b
    Examples:
      fewbit chat
      fewbit chat model.gguf --system "Answer in one sentence."
      fewbit chat hf:org/repo --temp 0.2 --kv q8_0
      printf 'Hi!\\nWhat did I just say?\\n' | fewbit chat
    """
    from ..files.hub import cache_folder
    from .conversation import Conversation
    from .screen import History, Lines, Terminal
    from .talk import talk

    if sys.stdin is None:
        raise FewbitError("there is no standard input to read messages from")
    of_model, settings = split_options(options)
    with load(model, **of_model) as llm:
        if not llm.tokenizer.chat_templates:
            raise FewbitError("the model has no chat template, and so cannot talk; `fewbit run` continues a text")
        conversation = Conversation(llm, system, {"max_tokens": max_tokens, **given(settings)})
        if not sys.stdin.isatty():
            talk(conversation, Lines())
            return
        screen = Terminal()
        screen.note(f"{llm.model_name}, {llm.ctx} tokens of context; /help lists the commands")
        with History(cache_folder() / "history"):
            talk(conversation, screen)
