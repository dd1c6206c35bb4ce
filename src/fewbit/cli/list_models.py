"""`fewbit list`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import as_json
from .output import plain, print_json, shown, size_text

if TYPE_CHECKING:
    from .cached import Cached


@click.command("list")
@as_json
def list_models(as_json: bool) -> None:
    """List built-in models and those that were fetched.

    Every command that takes a model takes these names, and the paths.

    \b
    Examples:
      fewbit list
      fewbit list --json
    """
    from .cached import known_models

    found = known_models()
    if as_json:
        print_json([facts(model) for model in found])
        return
    # No lines around it: a terminal breaks long paths itself, and they can be copied whole.
    heads = {"name": "left", "size": "right", "path": "left"}
    click.echo("\n".join(plain(heads, [cells(model) for model in found])))


def facts(model: Cached) -> dict[str, Any]:
    return {
        "name": model.name,
        "about": model.about or None,
        "license": model.license or None,
        "bytes": model.nbytes,
        "path": None if model.path is None else str(model.path),
        "files": [str(file) for file in model.files],
    }


def cells(model: Cached) -> list[str]:
    missing = f"not here yet: fewbit pull {model.name}"
    return [shown(model.name, 1000), size_text(model.nbytes), shown(str(model.path or missing), 4096)]
