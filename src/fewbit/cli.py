"""The `fewbit` command. It is thin: it reads options, calls the library and prints.

To add a command: write a function here with `@main.command()`, and have what it does stand elsewhere.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from . import kernels
from .errors import FewbitError
from .files.gguf import read_gguf, summary
from .formats import Format, all_formats, get
from .limits import Limits, measure_limits
from .machine import Machine, describe, version
from .measure import gaussian, measure, weight_formats
from .ops import cpu

Rows = list[list[str]]

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Commands(click.Group):
    """A group whose commands end on a FewbitError with one line and status 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FewbitError as error:
            click.echo("fewbit: " + " ".join(str(error).split()), err=True)
            ctx.exit(1)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("fewbit"), prog_name="fewbit")
def main() -> None:
    """Language models with their weights kept in few bits.

    \b
    Examples:
      fewbit doctor                  what this machine can do
      fewbit formats                 the formats and their sizes
      fewbit table --format q4_k     bits, error and speed of a format
      fewbit inspect model.gguf      what a file holds
    """


@main.command()
@click.option("--measure", "with_limits", is_flag=True, help="Measure read bandwidth and multiply rates too.")
@as_json
def doctor(with_limits: bool, as_json: bool) -> None:
    """What this machine offers, and what fewbit chose.

    \b
    Examples:
      fewbit doctor
      fewbit doctor --measure
      fewbit doctor --json
      FEWBIT_ISA=scalar fewbit doctor
    """
    machine = describe()
    limits = measure_limits() if with_limits else []
    if as_json:
        print_json(asdict(machine) | ({"limits": [asdict(row) for row in limits]} if with_limits else {}))
        return
    print_table({"machine": "left", "": "left"}, machine_rows(machine))
    if limits:
        heads = ["memory GB/s", "with prefetch", "cache GB/s", "int8 GMAC/s", "bf16 GMAC/s", "f32 GMAC/s"]
        click.echo()
        print_table({"threads": "right", **dict.fromkeys(heads, "right")}, [limit_cells(row) for row in limits])


def limit_cells(row: Limits) -> list[str]:
    rates = (
        row.memory_gb_per_s,
        row.memory_ahead_gb_per_s,
        row.cache_gb_per_s,
        row.int8_gmac_per_s,
        row.bf16_gmac_per_s,
        row.f32_gmac_per_s,
    )
    return [str(row.threads), *(f"{rate:.4g}" if rate else "-" for rate in rates)]


@main.group()
def bench() -> None:
    """Speed beside the machine's own limits."""


@bench.command("kernels")
@click.option("--format", "-f", "names", multiple=True, metavar="F", help="This format; may be given again.")
@click.option("--shape", default="4096x4096", show_default=True, metavar="NxK", help="Rows and columns of the weights.")
@click.option("--batch", default="1", show_default=True, metavar="B,..", help="Batch sizes.")
@click.option("--threads", type=click.IntRange(1), help="Threads; all usable cores if not given.")
@click.option("--isa", help="Instruction set; the best if not given.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Rounds beside the limits.")
@as_json
def bench_kernels(
    names: tuple[str, ...], shape: str, batch: str, threads: int | None, isa: str | None, rounds: int, as_json: bool
) -> None:
    """Time linear for formats and batch sizes, beside a plain read loop and the peak multiply rate.

    Weights rotate over 1 GiB, so that no cache holds them. Shares are medians over rounds in which the kernel and the
    limit take turns.

    \b
    Examples:
      fewbit bench kernels
      fewbit bench kernels -f q4_k -f q6_k --batch 1,8,512
      fewbit bench kernels -f q4_0 --shape 4096x14336 --isa avx2 --json
    """
    if isa:
        cpu.use_isa(isa)
    n, k = numbers(shape, "x", "--shape", 2)
    sizes = numbers(batch, ",", "--batch")
    cases = [
        kernels.Case(get(name), n, k, m, threads or cpu.default_threads())
        for name in names or kernels.FORMATS
        for m in sizes
    ]
    terminal = Console(stderr=True)
    todo = track(cases, "measuring", console=terminal, transient=True, disable=not terminal.is_terminal)
    timings = [kernels.run(case, rounds) for case in todo]
    if as_json:
        print_json([asdict(t) for t in timings])
        return
    click.echo(f"{n} x {k}, {cpu.isa()}, {cases[0].threads} threads")
    heads = ["batch", "ms", "weights GB/s", "of read", "GFLOP/s", "peak", "of peak", "kernel"]
    print_table({"format": "left", **dict.fromkeys(heads, "right")}, [timing_cells(t) for t in timings])


def timing_cells(t: kernels.Timing) -> list[str]:
    shares = f"{100 * t.share_of_read:.0f}%", f"{100 * t.share_of_peak:.1f}%"
    return [
        t.format,
        str(t.batch),
        f"{t.ms:.3f}",
        f"{t.weights_gb_per_s:.1f}",
        shares[0],
        f"{t.gflop_per_s:.0f}",
        t.peak,
        shares[1],
        t.kernel,
    ]


def numbers(text: str, separator: str, option: str, count: int | None = None) -> list[int]:
    """Positive numbers out of an option.

    >>> numbers("1,8", ",", "--batch")
    [1, 8]
    """
    parts = text.split(separator)
    if not all(part.isdecimal() and int(part) > 0 for part in parts) or len(parts) != (count or len(parts)):
        example = separator.join(["64"] * (count or 2))
        raise click.BadParameter(f"{text!r} is not like {example}", param_hint=option)
    return [int(part) for part in parts]


@main.command()
@as_json
def formats(as_json: bool) -> None:
    """The formats: bits a weight, block and group sizes.

    \b
    Examples:
      fewbit formats
      fewbit formats --json
    """
    every = all_formats().values()
    if as_json:
        print_json([format_facts(f) for f in every])
        return
    columns = {
        "format": "left", "bits": "right", "block": "right", "group": "right", "GGUF": "right", "encodes": "left",
        "about": "left",
    }  # fmt: skip
    print_table(columns, [format_cells(f) for f in every])


@main.command()
@click.option("--rows", type=click.IntRange(1), default=1024, show_default=True, help="Rows of the matrix.")
@click.option("--columns", type=click.IntRange(1), default=4096, show_default=True, help="Columns of the matrix.")
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
    chosen = [get(name) for name in names] or weight_formats()
    weights = gaussian(rows, columns)
    terminal = Console(stderr=True)
    todo = track(chosen, "measuring", console=terminal, transient=True, disable=not terminal.is_terminal)
    measured = [asdict(measure(fmt, weights)) for fmt in todo]
    if as_json:
        print_json({"rows": rows, "columns": columns, **running(), "formats": measured})
        return
    click.echo(f"{rows} x {columns}, {running()['isa']}, {running()['threads']} threads")
    heads = ["bits", "error", "encode MB/s", "decode GB/s", "linear GB/s", "time / NumPy f32"]
    print_table({"format": "left", **dict.fromkeys(heads, "right")}, [measured_cells(row) for row in measured])


@main.command()
@click.argument("path", type=click.Path())
@click.option("--tensors/--no-tensors", default=True, show_default=True, help="List every tensor.")
@as_json
def inspect(path: str, tensors: bool, as_json: bool) -> None:
    """What a GGUF file holds: metadata, tensors, formats and sizes.

    Of a model in several files, any one will do.

    \b
    Examples:
      fewbit inspect model.gguf
      fewbit inspect model.gguf --no-tensors
      fewbit inspect model-00001-of-00003.gguf --json
    """
    with read_gguf(path) as gguf:
        facts = summary(gguf, tensors=tensors)
    if as_json:
        print_json(facts)
        return
    files = f"{len(facts['files'])} files, " if len(facts["files"]) > 1 else ""
    click.echo(f"{facts['files'][0]}: {files}GGUF version {facts['version']}, {size_text(facts['file_bytes'])}")
    click.echo()
    print_table({"metadata": "left", "": "left"}, [[shown(k), value_text(v)] for k, v in facts["metadata"].items()])
    if tensors and facts["tensors"]:
        heads = {"tensor": "left", "shape": "right", "format": "left", "size": "right"}
        click.echo()
        print_table(heads, [tensor_cells(row) for row in facts["tensors"]])
    heads = {"format": "left", "tensors": "right", "values": "right", "size": "right", "bits": "right"}
    click.echo()
    print_table(heads, [size_cells(row) for row in [*facts["formats"], {"format": "total", **facts["total"]}]])


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
        return ", ".join(map(value_text, value))
    return shown(str(value))


def shown(text: str, width: int = 80) -> str:
    """Text from a file: on one line, and nothing that a terminal would obey.

    >>> shown("a\\x1b[31m")
    'a\\\\x1b[31m'
    """
    safe = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: width + 1])
    return safe if len(safe) <= width else safe[: width - 3] + "..."


def size_text(size: float) -> str:
    """Bytes in a unit that fits.

    >>> size_text(1536)
    '1.5 KiB'
    """
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"


def running() -> dict[str, Any]:
    return {"isa": cpu.isa(), "threads": cpu.default_threads()}


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


def format_facts(fmt: Format) -> dict[str, Any]:
    return {
        "name": fmt.name,
        "bits_per_weight": fmt.bits_per_weight,
        "block": fmt.block,
        "group": fmt.group,
        "gguf": fmt.gguf,
        "encodes": fmt.rule != "none",
        "about": fmt.about,
    }


def format_cells(fmt: Format) -> list[str]:
    facts = format_facts(fmt)
    return [
        fmt.name,
        f"{fmt.bits_per_weight:g}",
        str(fmt.block or "row"),
        str(fmt.group or "row"),
        "-" if fmt.gguf is None else str(fmt.gguf),
        "yes" if facts["encodes"] else "no",
        fmt.about,
    ]


def machine_rows(m: Machine) -> Rows:
    chosen = f"{m.isa} (FEWBIT_ISA={m.forced_isa})" if m.forced_isa else m.isa
    paths = sorted(set(m.kernels.values()))
    names = {path: [name for name, p in m.kernels.items() if p == path] for path in paths}
    return [
        ["CPU", m.cpu],
        ["system", f"{m.system}, Python {m.python}"],
        ["cores", f"{m.cores}, {m.usable_cores} usable"],
        ["threads", str(m.threads)],
        ["instruction sets", ", ".join(m.isas)],
        ["in use", chosen],
        *([f"kernels: {path}", " ".join(names[path])] for path in paths),
        ["packages", versions(m.packages)],
        ["optional", versions(m.optional_packages)],
    ]


def versions(packages: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {found or '(not found)'}" for name, found in packages.items())


def print_json(data: object) -> None:
    click.echo(json.dumps(data, indent=2))


def print_table(columns: dict[str, Any], rows: Rows) -> None:
    """A table with lines on a terminal, aligned words elsewhere. `columns`: head -> "left" or "right"."""
    console = Console()
    if console.is_terminal:
        table = Table()
        for head, side in columns.items():
            table.add_column(head, justify=side)
        for row in rows:
            table.add_row(*row)
        console.print(table, markup=False, highlight=False)
        return
    click.echo("\n".join(plain(columns, rows)))


def plain(columns: dict[str, Any], rows: Rows) -> list[str]:
    """Lines of cells, each column as wide as its widest cell."""
    lines = [list(columns), *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    signs = ["<" if side == "left" else ">" for side in columns.values()]
    return ["  ".join(f"{c:{s}{w}}" for c, s, w in zip(line, signs, widths, strict=True)).rstrip() for line in lines]
