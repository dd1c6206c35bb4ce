"""`fewbit calibrate`: importance matrices for quantization."""

from __future__ import annotations

from pathlib import Path

import click

from .completion import ModelName
from .model import find_model, plain_warnings
from .options import count_option, load_option, quiet_option
from .output import is_quiet, tell


@click.command()
@click.argument("model", type=ModelName())
@click.option("--text", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", required=True,
              help="Text that the model reads.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", required=True,
              help="The GGUF file to write, such as imatrix.gguf.")  # fmt: skip
@click.option("--hessian", is_flag=True, help="Also write products of pairs of inputs, to a file beside it.")
@count_option("-c", "--ctx", what="Tokens of a window.", least=2, default=512)
@load_option("device")
@load_option("kv")
@load_option("activations")
@load_option("threads")
@quiet_option
def calibrate(
    model: str, text: Path, output: Path, hessian: bool, ctx: int, device: str, kv: str, activations: str | None,
    threads: int | None,
) -> None:  # fmt: skip
    """Measure which inputs of each matrix matter, while a model reads a text.

    The file holds the mean squares of the inputs of each matrix, those of each expert apart, as llama-imatrix writes
    them: llama-quantize reads it too. Run it on the model with the most bits that you have, over some ten thousand
    tokens like those that the model will see. The file appears when it is complete.

    \b
    Examples:
      fewbit calibrate model-f16.gguf --text book.txt -o imatrix.gguf
      fewbit calibrate checkpoint/ --text book.txt -o imatrix.gguf --hessian
    """
    from ..evaluation import calibrate as measure
    from ..files.hessian import hessian_path

    path = find_model(model)
    with plain_warnings():
        found = measure(
            path, text, ctx=ctx, hessian=hessian, kv=kv, activations=activations, device=device,
            threads=threads, progress=not is_quiet(),
        )  # fmt: skip
    found.save(output)
    matrix = found.imatrix
    tell(f"{output}: {len(matrix)} matrices, {matrix.chunk_count} windows of {matrix.chunk_size} tokens")
    if hessian:
        tell(f"{hessian_path(output)}: products of inputs of {len(found.hessians)} matrices")
