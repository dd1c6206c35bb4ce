"""`fewbit bench`: the speed of a model, and of kernels."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ..load_options import LoadOptions
from .completion import ModelName
from .group import LazyGroup
from .model import find_model
from .options import SEVERAL, as_json, count_option, load_option, numbers
from .output import measuring, print_json, print_table

if TYPE_CHECKING:
    from ..bench.kernels import Timing
    from ..bench.model import Speed

TABLE = {
    "kernels": (
        "bench.bench_kernels",
        "Time linear for formats and batch sizes, beside a plain read loop and the peak multiply rate.",
    ),
    "model": ("bench.bench_model", "Tokens/s of a model."),
}
DEFAULT = "model"
HEADS = (
    "prompt", "gen", "depth", "batch", "threads", "kv", "drafts", "prefill tokens/s", "decode tokens/s", "of read",
)  # fmt: skip


class BenchGroup(LazyGroup):
    """What is no command of the group is the name of a model."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.table, *ctx.help_option_names):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "MODEL [OPTIONS]")
        formatter.write_usage(ctx.command_path, "kernels [OPTIONS]")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        command = self.get_command(ctx, DEFAULT)
        assert command
        command.format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


@click.group(cls=BenchGroup, table=TABLE)
def bench() -> None:
    """Speed beside the machine's own limits.

    \b
    Examples:
      fewbit bench model.gguf
      fewbit bench model.gguf --batch 1,8,32 --depth 0,2048
      fewbit bench kernels
      fewbit bench kernels -f q4_k -f q6_k --batch 1,8,512
    """


@click.command("model")
@click.argument("model", type=ModelName())
@count_option("-p", "--prompt", what="Prompt, in tokens.", default=512)
@count_option("-n", "--gen", what="Steps of one token.", default=64)
@click.option("-d", "--depth", default="0", metavar="N,..", help="Tokens before the steps.")
@click.option("-b", "--batch", default="1,8,32", metavar="N,..", help="Sequences that go on at the same time.")
@click.option("--drafts", default="0", metavar="N,..", help="Guesses that a step verifies for each sequence.")
@click.option("-t", "--threads", metavar="N,..", show_default="all usable cores", help="Threads to use.")
@load_option("device")
@load_option("kv", metavar=SEVERAL)
@count_option("-r", "--rounds", what="Times that each case is measured.", default=3)
@load_option("repack")
@load_option("activations")
@load_option("batch_invariant")
@load_option("exact")
@as_json
def bench_model(
    model: str,
    prompt: int,
    gen: int,
    depth: str,
    batch: str,
    drafts: str,
    threads: str | None,
    kv: str,
    rounds: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Tokens/s of a model.

    With --drafts, a step also verifies guesses, which are all wrong here: what they cost (see --speculate).

    A prompt is run on an empty cache; then, at each depth, steps of one token for each sequence. Tokens are random.
    Options with a comma take several values: every combination is a case. "of read" is what is read a second (weights,
    K and V) over what a plain loop reads; both alternate. On a GPU it is not measured.

    \b
    Examples:
      fewbit bench model.gguf
      fewbit bench model.gguf --batch 1,8,32 --depth 0,2048
      fewbit bench model.gguf --device cuda
      fewbit bench model.gguf --batch 1 --drafts 0,2,4,8
      fewbit bench smollm2 --kv f16,q8_0,q8_0/q4_0 --threads 1,2 --json
    """
    from ..bench.model import ModelCase, measure
    from ..ops import cpu

    cases = [
        ModelCase(prompt, gen, depth_, batch_, threads_, kv_, drafts_)
        for threads_ in (numbers(threads, ",", "--threads") if threads else [cpu.default_threads()])
        for kv_ in kv.split(",")
        for depth_ in numbers(depth, ",", "--depth", least=0)
        for batch_ in numbers(batch, ",", "--batch")
        for drafts_ in numbers(drafts, ",", "--drafts", least=0)
    ]
    path = find_model(model)
    running = measure(path, cases, LoadOptions(**options), rounds)
    speeds = list(measuring(running, len(cases)))
    if as_json:
        print_json([asdict(speed) for speed in speeds])
        return
    where, activations = cpu.isa() if options["device"] == "cpu" else options["device"], speeds[0].activations
    click.echo(f"{path.name}, {where}" + (f", activations: {activations}" if activations else ""))
    print_table(dict.fromkeys(HEADS, "right"), [speed_cells(speed) for speed in speeds])


def speed_cells(speed: Speed) -> list[str]:
    counts = speed.prompt_tokens, speed.gen_tokens, speed.depth, speed.batch, speed.threads, speed.kv, speed.drafts
    rates = f"{speed.prefill_tokens_per_second:.1f}", f"{speed.decode_tokens_per_second:.1f}"
    share = speed.decode_bandwidth_share
    return [*map(str, counts), *rates, "-" if share is None else f"{100 * share:.0f}%"]


@click.command("kernels")
@click.option("--format", "-f", "names", multiple=True, metavar="F", help="This format; may be given again.")
@click.option("--shape", default="4096x4096", metavar="NxK", help="Rows and columns of the weights.")
@click.option("--batch", default="1", metavar="B,..", help="Batch sizes.")
@click.option("--threads", type=click.IntRange(1), help="Threads; all usable cores if not given.")
@click.option("--isa", help="Instruction set; the best if not given.")
@click.option("--repack", is_flag=True, help="Weights as fb.repack gives them.")
@load_option("activations")
@click.option("--rounds", type=click.IntRange(1), default=5, help="Rounds beside the limits.")
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
        kernels.KernelCase(get(name), n, k, m, threads or cpu.default_threads(), repack, activations)
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
