"""`fewbit pull`."""

from __future__ import annotations

import click

from .options import as_json
from .output import plain, print_json, shown, size_text
from .progress import Waiting


@click.command()
@click.argument("model", required=False)
@click.option("--list", "lists", is_flag=True, help="List the models that have a name, with size and license.")
@as_json
def pull(model: str | None, lists: bool, as_json: bool) -> None:
    """Fetch a model and print where it lies.

    MODEL is a URL, hf:org/repo, hf:org/repo:file or a name that --list shows; a path is printed as it is. `fewbit list`
    shows what was fetched, `fewbit rm` removes it.

    \b
    Examples:
      fewbit pull --list
      fewbit pull smollm2
      fewbit pull hf:org/repo:q4_k_m --json
    """
    from ..files.hub import find

    if lists:
        if model:
            raise click.UsageError(f"--list takes no model; leave {shown(model, 60)} out")
        print_names(as_json)
        return
    if not model:
        raise click.UsageError("which model? `fewbit pull --list` shows those that have a name")

    with Waiting(f"fetching {shown(model, 60)}") as waiting:
        path = find(model, progress=waiting)
    if as_json:
        print_json({"model": model, "path": str(path), "bytes": path.stat().st_size})
    else:
        click.echo(path)


def print_names(as_json: bool) -> None:
    from ..files.hub import Builtin, Named, builtin, named

    models: list[Builtin | Named] = [*builtin().values(), *named().values()]
    if as_json:
        facts = [{"name": m.name, "about": m.about, "license": m.license, "bytes": m.bytes} for m in models]
        print_json(facts)
        return
    heads = {"name": "left", "size": "right", "license": "left", "about": "left"}
    click.echo("\n".join(plain(heads, [[m.name, size_text(m.bytes), m.license, m.about] for m in models])))
