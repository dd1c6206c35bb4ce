"""`fewbit quantize`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..option_fields import option_fields
from ..quantizing.options import QuantizeOptions
from .completion import ModelName
from .model import fetched_path, plain_warnings
from .options import Command, all_options, as_json, field_option, quiet_option
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


def quantize_options(command: Command) -> Command:
    """The options of the command for the fields of `QuantizeOptions`."""
    settings = {"tensors": {"multiple": True, "callback": read_overrides}}
    fields = [field for field in option_fields(QuantizeOptions) if field.choice.scope == "commands"]
    return all_options([field_option(field, **settings.get(field.name, {})) for field in fields], command)


@click.command()
@click.argument("model", type=ModelName())
@click.option("-o", "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The file to write.")
@quantize_options
@click.option("--list", "lists", is_flag=True, help="Print every tensor, not only sums by format.")
@quiet_option
@as_json
def quantize(model: str, out: Path, lists: bool, as_json: bool, **options: Any) -> None:
    """Write a model in other formats, as a GGUF file.

    MODEL is a GGUF file, a folder with safetensors, a URL, hf:org/repo or a name. If the command is stopped, the same
    command goes on where it was. `fewbit formats` lists the formats; mixes are named as in llama.cpp.

    Of a model that sees, --mmproj writes the image encoder: MODEL is its mmproj file, or a folder with safetensors.

    \b
    Examples:
      fewbit quantize model-f16.gguf -o model-q4_k_m.gguf
      fewbit quantize checkpoint/ -o q3.gguf -f q3_k_m --tensor ffn_down=q5_k
      fewbit quantize hf:org/repo -o model.gguf --format iq4_xs --dry-run --list
      fewbit quantize model-f16.gguf -o model.gguf --bits 4.2 --text book.txt
      fewbit quantize --mmproj mmproj-f16.gguf -o mmproj-q8_0.gguf -f q8_0
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
        "loss": item.loss,
    }


def print_made(made: QuantizedModel, lists: bool, is_plan: bool) -> None:
    has_losses = any(item.loss is not None for item in made.tensors)
    if lists or has_losses:
        heads = {"tensor": "left", "shape": "right", "from": "left", "to": "left", "size": "right"}
        heads |= {"loss": "right"} if has_losses else {}
        shown_items = [item for item in made.tensors if lists or item.loss is not None]
        print_table(heads, [tensor_cells(item)[: len(heads)] for item in shown_items])
        click.echo()
    heads = {"format": "left", "tensors": "right", "size": "right", "bits": "right"}
    formats = sorted({item.format for item in made.tensors}, key=lambda fmt: fmt.bits_per_weight)
    total = ["total", str(len(made.tensors)), size_text(made.nbytes), f"{made.bits_per_weight:.4g}"]
    print_table(heads, [*(format_cells(made, fmt) for fmt in formats), total])
    kept = f" ({made.resumed} tensors were there)" if made.resumed else ""
    click.echo(f"\n{made.path}: {'not written' if is_plan else 'written'}{kept}")


def tensor_cells(item: TensorPlan) -> list[str]:
    shape = "x".join(map(str, item.shape))
    loss = "" if item.loss is None else f"{item.loss:.3g}"
    return [shown(item.name), shape, item.source.name, item.format.name, size_text(item.nbytes), loss]


def format_cells(made: QuantizedModel, fmt: Format) -> list[str]:
    items = [item for item in made.tensors if item.format == fmt]
    size = sum(item.nbytes for item in items)
    return [fmt.name, str(len(items)), size_text(size), f"{fmt.bits_per_weight:g}"]
