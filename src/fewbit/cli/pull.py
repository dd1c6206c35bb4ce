"""`fewbit pull`."""

from __future__ import annotations

import click

from .options import as_json
from .output import print_json, shown
from .progress import Waiting


@click.command()
@click.argument("model")
@as_json
def pull(model: str, as_json: bool) -> None:
    """Fetch a model and print where it lies.

    MODEL is a URL, hf:org/repo, hf:org/repo:file or a built-in name; a path is printed as it is. `fewbit list` shows
    what was fetched, `fewbit rm` removes it.

    \b
    Examples:
      fewbit pull smollm2
      fewbit pull hf:org/repo:q4_k_m --json
    """
    from ..files.hub import find

    with Waiting(f"fetching {shown(model, 60)}") as waiting:
        path = find(model, progress=waiting)
    if as_json:
        print_json({"model": model, "path": str(path), "bytes": path.stat().st_size})
    else:
        click.echo(path)
