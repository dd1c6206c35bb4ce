"""Where a conversation is held: a terminal, or lines of standard input with text or JSON as output."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

import click

from ..errors import FewbitError
from .keyboard import HeldKeys, use_readline
from .output import harmless, is_terminal, wrapped
from .printer import Printer, answer_facts
from .progress import after_prefill
from .talk import LineDropped

LINES_KEPT = 1000
PASTE_SECONDS = 0.03  # between two lines of a paste; nobody types that fast


class StandardStreams(Printer):
    """Answers go to standard output, notes to standard error."""

    def has_more(self) -> bool:
        return False

    def answering(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def confirm(self, question: str) -> bool:
        return True  # nobody can be asked

    def choose(self, question: str, options: str) -> str:
        self.note(f"{question} (nobody can be asked, so it is not made)")
        return ""

    def watched(self, texts: Iterable[str], done: Callable[[], float]) -> Iterable[str]:
        return after_prefill(texts, done)

    def answered(self, completion: Any) -> None:
        """It was printed while it was written."""

    def note(self, text: str) -> None:
        click.echo(harmless(text), err=True)


class Terminal(StandardStreams):
    """A terminal. Where the system has readline, lines can be edited and are remembered."""

    interactive = True

    def __init__(self) -> None:
        super().__init__()
        use_readline()

    def answering(self) -> AbstractContextManager[Any]:
        return HeldKeys()

    def confirm(self, question: str) -> bool:
        self.note(question)
        return self.read("[y/N] ").strip().lower() in ("y", "yes")

    def choose(self, question: str, options: str) -> str:
        self.note(question)
        return self.read(f"[{options}] ")

    def note(self, text: str) -> None:
        """Dim, and wrapped between words."""
        if is_terminal(sys.stderr):
            plain = wrapped(harmless(text), max(20, get_terminal_size().columns))
            is_plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
            click.echo(plain if is_plain else click.style(plain, dim=True), err=True)
        else:
            super().note(text)

    def has_more(self) -> bool:
        """For a paste without brackets, or one during an answer."""
        with suppress(OSError, ValueError):
            return bool(select.select([sys.stdin], [], [], PASTE_SECONDS)[0])
        return False

    def read(self, prompt: str) -> str:
        if not sys.stdout.isatty():
            click.echo(prompt, nl=False, err=True)
            prompt = ""
        try:
            return input(prompt)
        except EOFError:
            click.echo(err=True)
            raise
        except KeyboardInterrupt:
            click.echo(err=True)
            raise (LineDropped if typed_so_far() else KeyboardInterrupt) from None
        except UnicodeDecodeError as error:
            raise FewbitError(f"what was typed is not {error.encoding} text") from None


class InputLines(StandardStreams):
    """Each line of standard input is a message."""

    interactive = False

    def read(self, prompt: str) -> str:
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError as error:
            raise FewbitError(f"standard input is not UTF-8 text: {error.reason}") from None
        if not line:
            raise EOFError
        return line


class JsonLines(InputLines):
    """The same; each answer is an object on a line of its own."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model

    def write(self, text: str) -> None:
        """`answered` prints it."""

    def answered(self, completion: Any) -> None:
        click.echo(json.dumps(answer_facts(self._model, completion)))


def typed_so_far() -> str:
    """The line that is being typed."""
    readline = sys.modules.get("readline")
    return readline.get_line_buffer() if readline else ""


class History:
    """Keeps typed lines in a file for the next conversation, if the system has readline."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> History:
        with suppress(ImportError, OSError):
            import readline

            readline.set_history_length(LINES_KEPT)
            readline.read_history_file(self._path)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ImportError, OSError):
            import readline

            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
            readline.write_history_file(self._path)
