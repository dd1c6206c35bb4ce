"""`fewbit rm`."""

from __future__ import annotations

import click

from .completion import ModelName
from .options import as_json
from .output import print_json, shown, size_text


@click.command("rm")
@click.argument("names", metavar="MODEL...", nargs=-1, required=True, type=ModelName())
@as_json
def remove(names: tuple[str, ...], as_json: bool) -> None:
    """Remove models that were fetched.

    MODEL is a name or a path, as `fewbit list` shows them. Files that fewbit did not fetch are left alone.

    \b
    Examples:
      fewbit rm smollm2
      fewbit rm hf:org/repo:model-Q4_K_M.gguf
    """
    from . import cached

    found = list({model.name: model for model in map(cached.fetched, names)}.values())  # all must be there first
    for model in found:
        cached.remove(model)
        if not as_json:
            click.echo(f"removed {shown(model.name, 1000)}, {size_text(model.nbytes)}")
    if as_json:
        print_json([{"name": model.name, "bytes": model.nbytes, "path": str(model.path)} for model in found])
