"""The commands of a conversation: lines that begin with a slash."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator
from dataclasses import dataclass

from ..errors import FewbitError
from .conversation import Conversation, read_messages
from .images import checked_path
from .printer import figures

QUOTES = '"""'


@dataclass(frozen=True)
class Reply:
    """The reaction to a line: a note to print, an answer to stream, or the end. `then` is called if the user
    agrees to the question."""

    note: str = ""
    stream: Generator[str, None, None] | None = None
    over: bool = False
    question: str = ""
    then: Callable[[], Reply] | None = None


@dataclass(frozen=True)
class Command:
    usage: str
    about: str
    act: Callable[[Conversation, str], Reply]


def respond(conversation: Conversation, text: str) -> Reply:
    """React to a line: a command begins with a slash, a message does not; // begins a message with a slash."""
    if text.startswith("//"):
        return _answer(conversation, conversation.ask, text[1:])
    if not text.startswith("/"):
        return _answer(conversation, conversation.ask, text)
    name, _, rest = text[1:].partition(" ")
    name = ALIASES.get(name, name)
    if name not in COMMANDS and "\n" in text:  # a pasted text
        return _answer(conversation, conversation.ask, text)
    if name not in COMMANDS:
        raise FewbitError(f"there is no command /{name}; /help lists them, // begins a message with a slash")
    command, rest = COMMANDS[name], rest.strip()
    wants = len(command.usage.split()) > 1
    if rest and not wants:
        raise FewbitError(f"/{name} takes no argument, got {rest!r}")
    return command.act(conversation, rest)


def _answer(conversation: Conversation, question: Callable[..., Generator[str, None, None]], *text: str) -> Reply:
    """An answer, and a note if messages had to be left out for it."""
    before = conversation.dropped
    stream = question(*text)
    count = conversation.dropped - before
    hint = "/reset starts over, a larger --ctx makes room"
    return Reply(
        f"the context is full: the model no longer sees the oldest {count} messages; {hint}" if count > 0 else "",
        stream,
    )


def _help(conversation: Conversation, rest: str) -> Reply:
    width = max(len(command.usage) for command in COMMANDS.values())
    lines = [f"{command.usage:{width}}  {command.about}" for command in COMMANDS.values()]
    return Reply("\n".join([*lines, f"{QUOTES:{width}}  begins and ends a message of several lines"]))


def _reset(conversation: Conversation, rest: str) -> Reply:
    conversation.reset()
    return Reply("started a new conversation")


def _system(conversation: Conversation, rest: str) -> Reply:
    if rest:
        conversation.system = rest
    return Reply(f"system: {conversation.system or 'none'}")


def _temp(conversation: Conversation, rest: str) -> Reply:
    if rest:
        conversation.settings["temperature"] = _number(rest)
    temperature = conversation.settings.get("temperature", "the model's own")
    return Reply(f"temperature: {temperature}")


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise FewbitError(f"temperature must be a number of at least 0, got {text!r}")
    return number


def _seed(conversation: Conversation, rest: str) -> Reply:
    if rest:
        if not (rest.isascii() and rest.isdecimal() and len(rest) <= 18):
            raise FewbitError(f"seed must be a whole number of at least 0, got {rest!r}")
        conversation.settings["seed"] = int(rest)
    return Reply(f"seed: {conversation.settings.get('seed', 'random')}")


def _save(conversation: Conversation, rest: str) -> Reply:
    path = _file(rest, "save")

    def write() -> Reply:
        conversation.save(path)
        return Reply(f"saved {len(conversation.messages)} messages")

    if not os.path.exists(path):
        return write()
    count = len(read_messages(path))  # anything else is refused
    return Reply(question=f"{path} has a conversation of {count} messages; overwrite it?", then=write)


def _load(conversation: Conversation, rest: str) -> Reply:
    conversation.load(_file(rest, "load"))
    return Reply(f"loaded {len(conversation.messages)} messages")


def _file(text: str, command: str) -> str:
    if not text:
        raise FewbitError(f"/{command} needs the name of a file: /{command} talk.json")
    return os.path.expanduser(text)


def _image(conversation: Conversation, rest: str) -> Reply:
    if rest:
        if not getattr(conversation.llm, "sees_images", True):
            raise FewbitError("the model reads text only: it has no image encoder; --mmproj names the file of one")
        conversation.images.append(checked_path(rest))
    names = ", ".join(map(os.path.basename, conversation.images))
    return Reply(f"pictures for the next message: {names or 'none'}")


def _undo(conversation: Conversation, rest: str) -> Reply:
    conversation.undo()
    return Reply(f"removed the last message; {len(conversation.messages)} messages are left")


def _retry(conversation: Conversation, rest: str) -> Reply:
    return _answer(conversation, conversation.retry)


def _stats(conversation: Conversation, rest: str) -> Reply:
    last = conversation.last
    if last is None:
        return Reply("no answer yet")
    used = last.prompt_tokens + len(last.tokens)
    ctx = conversation.llm.ctx
    return Reply(f"{figures(last)}; {used}{f' of {ctx}' if ctx else ''} tokens of context")


def _quit(conversation: Conversation, rest: str) -> Reply:
    return Reply(over=True)


COMMANDS = {
    "help": Command("/help", "this list; /? too", _help),
    "reset": Command("/reset", "start a new conversation; keep the system message", _reset),
    "system": Command("/system TEXT", "set the system message", _system),
    "temp": Command("/temp X", "sampling temperature; 0 always takes the likeliest token", _temp),
    "seed": Command("/seed N", "the same number gives the same answers again, with --batch-invariant", _seed),
    "save": Command("/save FILE", "write the messages as JSON", _save),
    "load": Command("/load FILE", "continue a saved conversation", _load),
    "image": Command("/image FILE", "show the model a picture, with the next message", _image),
    "undo": Command("/undo", "remove the last message and its answer", _undo),
    "retry": Command("/retry", "another answer to the last message", _retry),
    "stats": Command("/stats", "tokens and speed of the last answer", _stats),
    "quit": Command("/quit", "leave; so do /bye, Ctrl-D, and Ctrl-C twice", _quit),
}

ALIASES = {"?": "help", "bye": "quit", "exit": "quit"}
