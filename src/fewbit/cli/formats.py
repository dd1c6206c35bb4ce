"""`fewbit formats` and `fewbit table`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from .options import as_json
from .output import measuring, print_json, print_table

if TYPE_CHECKING:
    from ..formats import Format


@click.command()
@as_json
def formats(as_json: bool) -> None:
    """The formats: bits a weight, block and group sizes.

    \b
    Examples:
      fewbit formats
      fewbit formats --json
    """
    from ..formats import all_formats

    every = all_formats().values()
    if as_json:
        print_json([format_facts(f) for f in every])
        return
    columns = {
        "format": "left", "bits": "right", "block": "right", "group": "right", "GGUF": "right",
        "about": "left",
    }  # fmt: skip
    print_table(columns, [format_cells(f) for f in every])


def format_facts(fmt: Format) -> dict[str, Any]:
    return {
        "name": fmt.name,
        "bits_per_weight": fmt.bits_per_weight,
        "block": fmt.block,
        "group": fmt.group,
        "gguf": fmt.gguf,
        "about": fmt.description,
    }


def format_cells(fmt: Format) -> list[str]:
    return [
        fmt.name,
        f"{fmt.bits_per_weight:g}",
        str(fmt.block or "row"),
        str(fmt.group or "row"),
        "-" if fmt.gguf is None else str(fmt.gguf),
        fmt.description,
    ]


@click.command()
@click.option("--rows", type=click.IntRange(1), default=1024, help="Rows of the matrix.")
@click.option("--columns", type=click.IntRange(1), default=4096, help="Columns of the matrix.")
@click.option("--format", "-f", "names", multiple=True, metavar="F", help="Only this format; may be given again.")
@as_json
def table(rows: int, columns: int, names: tuple[str, ...], as_json: bool) -> None:
    """Quantize a Gaussian matrix in every format; print bits, error and speed.

    Error is |decoded - original| / |original|. Encode and decode count the f32 side, linear the packed weights that
    it reads for one vector. The last column is the time of linear over that of NumPy's f32 product: below 1 is faster.
    The matrix may fit in the cache; `benchmarks/linear.py` measures from memory.

    \b
    Examples:
      fewbit table
      fewbit table -f q4_k -f int4_group:group=64
      fewbit table --rows 4096 --columns 4096 --json
    """
    from ..bench.formats import gaussian, measure, weight_formats
    from ..formats import get
    from ..ops import cpu

    chosen = [get(name) for name in names] or weight_formats()
    weights = gaussian(rows, columns)
    measured = [asdict(measure(fmt, weights)) for fmt in measuring(chosen, len(chosen))]
    running = {"isa": cpu.isa(), "threads": cpu.default_threads()}
    if as_json:
        print_json({"rows": rows, "columns": columns, **running, "formats": measured})
        return
    click.echo(f"{rows} x {columns}, {running['isa']}, {running['threads']} threads")
    heads = ["bits", "error", "encode MB/s", "decode GB/s", "linear GB/s", "time / NumPy f32"]
    print_table({"format": "left", **dict.fromkeys(heads, "right")}, [measured_cells(row) for row in measured])


def measured_cells(row: dict[str, Any]) -> list[str]:
    return [
        row["format"],
        f"{row['bits_per_weight']:.4g}",
        f"{100 * row['relative_rmse']:.3g}%",
        f"{row['encode_mb_per_s']:.0f}",
        f"{row['decode_gb_per_s']:.1f}",
        f"{row['linear_gb_per_s']:.1f}",
        f"{row['time_to_numpy']:.2f}",
    ]
