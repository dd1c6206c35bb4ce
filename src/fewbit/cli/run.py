"""`fewbit run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import FewbitError
from .group import INTERRUPTED
from .model import load, model_and_prompt
from .options import (
    as_json,
    given,
    max_tokens_option,
    model_options,
    sampling_options,
    split_options,
    system_option,
)
from .output import print_json, shown
from .prefill import after_prefill
from .printer import Printer, answer_facts, cut_note, figures
from .prompt import read_prompt

if TYPE_CHECKING:
    from ..llm import LLM, Completion, Stream


@click.command()
@click.argument("model", required=False)
@click.argument("prompt", metavar="[PROMPT]", nargs=-1)
@click.option("--file", metavar="FILE", help="Take the prompt from a file; after PROMPT if there is one too.")
@system_option
@click.option("--raw", is_flag=True, help="Continue the text; no chat template.")
@max_tokens_option(512)
@click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text; may be given again.")
@sampling_options
@model_options
@as_json
def run(
    model: str | None,
    prompt: tuple[str, ...],
    file: str | None,
    system: str | None,
    raw: bool,
    max_tokens: int,
    stop: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Answer one prompt.

    MODEL is a GGUF file, a folder with safetensors, a URL, hf:org/repo or a built-in name. One argument that is none of
    these, and does not look like one, is a prompt for the default model. Standard input, if something is piped into it
    or PROMPT is -, comes after PROMPT. The answer goes to standard output, all else to standard error.

    \b
    Examples:
      fewbit run "Why is the sky blue?"
      fewbit run model.gguf "Write a haiku." --temp 0
      fewbit run "Sum this up:" < report.txt
      fewbit run model.gguf --raw "Once upon a time" --max-tokens 64
      fewbit run checkpoint/ "Name three colours." --format q4_k_m
      fewbit run hf:org/repo "Name three colours." --json
    """
    chosen, argument = model_and_prompt(model, prompt)
    if raw and system is not None:
        raise click.UsageError("--system needs a chat template, and --raw uses none; leave one of them out")
    text = read_prompt(argument, file)
    of_model, sampling = split_options(options)
    settings = {"max_tokens": max_tokens, "stop": stop, **given(sampling)}
    with load(chosen, **of_model) as llm, begin(llm, text, system, raw, settings) as stream:
        default = ", the default; fewbit run MODEL PROMPT asks another" if chosen is None else ""
        click.echo(f"model: {shown(llm.model_name)}{default}", err=True)
        completion, interrupted = print_answer(stream, silent=as_json)
        if as_json:
            print_json(answer_facts(llm.model_name, completion))
        else:
            click.echo(figures(completion), err=True)
        if note := cut_note(completion, llm.ctx, max_tokens):
            click.echo(note, err=True)
    if interrupted:
        click.get_current_context().exit(INTERRUPTED)


def begin(llm: LLM, text: str, system: str | None, raw: bool, settings: dict[str, Any]) -> Stream:
    if raw or not llm.can_chat:
        if system is not None:
            raise FewbitError("the model has no chat template, which --system needs; put the text into the prompt")
        if not raw:
            click.echo("fewbit: the model has no chat template; it continues the text", err=True)
        return llm.stream(text, **settings)
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return llm.chat(messages, stream=True, **settings)


def print_answer(stream: Stream, silent: bool) -> tuple[Completion, bool]:
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
