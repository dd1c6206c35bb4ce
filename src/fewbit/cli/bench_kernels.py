"""`fewbit bench kernels`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from .options import as_json, load_option, numbers
from .output import measuring, print_json, print_table

if TYPE_CHECKING:
    from ..bench.kernels import Timing


@click.command("kernels")
@click.option("--format", "-f", "names", multiple=True, metavar="F", help="This format; may be given again.")
@click.option("--shape", default="4096x4096", show_default=True, metavar="NxK", help="Rows and columns of the weights.")
@click.option("--batch", default="1", show_default=True, metavar="B,..", help="Batch sizes.")
@click.option("--threads", type=click.IntRange(1), help="Threads; all usable cores if not given.")
@click.option("--isa", help="Instruction set; the best if not given.")
@click.option("--repack", is_flag=True, help="Weights as fb.repack gives them.")
@load_option("activations")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Rounds beside the limits.")
@as_json
def bench_kernels(
    names: tuple[str, ...], shape: str, batch: str, threads: int | None, isa: str | None, repack: bool,
    activations: str | None, rounds: int, as_json: bool,
) -> None:  # fmt: skip
    """Time linear for formats and batch sizes, beside a plain read loop and the peak multiply rate.

    Weights rotate over 1 GiB, so that no cache holds them. Shares are medians over rounds in which the kernel and the
    limit alternate.

    \b
    Examples:
      fewbit bench kernels
      fewbit bench kernels -f q4_k -f q6_k --batch 1,8,512
      fewbit bench kernels -f q4_0 --batch 1,8 --repack
      fewbit bench kernels -f q4_0 --shape 4096x14336 --isa avx2 --json
    """
    from ..bench import kernels
    from ..formats import get
    from ..ops import cpu

    if isa:
        cpu.use_isa(isa)
    n, k = numbers(shape, "x", "--shape", 2)
    sizes = numbers(batch, ",", "--batch")
    cases = [
        kernels.Case(get(name), n, k, m, threads or cpu.default_threads(), repack, activations)
        for name in names or kernels.FORMATS
        for m in sizes
    ]
    timings = [kernels.run(case, rounds) for case in measuring(cases, len(cases))]
    if as_json:
        print_json([asdict(t) for t in timings])
        return
    click.echo(f"{n} x {k}, {cpu.isa()}, {cases[0].threads} threads")
    heads = ["batch", "ms", "weights GB/s", "of read", "GFLOP/s", "peak", "of peak", "kernel", "inputs"]
    print_table({"format": "left", **dict.fromkeys(heads, "right")}, [timing_cells(t) for t in timings])


def timing_cells(t: Timing) -> list[str]:
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
        t.inputs,
    ]
