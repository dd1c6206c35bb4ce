"""`fewbit run`."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, closing
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..errors import FewbitError
from .chat import CHAT_TOKENS, converse
from .completion import ModelName
from .group import INTERRUPTED
from .model import load, model_and_prompt
from .options import (
    as_json,
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
from .output import print_json, shown, tell
from .prefill import after_prefill
from .printer import Printer, answer_facts, cut_note, figures
from .prompt import read_prompt
from .remote import RemoteModel, RemoteStream, Server, open_remote, remote_arguments

if TYPE_CHECKING:
    from ..llm import LLM, Completion, Stream


@click.command()
@click.argument("model", required=False, type=ModelName())
@click.argument("prompt", metavar="[PROMPT]", nargs=-1)
@click.option("-f", "--file", metavar="FILE", help="Take the prompt from a file; after PROMPT if there is one too.")
@system_option
@click.option("--raw", is_flag=True, help="Continue the text; no chat template.")
@max_tokens_option(512)
@stop_option
@sampling_options
@model_options
@server_option
@quiet_option
@as_json
def run(
    model: str | None,
    prompt: tuple[str, ...],
    file: str | None,
    system: str | None,
    raw: bool,
    max_tokens: int,
    stop: tuple[str, ...],
    server: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Answer one prompt, or begin a conversation.

    MODEL is a GGUF file, a folder with safetensors, a URL, hf:org/repo or a name (fewbit pull --list). One argument
    that names no model, and does not look like one, is a prompt for the default model. Standard input, if something is
    piped into it or PROMPT is -, comes after PROMPT. Without a prompt on a terminal this is `fewbit chat`. The answer
    goes to standard output, everything else to standard error.

    \b
    Examples:
      fewbit run "Why is the sky blue?"
      fewbit run qwen3:4b
      fewbit run model.gguf "Write a haiku." --temp 0 -n 64
      fewbit run "Sum this up:" < report.txt
      fewbit run model.gguf --raw "Once upon a time" --stop "The end"
      fewbit run checkpoint/ "Name three colours." --format q4_k_m
      fewbit run --server http://127.0.0.1:8000 "Why is the sky blue?" -q
    """
    remote = None if server is None else Server(server)
    read = model_and_prompt if remote is None else partial(remote_arguments, remote)
    chosen, argument = read(model, prompt)
    if raw and system is not None:
        raise click.UsageError("--system needs a chat template, and --raw uses none; leave one of them out")
    of_model, sampling = split_options(options)
    settings = {"max_tokens": max_tokens, **stop_setting(stop), **given(sampling)}
    is_talk = argument is None and file is None and not raw and not as_json and is_typed()
    text = "" if is_talk else read_prompt(argument, file)
    opened: AbstractContextManager[LLM | RemoteModel]
    opened = load(chosen, **of_model) if remote is None else open_remote(remote, chosen)
    with opened as llm:
        if is_talk:
            converse(llm, system, settings | chat_length())
            return
        with closing(begin(llm, text, system, raw, settings)) as stream:
            is_default = chosen is None and remote is None
            hint = ", the default; fewbit run MODEL PROMPT asks another" if is_default else ""
            tell(f"model: {shown(llm.model_name)}{hint}")
            interrupted = answer(llm, stream, max_tokens, as_json)
    if interrupted:
        click.get_current_context().exit(INTERRUPTED)


def is_typed() -> bool:
    """Whether someone types: standard input is a terminal."""
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


def chat_length() -> dict[str, int]:
    """Answers of a conversation are longer, unless --max-tokens says otherwise."""
    source = click.get_current_context().get_parameter_source("max_tokens")
    return {"max_tokens": CHAT_TOKENS} if source is ParameterSource.DEFAULT else {}


def begin(
    llm: LLM | RemoteModel, text: str, system: str | None, raw: bool, settings: dict[str, Any]
) -> Stream | RemoteStream:
    if raw or not llm.can_chat:
        if system is not None:
            raise FewbitError("the model has no chat template, which --system needs; put the text into the prompt")
        if not raw:
            tell("fewbit: the model has no chat template; it continues the text")
        return llm.stream(text, **settings)
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return llm.chat(messages, stream=True, **settings)


def answer(llm: LLM | RemoteModel, stream: Stream | RemoteStream, max_tokens: int, as_json: bool) -> bool:
    """Print an answer and its figures; whether Ctrl-C stopped it."""
    completion, interrupted = print_answer(stream, silent=as_json)
    if as_json:
        print_json(answer_facts(llm.model_name, completion))
    else:
        tell(figures(completion))
    if note := cut_note(completion, llm.ctx, max_tokens):
        tell(note)
    return interrupted


def print_answer(stream: Stream | RemoteStream, silent: bool) -> tuple[Completion, bool]:
    """Print an answer as it comes; what came of it, and whether Ctrl-C stopped it."""
    printer = Printer()
    interrupted = False
    try:
        for text in after_prefill(stream, lambda: stream.prompt_done):
            if not silent:
                printer.write(text)
    except KeyboardInterrupt:
        interrupted = True
        stream.close()
    finally:
        printer.end_line()
    return stream.completion, interrupted
