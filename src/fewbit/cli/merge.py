"""`fewbit merge`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .completion import ModelName
from .model import fetched_path, plain_warnings
from .options import as_json, count_option, quiet_option
from .output import is_quiet, print_json, shown
from .progress import Waiting
from .quantize import model_facts, print_made, read_overrides


@click.command()
@click.argument("base", type=ModelName())
@click.argument("adapter", type=click.Path(exists=True, path_type=Path))
@click.option("-o", "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The file to write.")
@click.option(
    "-f",
    "--format",
    "format",
    metavar="NAME",
    default="keep",
    show_default="keep: as in the base",
    help="A mix or a format.",
)
@click.option(
    "--tensor",
    "tensors",
    multiple=True,
    metavar="PATTERN=FORMAT",
    callback=read_overrides,
    help="Format of matrices whose names have PATTERN, a regular expression; may be given again.",
)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@count_option("-t", "--threads", what="Threads to use.", show_default="all usable cores")
@quiet_option
@as_json
def merge(base: str, adapter: Path, out: Path, as_json: bool, **options: Any) -> None:
    """Write a model with a LoRA adapter merged into its weights, as a GGUF file.

    BASE is a GGUF file, a folder with safetensors, a URL, hf:org/repo or a name. ADAPTER is a folder that PEFT wrote,
    or a GGUF adapter. Merge into the unquantized model where you have it, and let --format quantize the result.

    \b
    Examples:
      fewbit merge model-f16.gguf adapters/sql -o sql-q4_k_m.gguf --format q4_k_m
      fewbit merge checkpoint/ adapter.gguf -o merged.gguf -f bf16
    """
    with plain_warnings(), Waiting(f"reading {shown(base, 60)}") as waiting:
        from ..quantizing import merge_adapter

        made = merge_adapter(fetched_path(base) or base, adapter, out, progress=waiting, **options)
    if as_json:
        print_json(model_facts(made))
    elif not is_quiet():
        print_made(made, lists=False, is_plan=False)
