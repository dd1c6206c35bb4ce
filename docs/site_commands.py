"""The command-line reference as Markdown, from click's own records."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click


def commands_page(command: click.Command, name: str) -> str:
    """A command and its subcommands: help, usage, arguments and options."""
    return "\n\n".join(section(command, name))


def section(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[str]:
    context = click.Context(command, parent, name, **command.context_settings)
    path = context.command_path
    yield f"{'#' * (path.count(' ') + 2)} {path}"
    yield f"```console\n$ {' '.join([path, *command.collect_usage_pieces(context)])}\n```"
    yield from help_blocks(command.help or "")
    rows = [row for parameter in command.get_params(context) if (row := parameter_row(parameter, context))]
    yield "\n".join(["| option | meaning |", "|---|---|", *rows])
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            if found and not found.hidden:
                yield from section(found, each, context)


def help_blocks(text: str) -> Iterator[str]:
    r"""Paragraphs of a help text. One after a line with `\b` is shown as it is written.

    >>> list(help_blocks("Does it.\n\n\b\nExamples:\n  fewbit run"))
    ['Does it.', '```text\nExamples:\n  fewbit run\n```']
    """
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        verbatim = paragraph.startswith("\b\n")
        yield f"```text\n{paragraph[2:]}\n```" if verbatim else paragraph


def parameter_row(parameter: click.Parameter, context: click.Context) -> str:
    """A row of the table, as `--help` would write it; nothing for what `--help` does not show."""
    record = parameter.get_help_record(context)
    if record is None:
        return ""
    names, meaning = record
    return f"| `{names}` | {meaning.replace('|', '&#124;')} |"
