"""`fewbit pull`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import as_json
from .output import print_json, print_table, shown, size_text
from .progress import Waiting


@click.command()
@click.argument("model", required=False)
@click.option("--list", "as_list", is_flag=True, help="List built-in models and those in the cache; fetch nothing.")
@as_json
def pull(model: str | None, as_list: bool, as_json: bool) -> None:
    """Fetch a model and print where it lies.

    MODEL is a URL, hf:org/repo, hf:org/repo:file or a built-in name; a path is printed as it is.

    \b
    Examples:
      fewbit pull smollm2
      fewbit pull hf:org/repo:q4_k_m --json
      fewbit inspect "$(fewbit pull smollm2)"
      fewbit pull --list
    """
    if (model is None) != as_list:
        raise click.UsageError("give a model or --list, one of them")
    if model is not None:
        print_fetched(model, as_json)
    elif as_json:
        print_json(known_models())
    else:
        heads = {"name": "left", "about": "left", "license": "left", "size": "right", "path": "left"}
        print_table(heads, [cells(row) for row in known_models()])


def print_fetched(model: str, as_json: bool) -> None:
    from ..files.hub import find

    with Waiting(f"fetching {shown(model, 60)}") as waiting:
        path = find(model, progress=waiting)
    if as_json:
        print_json({"model": model, "path": str(path), "bytes": path.stat().st_size})
    else:
        click.echo(path)


def known_models() -> list[dict[str, Any]]:
    """Built-in models, there or not (then without a path), and other files in the cache."""
    from ..files.hub import builtin, cache_folder

    own = builtin().values()
    rows: list[dict[str, Any]] = [
        {
            "name": model.name,
            "about": model.about,
            "license": model.license,
            "bytes": model.bytes,
            "path": str(model.path) if model.is_whole else None,
        }
        for model in own
    ]
    others = sorted(set(cache_folder().rglob("*.gguf")) - {model.path for model in own})
    return [*rows, *(file_facts(path) for path in others if path.is_file())]


def file_facts(path: Path) -> dict[str, Any]:
    return {"name": None, "about": None, "license": None, "bytes": path.stat().st_size, "path": str(path)}


def cells(row: dict[str, Any]) -> list[str]:
    words = [shown(row[key] or "-") for key in ("name", "about", "license")]
    return [*words, size_text(row["bytes"]), shown(row["path"] or "not here yet", 200)]
