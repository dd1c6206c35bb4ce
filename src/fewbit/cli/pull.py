"""`fewbit pull`."""

from __future__ import annotations

import click

from .completion import ModelName
from .model import find_model
from .options import as_json, quiet_option
from .output import plain, print_json, shown


@click.command()
@click.argument("model", required=False, type=ModelName())
@click.option("--list", "lists", is_flag=True, help="List the models that have a name, with size and license.")
@quiet_option
@as_json
def pull(model: str | None, lists: bool, as_json: bool) -> None:
    """Fetch a model and print its path.

    MODEL is a URL, hf:org/repo, hf:org/repo:file or a name that --list shows: a family, such as qwen3, or a family and
    a tag, such as qwen3:4b. A path is printed as it is. `fewbit list` shows what was fetched, `fewbit rm` removes it.

    \b
    Examples:
      fewbit pull --list
      fewbit pull qwen3:4b
      fewbit pull hf:org/repo:q4_k_m --json
    """
    if lists:
        if model:
            raise click.UsageError(f"--list takes no model; leave out {shown(model, 60)}")
        print_names(as_json)
        return
    if not model:
        raise click.UsageError("name a model; `fewbit pull --list` shows the names")
    path = find_model(model)
    if as_json:
        print_json({"model": model, "path": str(path), "bytes": path.stat().st_size})
    else:
        click.echo(path)


def print_names(as_json: bool) -> None:
    from ..files.hub import Builtin, Named, builtin, known, named

    models: list[Builtin | Named] = [*builtin().values(), *named().values()]
    if as_json:
        print_json([name_facts(model) for model in models])
        return
    rows = []
    for model in models:
        family, has_tag, _ = model.name.partition(":")
        mark = "*" if has_tag and known(family) == model else ""
        rows.append([model.name + mark, rough_size(model.bytes), model.license, model.about])
    heads = {"name": "left", "size": "right", "license": "left", "about": "left"}
    click.echo("\n".join(plain(heads, rows)))
    click.echo("\n* is what the family alone means: llama3.2 is llama3.2:3b. Sizes are approximate.", err=True)


def rough_size(size: int) -> str:
    """
    >>> rough_size(2_019_000_000), rough_size(25_000_000)
    ('1.9 GiB', '24 MiB')
    """
    return f"{size / 2**30:.1f} GiB" if size >= 1 << 30 else f"{size / 2**20:.0f} MiB"


def name_facts(model: object) -> dict[str, object]:
    names = ("name", "about", "license", "bytes", "repo", "file", "use")
    return {name: getattr(model, name, None) for name in names}
