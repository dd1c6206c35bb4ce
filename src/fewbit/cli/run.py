"""`fewbit run` and `fewbit chat`: one answer, or a conversation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..errors import FewbitError
from .completion import ModelName
from .group import INTERRUPTED
from .images import checked_path, with_images
from .model import load, model_and_prompt
from .options import answer_options, answer_settings, as_json
from .output import is_quiet, print_json, shown, tell
from .printer import Printer, answer_facts, cut_note, figures
from .progress import after_prefill
from .prompt import read_prompt
from .remote import RemoteModel, RemoteServer, RemoteStream, open_remote, remote_arguments

if TYPE_CHECKING:
    from ..llm import LLM, Completion, Stream
    from .conversation import Conversation
    from .tool_calls import ToolCaller

CHAT_TOKENS = 1024  # of an answer in a conversation


@click.command()
@click.argument("model", required=False, type=ModelName())
@click.argument("prompt", metavar="[PROMPT]", nargs=-1)
@click.option("-f", "--file", metavar="FILE", help="Take the prompt from a file; after PROMPT if there is one too.")
@click.option(
    "--image",
    "images",
    multiple=True,
    metavar="FILE",
    help="A picture for the prompt, of a model that sees; may be given again.",
)
@click.option("--raw", is_flag=True, help="Continue the text; no chat template.")
@answer_options(512)
@as_json
def run(
    model: str | None,
    prompt: tuple[str, ...],
    file: str | None,
    images: tuple[str, ...],
    system: str | None,
    raw: bool,
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
      fewbit run "Anna, 34, lives in Oslo." --schema person.json --json
      fewbit run "Is the sky blue?" --choice yes --choice no -q
      fewbit run checkpoint/ "Name three colours." --format q4_k_m
      fewbit run --server http://127.0.0.1:8000 "Why is the sky blue?" -q
      fewbit run gemma-3.gguf "What is this?" --image photo.jpg
    """
    refuse_lora(server, options)
    remote = None if server is None else RemoteServer(server)
    read = model_and_prompt if remote is None else partial(remote_arguments, remote)
    chosen, argument = read(model, prompt)
    if raw and system is not None:
        raise click.UsageError("--system needs a chat template, and --raw uses none; leave one of them out")
    if raw and images:
        raise click.UsageError("--image needs a chat template, and --raw uses none; leave one of them out")
    loading, settings = answer_settings(options)
    pictures = [*map(checked_path, images)]
    is_talk = argument is None and file is None and not raw and not as_json and not images and is_typed()
    text = "" if is_talk else read_prompt(argument, file)
    with open_model(remote, chosen, loading) as llm:
        if is_talk:
            converse(llm, system, settings | chat_length())
            return
        with closing(begin(llm, text, system, raw, settings, pictures)) as stream:
            is_default = chosen is None and remote is None
            hint = ", the default; fewbit run MODEL PROMPT asks another" if is_default else ""
            tell(f"model: {shown(llm.model_name)}{hint}")
            interrupted = answer(llm, stream, settings["max_tokens"], as_json)
    if interrupted:
        click.get_current_context().exit(INTERRUPTED)


@click.command()
@click.argument("model", required=False, type=ModelName())
@answer_options(CHAT_TOKENS)
@click.option("--json", "as_json", is_flag=True, help="Print each answer as JSON, on a line.")
@click.option(
    "--session",
    metavar="FILE",
    help="Keep the conversation in a file, and what was computed of it in FILE.kv; go on with it next time.",
)
@click.option("--mcp", "mcp_servers", multiple=True, metavar="SERVER",
              help="An MCP server whose tools the model may call: a command with its arguments, or an address; may be "
                   "given again. Each call is confirmed.")  # fmt: skip
def chat(
    model: str | None,
    system: str | None,
    server: str | None,
    as_json: bool,
    session: str | None,
    mcp_servers: tuple[str, ...],
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
      fewbit chat --session novel.json
      fewbit chat --mcp "python files.py" --mcp http://127.0.0.1:9000/mcp
      printf 'Hi!\\nWhat did I just say?\\n' | fewbit chat --json
    """
    if sys.stdin is None:
        raise FewbitError("there is no standard input to read messages from")
    refuse_lora(server, options)
    loading, settings = answer_settings(options)
    if session is not None and server is not None:
        raise click.UsageError("--session keeps what is computed here; leave it out with --server")
    with ExitStack() as stack:
        caller = open_tools(mcp_servers, stack) if mcp_servers else None
        remote = None if server is None else RemoteServer(server)
        llm = stack.enter_context(open_model(remote, model, loading))
        converse(llm, system, settings, as_json, caller, session)


def open_tools(servers: tuple[str, ...], stack: ExitStack) -> ToolCaller:
    """The tools of MCP servers, until the stack is closed."""
    from .mcp import open_mcp
    from .tool_calls import ToolCaller

    tools = stack.enter_context(open_mcp(servers))
    names = ", ".join(one["function"]["name"] for one in tools.described)
    tell(f"tools: {shown(names or 'none')}")
    return ToolCaller(tools)


def open_model(
    server: RemoteServer | None, model: str | None, loading: dict[str, Any]
) -> AbstractContextManager[LLM | RemoteModel]:
    return load(model, **loading) if server is None else open_remote(server, model)


def refuse_lora(server: str | None, options: dict[str, Any]) -> None:
    """A server has adapters of its own."""
    if server is not None and options["adapters"]:
        raise click.UsageError("--lora is for models of this machine; a server's adapters are models: BASE:ADAPTER")


def converse(
    llm: LLM | RemoteModel,
    system: str | None,
    settings: dict[str, Any],
    as_json: bool = False,
    caller: ToolCaller | None = None,
    session: str | None = None,
) -> None:
    """Hold a conversation on the terminal, or with the lines of standard input."""
    from .conversation import Conversation

    if not llm.can_chat:
        raise FewbitError('the model has no chat template, so it cannot chat; fewbit run MODEL "TEXT" continues a text')
    conversation = Conversation(llm, system, settings, llm.count_tokens, caller)
    with ExitStack() as stack:
        if session is not None:
            begin_session(session, llm, conversation, stack)
        hold(conversation, llm, as_json)


def begin_session(path: str, llm: Any, conversation: Conversation, stack: ExitStack) -> None:
    """Go on with a conversation in a file, and keep it there."""
    from .session import Session

    kept = Session(path, llm)
    tell(kept.resume(conversation))
    conversation.on_answer = kept.write
    stack.callback(kept.end, conversation)


def hold(conversation: Conversation, llm: LLM | RemoteModel, as_json: bool) -> None:
    from ..files.hub import cache_folder
    from .screen import History, InputLines, JsonLines, Terminal
    from .talk import talk

    if as_json or not sys.stdin.isatty():
        talk(conversation, JsonLines(llm.model_name) if as_json else InputLines())
        return
    screen = Terminal()
    if not is_quiet():
        context = f", {llm.ctx} tokens of context" if llm.ctx else ""
        screen.note(f"{llm.model_name}{context}; /help lists the commands, /bye leaves")
    with History(cache_folder() / "history"):
        talk(conversation, screen)


def is_typed() -> bool:
    """Whether standard input is a terminal."""
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


def chat_length() -> dict[str, int]:
    """The default length of answers in a conversation, unless --max-tokens is given."""
    source = click.get_current_context().get_parameter_source("max_tokens")
    return {"max_tokens": CHAT_TOKENS} if source is ParameterSource.DEFAULT else {}


def begin(
    llm: LLM | RemoteModel,
    text: str,
    system: str | None,
    raw: bool,
    settings: dict[str, Any],
    images: Sequence[str] = (),
) -> Stream | RemoteStream:
    if raw or not llm.can_chat:
        if system is not None:
            raise FewbitError("the model has no chat template, which --system needs; put the text into the prompt")
        if images:
            raise FewbitError("the model has no chat template, which --image needs")
        if not raw:
            tell("fewbit: the model has no chat template; it continues the text")
        return llm.stream(text, **settings)
    messages: list[dict[str, Any]] = [{"role": "user", "content": with_images(text, images)}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return llm.chat(messages, stream=True, **settings)


def answer(llm: LLM | RemoteModel, stream: Stream | RemoteStream, max_tokens: int, as_json: bool) -> bool:
    """Print an answer and its figures; returns whether Ctrl-C stopped it."""
    completion, interrupted = print_answer(stream, silent=as_json)
    if as_json:
        print_json(answer_facts(llm.model_name, completion))
    else:
        tell(figures(completion))
    if note := cut_note(completion, llm.ctx, max_tokens):
        if completion.finish_reason == "invalid":
            raise FewbitError(note)
        tell(note)
    return interrupted


def print_answer(stream: Stream | RemoteStream, silent: bool) -> tuple[Completion, bool]:
    """Print an answer while it is written; returns the completion, and whether Ctrl-C stopped it."""
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
