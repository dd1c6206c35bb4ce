"""What commands print: JSON, tables, and text from files that a terminal must not obey."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Iterable
from typing import Any, TextIO, TypeVar

import click

Rows = list[list[str]]
T = TypeVar("T")

QUIET = "fewbit.quiet"  # of a context's `meta`

# Control characters of ASCII, but for tab and newline, and of Latin-1.
_CONTROLS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)])


def is_quiet() -> bool:
    """Whether --quiet was given to the command that runs."""
    context = click.get_current_context(silent=True)
    return bool(context and context.meta.get(QUIET))


def tell(text: str) -> None:
    """Print a remark to standard error, unless --quiet was given."""
    if not is_quiet():
        click.echo(text, err=True)


def print_json(data: object) -> None:
    click.echo(json.dumps(data, indent=2))


def print_table(columns: dict[str, Any], rows: Rows) -> None:
    """Print a table: with lines on a terminal, in plain columns elsewhere.

    Args:
        columns: The alignment of each column, "left" or "right", by its head.
        rows: The cells of each row.
    """
    if not is_terminal(sys.stdout):
        click.echo("\n".join(plain(columns, rows)))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for head, side in columns.items():
        table.add_column(head, justify=side)
    for row in rows:
        table.add_row(*row)
    Console().print(table, markup=False, highlight=False)


def plain(columns: dict[str, Any], rows: Rows) -> list[str]:
    """Lines of cells, each column as wide as its widest cell.

    >>> plain({"a": "left", "b": "right"}, [["x", "1"], ["long", "22"]])
    ['a      b', 'x      1', 'long  22']
    """
    lines = [list(columns), *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    signs = ["<" if side == "left" else ">" for side in columns.values()]
    return ["  ".join(f"{c:{s}{w}}" for c, s, w in zip(line, signs, widths, strict=True)).rstrip() for line in lines]


def measuring(cases: Iterable[T], count: int) -> Iterable[T]:
    """The same cases, with a bar on the terminal that shows how many of `count` are done."""
    if is_quiet() or not is_terminal(sys.stderr):
        return cases
    from rich.console import Console
    from rich.progress import track

    return track(cases, "measuring", count, console=Console(stderr=True), transient=True)


def is_terminal(stream: TextIO) -> bool:
    """Whether a stream is a terminal, or FORCE_COLOR says so, as it does for rich."""
    forced = os.environ.get("FORCE_COLOR")
    return stream.isatty() if forced is None else forced != ""


def shown(text: str, width: int = 80) -> str:
    """Text from a file on one line, with control characters escaped.

    >>> shown("a\\x1b[31m")
    'a\\\\x1b[31m'
    """
    safe = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: width + 1])
    return safe if len(safe) <= width else safe[: width - 3] + "..."


def harmless(text: str) -> str:
    """Text without control characters.

    >>> harmless("a\\x1b[31mb\\tc\\r\\n")
    'a[31mb\\tc\\n'
    """
    return text.translate(_CONTROLS)


def wrapped(text: str, width: int) -> str:
    """Wrap lines between words. The rest of a line that has two columns stays in the second one.

    >>> print(wrapped("/reset  start over; the system message stays", 30))
    /reset  start over; the system
            message stays
    """
    lines: list[str] = []
    for line in text.split("\n"):
        column = re.match(r"\S+(?: \S+)*  +", line)
        indent = " " * column.end() if column and column.end() < width // 2 else ""
        lines += textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False) or [""]
    return "\n".join(lines)


def size_text(size: float) -> str:
    """Bytes in a unit that fits.

    >>> size_text(1536)
    '1.5 KiB'
    """
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"
