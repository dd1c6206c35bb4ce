"""`fewbit bench MODEL`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ..load_options import LoadOptions
from .completion import ModelName
from .model import find_model
from .options import SEVERAL, as_json, count_option, load_option, numbers
from .output import measuring, print_json, print_table

if TYPE_CHECKING:
    from ..bench.model import Speed


@click.command("model")
@click.argument("model", type=ModelName())
@count_option("-p", "--prompt", what="Prompt, in tokens.", default=512, show_default=True)
@count_option("-n", "--gen", what="Steps of one token.", default=64, show_default=True)
@click.option("-d", "--depth", default="0", show_default=True, metavar="N,..", help="Tokens before the steps.")
@click.option(
    "-b", "--batch", default="1,8,32", show_default=True, metavar="N,..", help="Sequences that go on at the same time."
)
@click.option("-t", "--threads", metavar="N,..", show_default="all usable cores", help="Threads to use.")
@load_option("device")
@load_option("kv", metavar=SEVERAL)
@count_option("-r", "--rounds", what="Times that each case is measured.", default=3, show_default=True)
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
    threads: str | None,
    kv: str,
    rounds: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Tokens/s of a model.

    A prompt is run on an empty cache; then, at each depth, steps of one token for each sequence. Tokens are random.
    Options with a comma take several values: every combination is a case. "of read" is what is read a second (weights,
    K and V) over what a plain loop reads; both alternate. On a GPU it is not measured.

    \b
    Examples:
      fewbit bench model.gguf
      fewbit bench model.gguf --batch 1,8,32 --depth 0,2048
      fewbit bench model.gguf --device cuda
      fewbit bench smollm2 --kv f16,q8_0,q8_0/q4_0 --threads 1,2 --json
    """
    from ..bench.model import Case, measure
    from ..ops import cpu

    cases = [
        Case(prompt, gen, depth_, batch_, threads_, kv_)
        for threads_ in (numbers(threads, ",", "--threads") if threads else [cpu.default_threads()])
        for kv_ in kv.split(",")
        for depth_ in numbers(depth, ",", "--depth", least=0)
        for batch_ in numbers(batch, ",", "--batch")
    ]
    path = find_model(model)
    running = measure(path, cases, LoadOptions(**options), rounds)
    speeds = list(measuring(running, len(cases)))
    if as_json:
        print_json([asdict(speed) for speed in speeds])
        return
    where, activations = cpu.isa() if options["device"] == "cpu" else options["device"], speeds[0].activations
    click.echo(f"{path.name}, {where}" + (f", activations: {activations}" if activations else ""))
    heads = ["prompt", "gen", "depth", "batch", "threads", "kv", "prefill tokens/s", "decode tokens/s", "of read"]
    print_table(dict.fromkeys(heads, "right"), [cells(speed) for speed in speeds])


def cells(speed: Speed) -> list[str]:
    counts = speed.prompt_tokens, speed.gen_tokens, speed.depth, speed.batch, speed.threads, speed.kv
    rates = f"{speed.prefill_tokens_per_second:.1f}", f"{speed.decode_tokens_per_second:.1f}"
    share = speed.decode_bandwidth_share
    return [*map(str, counts), *rates, "-" if share is None else f"{100 * share:.0f}%"]
