"""The loop of a conversation: read a message, print the answer. It is told where to read and where to print."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, closing, suppress
from typing import Any, Protocol

from ..errors import FewbitError
from .conversation import Conversation
from .printer import cut_note
from .slash import QUOTES, Reply, respond

MANY_LINES = 10  # of a message: their number is shown, since they may not fit on the screen


class LineDropped(KeyboardInterrupt):
    """Ctrl-C on a line that something was typed in."""


class Screen(Protocol):
    """Where a conversation takes place."""

    interactive: bool  # someone is there who can do better after a mistake

    def read(self, prompt: str) -> str:
        """A line; EOFError at the end, KeyboardInterrupt for Ctrl-C."""

    def has_more(self) -> bool:
        """Whether more lines are there already: they were pasted together."""

    def answering(self) -> AbstractContextManager[Any]:
        """Around an answer: what is typed meanwhile is kept for the next message."""

    def confirm(self, question: str) -> bool:
        """Whether the user agrees; where nobody can be asked, yes."""

    def watched(self, texts: Iterable[str], done: Callable[[], float]) -> Iterable[str]:
        """The same texts; until the first comes it may show how much of the prompt was run."""

    def write(self, text: str) -> None:
        """Print some of an answer."""

    def end_line(self) -> None:
        """Begin a new line where the answer did not."""

    def answered(self, completion: Any) -> None:
        """All of an answer was written."""

    def note(self, text: str) -> None:
        """Tell the user something beside the answers."""


def talk(conversation: Conversation, screen: Screen) -> None:
    """Until the user leaves. Ctrl-C stops an answer; twice in a row at an empty prompt it leaves."""
    leaving = False
    while True:
        try:
            text = read_message(screen)
        except EOFError:
            return
        except LineDropped:
            leaving = False
            continue
        except KeyboardInterrupt:
            if leaving or not screen.interactive:
                return
            leaving = True
            screen.note("Ctrl-C again or Ctrl-D to leave")
            continue
        leaving = False
        if screen.interactive and (count := text.count("\n") + 1) >= MANY_LINES:
            screen.note(f"{count} lines, {len(text):,} characters")
        try:
            if text.strip() and not respond_to(conversation, screen, text):
                return
        except KeyboardInterrupt:
            if not screen.interactive:
                raise


def read_message(screen: Screen) -> str:
    """A line, lines that were pasted together, or what stands between two times three quotes."""
    line = screen.read("> ").strip()
    if line.startswith(QUOTES):
        return read_quoted(screen, line)
    if line.startswith("/") and not line.startswith("//"):
        return line
    lines = [line]
    with suppress(EOFError):
        while screen.has_more():
            lines.append(screen.read(". ").rstrip())
    return "\n".join(lines).strip()


def read_quoted(screen: Screen, line: str) -> str:
    lines = [line.removeprefix(QUOTES)]
    with suppress(EOFError):
        while not lines[-1].endswith(QUOTES):
            lines.append(screen.read(". ").rstrip())
    text = "\n".join(lines).removesuffix(QUOTES).strip("\n")
    return "/" + text if text.startswith("/") else text  # no command


def respond_to(conversation: Conversation, screen: Screen, text: str) -> bool:
    """One message or command; whether to go on."""
    try:
        reply = respond(conversation, text)
        if reply.question:
            assert reply.then
            reply = reply.then() if screen.confirm(reply.question) else Reply("nothing was written")
        if reply.note:
            screen.note(reply.note)
        if reply.stream:
            print_answer(conversation, screen, reply)
    except FewbitError as error:
        if not screen.interactive:
            raise
        screen.note(" ".join(str(error).split()))
        return True
    return not reply.over


def print_answer(conversation: Conversation, screen: Screen, reply: Reply) -> None:
    assert reply.stream
    try:
        with closing(reply.stream), screen.answering():
            for text in screen.watched(reply.stream, lambda: conversation.prompt_done):
                screen.write(text)
    finally:
        screen.end_line()
    screen.answered(conversation.last)
    if note := cut_note(conversation.last, conversation.llm.ctx, conversation.settings.get("max_tokens")):
        screen.note(note)
