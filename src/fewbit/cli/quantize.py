"""`fewbit quantize`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .completion import ModelName
from .model import fetched_path, plain_warnings
from .options import as_json, count_option, quiet_option
from .output import is_quiet, print_json, print_table, shown, size_text
from .progress import Waiting

if TYPE_CHECKING:
    from ..formats import Format
    from ..quantizing import QuantizedModel, TensorPlan


def read_overrides(_: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """PATTERN=FORMAT of each --tensor."""
    found = {}
    for value in values:
        pattern, equals, name = value.rpartition("=")
        if not (pattern and equals and name):
            raise click.BadParameter(f"{value!r} is not like ffn_down=q6_k", param=option)
        found[pattern] = name
    return found


@click.command()
@click.argument("model", type=ModelName())
@click.option("-o", "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The file to write.")
@click.option(
    "-f",
    "--format",
    "format",
    default="q4_k_m",
    metavar="NAME",
    help="A mix (q4_k_m), a format, or keep: as in the source.",
)
@click.option(
    "--tensor",
    "tensors",
    multiple=True,
    metavar="PATTERN=FORMAT",
    callback=read_overrides,
    help="Format of matrices whose names have PATTERN, a regular expression; may be given again.",
)
@click.option(
    "--imatrix",
    "importance",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Importance of columns: a file of fewbit calibrate or of llama.cpp.",
)
@click.option(
    "--error-feedback",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Hessians, a file of fewbit calibrate --hessian: later columns make up for earlier ones.",
)
@click.option("--pure", is_flag=True, help="All matrices in the format that most have in the mix.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.option("--dry-run", is_flag=True, help="Only choose formats and print them.")
@click.option("--list", "lists", is_flag=True, help="Print every tensor, not only sums by format.")
@count_option("-t", "--threads", what="Threads to use.", show_default="all usable cores")
@quiet_option
@as_json
def quantize(model: str, out: Path, lists: bool, as_json: bool, **options: Any) -> None:
    """Write a model in other formats, as a GGUF file.

    MODEL is a GGUF file, a folder with safetensors, a URL, hf:org/repo or a name. If the command is stopped, the same
    command goes on where it was. `fewbit formats` lists the formats; mixes are named as in llama.cpp.

    \b
    Examples:
      fewbit quantize model-f16.gguf -o model-q4_k_m.gguf
      fewbit quantize checkpoint/ -o model.gguf --format q3_k_m --tensor ffn_down=q5_k
      fewbit quantize hf:org/repo -o model.gguf --format iq4_xs --dry-run --list
    """
    with plain_warnings(), Waiting(f"reading {shown(model, 60)}") as waiting:
        from ..quantizing import quantize_model

        made = quantize_model(fetched_path(model) or model, out, progress=waiting, **options)
    if as_json:
        print_json(model_facts(made))
    elif not is_quiet():
        print_made(made, lists, options["dry_run"])


def model_facts(made: QuantizedModel) -> dict[str, Any]:
    return {
        "path": str(made.path),
        "format": made.format,
        "bytes": made.nbytes,
        "bits_per_weight": made.bits_per_weight,
        "resumed": made.resumed,
        "tensors": [tensor_facts(item) for item in made.tensors],
    }


def tensor_facts(item: TensorPlan) -> dict[str, Any]:
    return {
        "name": item.name,
        "shape": list(item.shape),
        "source": item.source.name,
        "format": item.format.name,
        "wanted": item.wanted.name,
        "bytes": item.nbytes,
    }


def print_made(made: QuantizedModel, lists: bool, is_plan: bool) -> None:
    if lists:
        heads = {"tensor": "left", "shape": "right", "from": "left", "to": "left", "size": "right"}
        print_table(heads, [tensor_cells(item) for item in made.tensors])
        click.echo()
    heads = {"format": "left", "tensors": "right", "size": "right", "bits": "right"}
    formats = sorted({item.format for item in made.tensors}, key=lambda fmt: fmt.bits_per_weight)
    total = ["total", str(len(made.tensors)), size_text(made.nbytes), f"{made.bits_per_weight:.4g}"]
    print_table(heads, [*(format_cells(made, fmt) for fmt in formats), total])
    kept = f" ({made.resumed} tensors were there)" if made.resumed else ""
    click.echo(f"\n{made.path}: {'not written' if is_plan else 'written'}{kept}")


def tensor_cells(item: TensorPlan) -> list[str]:
    shape = "x".join(map(str, item.shape))
    return [shown(item.name), shape, item.source.name, item.format.name, size_text(item.nbytes)]


def format_cells(made: QuantizedModel, fmt: Format) -> list[str]:
    items = [item for item in made.tensors if item.format == fmt]
    size = sum(item.nbytes for item in items)
    return [fmt.name, str(len(items)), size_text(size), f"{fmt.bits_per_weight:g}"]
