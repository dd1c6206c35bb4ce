"""`fewbit list`, `fewbit pull` and `fewbit rm`: the models on this machine."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ..errors import ExtraError
from .completion import ModelName
from .model import find_model
from .options import as_json, quiet_option
from .output import plain, print_json, shown, size_text
from .progress import Waiting

if TYPE_CHECKING:
    from pathlib import Path

    from ..files.hub import Builtin, Named
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
        print_json([model_facts(model) for model in found])
        return
    # Without lines, so that long paths can be copied.
    heads = {"name": "left", "size": "right", "path": "left"}
    click.echo("\n".join(plain(heads, [model_cells(model) for model in found])))


def model_facts(model: Cached) -> dict[str, Any]:
    return {
        "name": model.name,
        "about": model.about or None,
        "license": model.license or None,
        "bytes": model.nbytes,
        "path": None if model.path is None else str(model.path),
        "files": [str(file) for file in model.files],
    }


def model_cells(model: Cached) -> list[str]:
    missing = f"not fetched yet: fewbit pull {model.name}"
    return [shown(model.name, 1000), size_text(model.nbytes), shown(str(model.path or missing), 4096)]


@click.command()
@click.argument("model", required=False, type=ModelName())
@click.option("--list", "lists", is_flag=True, help="List the models that have a name, with size and license.")
@click.option("--no-mmproj", is_flag=True, help="Leave out the image encoder.")
@click.option(
    "--warm", metavar="[ARCH]", is_flag=False, flag_value="", help="Compile its kernels for this machine's NVIDIA GPU, "
    "or for an architecture, such as sm_90, without one."
)  # fmt: skip
@quiet_option
@as_json
def pull(model: str | None, lists: bool, no_mmproj: bool, warm: str | None, as_json: bool) -> None:
    """Fetch a model and print its path. Of a model that sees, its image encoder (mmproj) is fetched too.

    MODEL is a URL, hf:org/repo, hf:org/repo:file or a name that --list shows: a family, such as qwen3, or a family and
    a tag, such as qwen3:4b. A path is printed as it is. `fewbit list` shows what was fetched, `fewbit rm` removes it.

    \b
    Examples:
      fewbit pull --list
      fewbit pull qwen3:4b
      fewbit pull hf:org/repo:q4_k_m --json
      fewbit pull qwen3:4b --warm
    """
    if lists:
        if model:
            raise click.UsageError(f"--list takes no model; leave out {shown(model, 60)}")
        print_names(as_json)
        return
    if warm and not model and not warm.startswith("sm_"):
        model, warm = warm, ""  # the architecture was left out
    if not model:
        raise click.UsageError("name a model; `fewbit pull --list` shows the names")
    from ..encoding import file_beside

    path = find_model(model, encoder=not no_mmproj)
    beside = None if no_mmproj else file_beside(path)
    warmed = {} if warm is None else warm_up(path, warm or None)
    if as_json:
        mmproj = None if beside is None else str(beside)
        print_json({"model": model, "path": str(path), "bytes": path.stat().st_size, "mmproj": mmproj, **warmed})
        return
    click.echo(path)
    if beside is not None:  # apart from the path, which scripts read
        click.echo(f"image encoder: {beside}", err=True)


def warm_up(path: Path, arch: str | None) -> dict[str, Any]:
    """Compile the kernels of a model's usual steps into the cache folder. Returns what --json adds."""
    from ..devices.cuda_kernels import compile_kernels, find_card, model_kernels
    from ..models import load_model
    from ..models import open_model as open_file

    try:
        card = find_card(arch)
    except ExtraError as error:
        raise ExtraError(f"{error}; --warm sm_90 compiles for such a GPU without one") from None
    kernels = model_kernels(load_model(open_file(path)), card)
    with Waiting("compiling kernels", unit="kernels") as waiting:
        compile_kernels(kernels, card.arch, partial(waiting, f"compiling kernels for {card.arch}"))
    return {"arch": card.arch, "kernels": len(kernels)}


def print_names(as_json: bool) -> None:
    from ..files.hub import builtin, known, named

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


def name_facts(model: Builtin | Named) -> dict[str, Any]:
    from ..files.hub import Named

    repo, file, use = (model.repo, model.file, model.use) if isinstance(model, Named) else (None, None, None)
    facts = {"name": model.name, "about": model.about, "license": model.license, "bytes": model.bytes}
    return {**facts, "repo": repo, "file": file, "use": use}


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
