"""Reading a prompt: from an argument, a file, standard input, or several of them."""

from __future__ import annotations

import os
import stat
import sys

import click

from ..errors import FewbitError
from .files import decoded, read_bytes

STDIN = "-"


def read_prompt(argument: str | None, file: str | None) -> str:
    """The parts that were given, in this order, with a blank line between two of them."""
    texts = [
        None if argument == STDIN else argument,
        None if file in (None, STDIN) else decoded(read_bytes(str(file)), str(file)),
        stdin_text() if STDIN in (argument, file) or is_piped(argument is None and file is None) else None,
    ]
    prompt = "\n\n".join(text for text in texts if text)
    if not prompt.strip():
        what = "there is no prompt" if argument is None else "the prompt is empty"
        raise click.UsageError(
            f"{what}: put it in quotes after the model, name a --file, or pipe it in; for a conversation: fewbit chat"
        )
    return prompt


def is_piped(is_only_source: bool) -> bool:
    """Whether to read standard input.

    If the prompt may be elsewhere, only a pipe or a file is read: a program that starts this one may leave something
    open there that never ends.
    """
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return False
    if is_only_source:
        return True
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # it is not the process's own
        return True
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def stdin_text() -> str:
    return decoded(stdin_bytes(), "standard input")


def stdin_bytes() -> bytes:
    if sys.stdin is None:
        raise FewbitError("there is no standard input to read a prompt from")
    return sys.stdin.buffer.read()
