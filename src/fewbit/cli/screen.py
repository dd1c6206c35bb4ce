"""The two screens of a conversation: a terminal, and standard input that is no terminal."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import click

from ..errors import FewbitError
from .output import harmless
from .printer import Printer
from .talk import LineDropped

LINES_KEPT = 1000


class Both(Printer):
    """Answers go to standard output, notes to standard error."""

    def note(self, text: str) -> None:
        click.echo(harmless(text), err=True)


class Terminal(Both):
    """Someone types. Lines can be edited and are remembered where the system has readline."""

    interactive = True

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
            raise FewbitError(f"what was typed is no {error.encoding} text") from None


class Lines(Both):
    """A file or a program says one message a line."""

    interactive = False

    def read(self, prompt: str) -> str:
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError as error:
            raise FewbitError(f"standard input is no UTF-8 text: {error.reason}") from None
        if not line:
            raise EOFError
        return line


def typed_so_far() -> str:
    """What stands in the line that is being typed."""
    readline = sys.modules.get("readline")
    return readline.get_line_buffer() if readline else ""


class History:
    """Keeps what was typed in a file, for the next conversation. Where that cannot be done, nothing is kept."""

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
