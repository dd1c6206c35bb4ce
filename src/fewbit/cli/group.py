"""A group of commands, each imported when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from ..errors import FewbitError

INTERRUPTED = 130  # 128 + SIGINT, as shells count

Table = Mapping[str, tuple[str, str]]


class LazyGroup(click.Group):
    """Commands by a table: name -> (module in this package and function in it, of the same name; one line of help).

    The help stands in the table so that `--help` of the group imports no command.
    """

    def __init__(self, *args: Any, table: Table, **more: Any) -> None:
        super().__init__(*args, **more)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.table)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.table:
            return None
        home = self.table[name][0]
        command: click.Command = getattr(import_module(f".{home}", __package__), home)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.table[name][1]) for name in self.list_commands(ctx)])


class Commands(LazyGroup):
    """All commands. A FewbitError ends them with one line and status 1, Ctrl-C with status 130."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FewbitError as error:
            click.echo("fewbit: " + " ".join(str(error).split()), err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo(err=True)
            ctx.exit(INTERRUPTED)
