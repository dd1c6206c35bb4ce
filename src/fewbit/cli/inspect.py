"""`fewbit inspect`."""

from __future__ import annotations

from typing import Any

import click

from .completion import ModelName
from .model import find_model
from .options import as_json
from .output import print_json, print_table, shown, size_text


@click.command()
@click.argument("model", type=ModelName())
@click.option("--tensors/--no-tensors", default=True, help="List every tensor.")
@as_json
def inspect(model: str, tensors: bool, as_json: bool) -> None:
    """What a model file holds: metadata, tensors, formats and sizes.

    MODEL is a GGUF file, a folder with safetensors, a URL, hf:org/repo or a name. Of a model in several files, any one
    will do. `fewbit show` sums up what a model is and can do.

    \b
    Examples:
      fewbit inspect model.gguf
      fewbit inspect smollm2 --no-tensors
      fewbit inspect checkpoint/
      fewbit inspect model-00001-of-00003.gguf --json
    """
    from ..files.gguf import read_gguf, summary
    from ..files.summary import checkpoint_summary, is_checkpoint_path

    path = find_model(model)
    if is_checkpoint_path(path):
        facts = checkpoint_summary(path, tensors=tensors)
    else:
        with read_gguf(path) as gguf:
            facts = summary(gguf, tensors=tensors)
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)


def print_facts(facts: dict[str, Any]) -> None:
    files = f"{len(facts['files'])} files, " if len(facts["files"]) > 1 else ""
    kind = f"GGUF version {facts['version']}" if "version" in facts else "safetensors"
    click.echo(f"{facts['files'][0]}: {files}{kind}, {size_text(facts['file_bytes'])}")
    click.echo(f"{shown(str(facts['architecture'] or 'unknown architecture'))}, {facts['parameters']:,} parameters")
    if "tokenizer" in facts:
        click.echo(tokenizer_text(facts["tokenizer"]))
    click.echo()
    print_table({"metadata": "left", "": "left"}, [[shown(k), value_text(v)] for k, v in facts["metadata"].items()])
    if facts.get("tensors"):
        heads = {"tensor": "left", "shape": "right", "format": "left", "size": "right"}
        click.echo()
        print_table(heads, [tensor_cells(row) for row in facts["tensors"]])
    heads = {"format": "left", "tensors": "right", "values": "right", "size": "right", "bits": "right"}
    click.echo()
    print_table(heads, [size_cells(row) for row in [*facts["formats"], {"format": "total", **facts["total"]}]])


def tokenizer_text(found: dict[str, Any]) -> str:
    if "error" in found:
        return f"tokenizer: {shown(found['error'], 400)}"
    template = "a chat template" if found["chat_template"] else "no chat template"
    return f"tokenizer: {found['model']}, {found['tokens']:,} tokens, {template}"


def tensor_cells(row: dict[str, Any]) -> list[str]:
    return [shown(row["name"]), "x".join(map(str, row["shape"])), row["format"], size_text(row["bytes"])]


def size_cells(row: dict[str, Any]) -> list[str]:
    bits = f"{row['bits_per_weight']:.4g}"
    return [row["format"], str(row["tensors"]), f"{row['values']:,}", size_text(row["bytes"]), bits]


def value_text(value: Any) -> str:
    """A metadata value in a line.

    >>> value_text({"type": "string", "count": 9, "first": ["a", "b"]})
    '9 x string: a, b, ...'
    """
    if isinstance(value, dict):
        return f"{value['count']} x {value['type']}: {', '.join(map(value_text, value['first']))}, ..."
    if isinstance(value, list):
        return shown(", ".join(map(value_text, value)))
    return shown(str(value))
