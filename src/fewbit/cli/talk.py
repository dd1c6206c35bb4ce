"""The loop of a conversation: read a message, print the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, closing, suppress
from typing import Any, Protocol

from ..errors import FewbitError
from .conversation import Conversation
from .printer import cut_note
from .slash import QUOTES, Reply, respond

MAX_ROUNDS = 20  # of calls for one message
MANY_LINES = 10  # of a message: from here on their number is shown


class LineDropped(KeyboardInterrupt):
    """Ctrl-C on a line that is not empty."""


class Screen(Protocol):
    """Where messages are read and answers are printed."""

    interactive: bool  # whether a user can try again after an error

    def read(self, prompt: str) -> str:
        """A line; EOFError at the end, KeyboardInterrupt for Ctrl-C."""

    def has_more(self) -> bool:
        """Whether the next line of a paste is there."""

    def answering(self) -> AbstractContextManager[Any]:
        """A context for an answer, in which keys are kept for the next message."""

    def confirm(self, question: str) -> bool:
        """Whether the user agrees; True if nobody can be asked."""

    def choose(self, question: str, options: str) -> str:
        """What the user answers; "" if nobody can be asked."""

    def watched(self, texts: Iterable[str], done: Callable[[], float]) -> Iterable[str]:
        """The same texts; progress of the prompt may be shown until the first one."""

    def write(self, text: str) -> None:
        """Print a part of an answer."""

    def end_line(self) -> None:
        """End the line if it is not empty."""

    def answered(self, completion: Any) -> None:
        """Called when an answer is complete."""

    def note(self, text: str) -> None:
        """Print a remark."""


def talk(conversation: Conversation, screen: Screen) -> None:
    """Hold a conversation until the user leaves. Ctrl-C stops an answer; twice at an empty prompt, it leaves."""
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
    """A line, the lines of a paste, or text between triple quotes."""
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
    """Handle one message or command; returns whether to go on."""
    try:
        reply = respond(conversation, text)
        if reply.question:
            assert reply.then
            reply = reply.then() if screen.confirm(reply.question) else Reply("nothing was written")
        if reply.note:
            screen.note(reply.note)
        if reply.stream:
            print_answer(conversation, screen, reply)
            answer_calls(conversation, screen)
    except FewbitError as error:
        if not screen.interactive:
            raise
        screen.note(" ".join(str(error).split()))
        return True
    return not reply.over


def answer_calls(conversation: Conversation, screen: Screen) -> None:
    """Make the calls that the user agrees to, and print what the model makes of their results."""
    for _ in range(MAX_ROUNDS):
        if conversation.caller is None or not conversation.calls:
            return
        results = conversation.caller.results(conversation.calls, screen)
        print_answer(conversation, screen, Reply(stream=conversation.go_on(results)))
    if conversation.calls:
        screen.note(f"the model called tools {MAX_ROUNDS} times without an answer; another message goes on")


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
