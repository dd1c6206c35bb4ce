"""A group of commands, each imported when it is used, and how commands fail: with one sentence."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import IO, Any

import click

from ..errors import FewbitError

INTERRUPTED = 130  # 128 + SIGINT, as shells count

# Click's names of types, and plainer ones.
_PLAINER = {
    "is not a valid float range": "is not a number",
    "is not a valid float": "is not a number",
    "is not a valid integer range": "is not a whole number",
    "is not a valid integer": "is not a whole number",
}

_SEVERAL = re.compile(r"\(Did you mean one of: (.*)\?\)$")  # click's suggestion, in brackets

_SHORT_TOO = re.compile(r"'-\w' / (?='--)")  # click's short and long name of an option

Table = Mapping[str, tuple[str, str]]


class LazyGroup(click.Group):
    """Commands by a table: name -> (module in this package and function in it, as "module.function"; one line of help).

    The help stands in the table so that `--help` of the group imports no command.
    """

    def __init__(self, *args: Any, table: Table, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.table)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.table:
            return None
        module, _, function = self.table[name][0].partition(".")
        command: click.Command = vars(import_module(f".{module}", __package__))[function]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.table[name][1]) for name in self.list_commands(ctx)])


class Commands(LazyGroup):
    """All commands. What fails ends with one line: status 2 for wrong usage, 130 for Ctrl-C, else 1."""

    def make_context(self, *args: Any, **settings: Any) -> click.Context:
        with _one_line():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _one_line():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo(err=True)
            ctx.exit(INTERRUPTED)


class Failure(click.ClickException):
    """An error as it is printed."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"fewbit: {self.message}", err=True)


class Misuse(Failure):
    """A wrong command, argument or option."""

    exit_code = 2


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        raise Misuse(_usage(error)) from None
    except FewbitError as error:
        raise Failure(str(error)) from None
    except MemoryError:
        raise Failure("there is not enough memory; a smaller --ctx, --kv q8_0, or a smaller model needs less") from None
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        raise Failure(_system_error(error)) from None


def _usage(error: click.UsageError) -> str:
    """Click's message as one sentence, which ends with the command that helps unless it suggests something."""
    message = error.format_message().removesuffix(".")
    message = message[:1].lower() + message[1:]
    for text, plainer in _PLAINER.items():
        message = message.replace(text, plainer)
    message = _SHORT_TOO.sub("", message)
    message = _SEVERAL.sub(lambda found: f"Did you mean {found[1].replace(', ', ' or ')}?", message)
    if "fewbit " in message or not error.ctx:
        return message
    return f"{message}{'' if message.endswith('?') else ';'} see {error.ctx.command_path} --help"


def _system_error(error: OSError) -> str:
    """An error without a file name is one of writing: standard output is discarded from then on, also at exit."""
    why = error.strerror or str(error)
    if error.filename is not None:
        return f"{error.filename}: {why}"
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return f"the output cannot be written: {why}"
