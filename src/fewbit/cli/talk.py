"""The loop of a conversation: read a message, print the answer. It is told where to read and where to print."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import Protocol

from ..errors import FewbitError
from .conversation import Conversation
from .slash import QUOTES, respond


class LineDropped(KeyboardInterrupt):
    """Ctrl-C on a line that something was typed in."""


class Screen(Protocol):
    """Where a conversation takes place."""

    interactive: bool  # someone is there who can do better after a mistake

    def read(self, prompt: str) -> str:
        """A line; EOFError at the end, KeyboardInterrupt for Ctrl-C."""

    def write(self, text: str) -> None:
        """Print some of an answer."""

    def end_line(self) -> None:
        """Begin a new line where the answer did not."""

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
        try:
            if text.strip() and not respond_to(conversation, screen, text):
                return
        except KeyboardInterrupt:
            if not screen.interactive:
                raise


def read_message(screen: Screen) -> str:
    """A line, or what stands between two times three quotes."""
    line = screen.read("> ").strip()
    if not line.startswith(QUOTES):
        return line
    lines = [line.removeprefix(QUOTES)]
    while not lines[-1].endswith(QUOTES):
        try:
            lines.append(screen.read(". ").rstrip())
        except EOFError:
            break
    text = "\n".join(lines).removesuffix(QUOTES).strip("\n")
    return "/" + text if text.startswith("/") else text  # no command


def respond_to(conversation: Conversation, screen: Screen, text: str) -> bool:
    """One message or command; whether to go on."""
    try:
        reply = respond(conversation, text)
        if reply.stream:
            print_answer(screen, reply.stream)
            if conversation.last.finish_reason == "length":
                screen.note("the answer was cut: --max-tokens or the context is at its end")
    except FewbitError as error:
        if not screen.interactive:
            raise
        screen.note(" ".join(str(error).split()))
        return True
    if reply.note:
        screen.note(reply.note)
    return not reply.over


def print_answer(screen: Screen, stream: Generator[str, None, None]) -> None:
    try:
        with closing(stream):
            for text in stream:
                screen.write(text)
    finally:
        screen.end_line()
