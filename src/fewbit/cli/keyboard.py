"""Keys in a conversation: Tab completes, and keys that are typed during an answer are kept for the next prompt."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from types import ModuleType
from typing import Any

from .slash import ALIASES, COMMANDS

DELIMITERS = " \t\n"


def completions(line: str) -> list[str]:
    """Completions of the last word of a line: commands, or files after a command that takes one.

    >>> completions("/re"), completions("/lo")
    (['/reset', '/retry'], ['/load '])
    """
    name, has_argument, rest = line[1:].partition(" ")
    if not line.startswith("/") or line.startswith("//") or "\n" in line:
        return []
    if not has_argument:
        names = [*COMMANDS, *(alias for alias in ALIASES if alias.isalpha())]
        return [_with_space(name) for name in sorted(names) if f"/{name}".startswith(line)]
    takes_file = name in COMMANDS and COMMANDS[name].usage.endswith("FILE")
    start = len(rest) - len(rest.split(" ")[-1])
    return [path[start:] for path in files(rest)] if takes_file else []


def files(start: str) -> list[str]:
    """Paths with a prefix; folders end with a slash. Hidden ones only if a dot was typed."""
    folder, base = os.path.split(start)
    shown = start[: len(start) - len(base)]
    found = []
    with suppress(OSError, ValueError):
        for entry in sorted(os.scandir(os.path.expanduser(folder) or "."), key=lambda entry: entry.name):
            if entry.name.startswith(base) and (base.startswith(".") or not entry.name.startswith(".")):
                found.append(f"{shown}{entry.name}{os.sep if entry.is_dir() else ''}")
    return found


def use_readline() -> None:
    """Enable line editing, completion, and bracketed paste, which makes a paste one message."""
    with suppress(ImportError):
        import readline

        readline.set_completer(_Completer(readline))
        readline.set_completer_delims(DELIMITERS)
        is_libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
        if not is_libedit:
            readline.parse_and_bind("set enable-bracketed-paste on")
            readline.parse_and_bind("set show-all-if-ambiguous on")


class HeldKeys:
    """While its block runs, keys are not echoed, and the next prompt reads them. Ctrl-C works."""

    def __enter__(self) -> HeldKeys:
        self._saved: list[Any] | None = None
        with suppress(ImportError, OSError, ValueError, AttributeError):
            import termios

            with suppress(termios.error):  # no terminal
                self._saved = termios.tcgetattr(sys.stdin)
                held = [*self._saved]
                held[3] = (held[3] | termios.NOFLSH) & ~(termios.ECHO | termios.ICANON)
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, held)
        return self

    def __exit__(self, *_: object) -> None:
        if self._saved is not None:
            import termios

            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._saved)


class _Completer:
    """Called by readline with 0, 1, 2 and so on until it returns None."""

    def __init__(self, readline: ModuleType) -> None:
        self._readline = readline
        self._found: list[str] = []

    def __call__(self, text: str, state: int) -> str | None:
        if state == 0:
            line = self._readline.get_line_buffer()[: self._readline.get_endidx()]
            is_command = line.startswith("/") and not line.startswith("//")
            self._found = completions(line) if is_command else [text + "\t"]  # a tab is part of a message
        return self._found[state] if state < len(self._found) else None


def _with_space(name: str) -> str:
    takes_more = len(COMMANDS[ALIASES.get(name, name)].usage.split()) > 1
    return f"/{name} " if takes_more else f"/{name}"
