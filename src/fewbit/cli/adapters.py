"""`fewbit adapters`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from .options import as_json
from .output import print_json, print_table


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--use", metavar="NAME", help="Use this version from now on; none: the model alone.")
@as_json
def adapters(folder: Path, use: str | None, as_json: bool) -> None:
    """List versions of an adapter that learned from feedback, or go back to one.

    \b
    Examples:
      fewbit adapters adapters/
      fewbit adapters adapters/ --use v2
      fewbit adapters adapters/ --use none
    """
    from ..files.adapter_versions import AdapterVersions

    found = AdapterVersions(folder)
    if use is not None:
        found.use(None if use == "none" else use)
    if as_json:
        print_json({"current": found.current, "versions": [asdict(version) for version in found.versions]})
        return
    heads = {"version": "left", "votes": "right", "loss": "right", "before": "right", "in use": "left"}
    rows = []
    for one in found.versions:
        mark = "*" if one.name == found.current else ""
        rows.append([one.name, str(one.votes), f"{one.loss:.4f}", f"{one.previous_loss:.4f}", mark])
    print_table(heads, rows)
