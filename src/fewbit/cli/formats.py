"""`fewbit formats`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import as_json
from .output import print_json, print_table

if TYPE_CHECKING:
    from ..formats import Format


@click.command()
@as_json
def formats(as_json: bool) -> None:
    """The formats: bits a weight, block and group sizes.

    \b
    Examples:
      fewbit formats
      fewbit formats --json
    """
    from ..formats import all_formats

    every = all_formats().values()
    if as_json:
        print_json([format_facts(f) for f in every])
        return
    columns = {
        "format": "left", "bits": "right", "block": "right", "group": "right", "GGUF": "right", "encodes": "left",
        "about": "left",
    }  # fmt: skip
    print_table(columns, [format_cells(f) for f in every])


def format_facts(fmt: Format) -> dict[str, Any]:
    return {
        "name": fmt.name,
        "bits_per_weight": fmt.bits_per_weight,
        "block": fmt.block,
        "group": fmt.group,
        "gguf": fmt.gguf,
        "encodes": fmt.rule != "none",
        "about": fmt.description,
    }


def format_cells(fmt: Format) -> list[str]:
    facts = format_facts(fmt)
    return [
        fmt.name,
        f"{fmt.bits_per_weight:g}",
        str(fmt.block or "row"),
        str(fmt.group or "row"),
        "-" if fmt.gguf is None else str(fmt.gguf),
        "yes" if facts["encodes"] else "no",
        fmt.description,
    ]
