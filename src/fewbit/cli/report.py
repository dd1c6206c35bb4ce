"""`fewbit report`: an HTML page about quantized models."""

from __future__ import annotations

from pathlib import Path

import click

from .completion import ModelName
from .model import find_model, plain_warnings
from .options import SEVERAL, count_option, load_option, quiet_option
from .output import is_quiet, tell


@click.command()
@click.argument("models", type=ModelName(), metavar="MODEL...", nargs=-1, required=True)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", required=True,
              help="The HTML file to write.")  # fmt: skip
@click.option("--text", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Text that the models read. Without one only weights are looked at.")  # fmt: skip
@click.option("--reference", metavar="MODEL", help="The model that they were made of.")
@click.option("--svg", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
              help="Also write each chart as an SVG file.")  # fmt: skip
@count_option("-c", "--ctx", what="Tokens of a window.", least=2, default=512)
@load_option("kv", metavar=SEVERAL, default="q8_0,q4_0",
             help="Formats of the KV cache to compare with f16, on the first model.")  # fmt: skip
@load_option("activations")
@load_option("device")
@load_option("threads")
@quiet_option
def report(
    models: tuple[str, ...], output: Path, text: Path | None, reference: str | None, svg: Path | None, ctx: int,
    kv: str, activations: str | None, device: str, threads: int | None,
) -> None:  # fmt: skip
    """Write an HTML page about quantized models.

    It shows size against loss, loss by layer and matrix, weights and codes, and formats of the KV cache by depth. The
    page is one file that fetches nothing, for light and dark screens.

    \b
    Examples:
      fewbit report q4.gguf q3.gguf --reference f16.gguf --text a.txt -o r.html
      fewbit report q4.gguf --reference f16.gguf -o weights.html --svg charts/
    """
    from ..reporting import report as measure

    paths, base = [find_model(model) for model in models], None if reference is None else find_model(reference)
    with plain_warnings():
        found = measure(
            paths, text, reference=base, kv=kv.split(","), ctx=ctx,
            activations=activations, device=device, threads=threads, progress=not is_quiet(),
        )  # fmt: skip
    found.save(output)
    tell(f"{output}: {len(models)} model{'s' if len(models) > 1 else ''}")
    if svg is not None:
        tell(f"{svg}: {len(found.save_svgs(svg))} charts")
