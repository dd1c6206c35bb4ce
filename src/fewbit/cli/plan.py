"""`fewbit plan`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .completion import ModelName
from .model import load
from .options import all_options, as_json, count_option, model_options, quiet_option, serve_options, split_options
from .output import print_json, print_table, tell
from .progress import Waiting

if TYPE_CHECKING:
    from ..sizing import ClientLoad, ReplicaFigures, SizingPlan
    from ..sizing.plan import Percentiles

Span = tuple[int, int]


def read_span(_: click.Context, option: click.Parameter, value: str) -> Span:
    """A number, or two with all between."""
    low, is_span, high = value.partition("-")
    numbers = [low, high if is_span else low]
    if not all(one.isdecimal() and len(one) < 10 for one in numbers):
        raise click.BadParameter(f"{value!r} is not like 512 or 100-900", param=option)
    return int(numbers[0]), int(numbers[1])


OPTIONS = [
    count_option("--clients", what="Clients; each has one request at a time.", required=True),
    click.option("--prompt-tokens", default="512", callback=read_span, metavar="N[-M]",
                 help="Length of prompts; a span: all lengths in it are as likely."),
    click.option("--output-tokens", default="128", callback=read_span, metavar="N[-M]",
                 help="Length of answers, likewise."),
    click.option("--think-seconds", type=click.FloatRange(0), default=0.0, metavar="S",
                 help="Mean time from an answer to the client's next request."),
    count_option("--shared-tokens", what="Tokens with which the prompts of a group of clients begin alike.", least=0,
                 default=0),
    count_option("--groups", what="Groups of clients with a shared prefix.", default=1),
    count_option("--replicas", what="Replicas.", show_default="1, or as many as --target needs"),
    click.option("--target-p95", type=click.FloatRange(0, min_open=True), metavar="S",
                 help="Find the fewest replicas with which 95% of the answers are complete within S seconds."),
    click.option("--target-first-p95", type=click.FloatRange(0, min_open=True), metavar="S",
                 help="The same for the first token."),
    click.option("--cost-per-hour", type=click.FloatRange(0), metavar="X", help="Cost of a replica."),
    click.option("--figures", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
                 help="Read the figures of a replica from this file; if it is not there, measure and write it."),
    click.option("-s", "--seed", type=click.IntRange(0), default=0, metavar="N", help="Of the simulation."),
    serve_options,
    model_options,
    quiet_option,
    as_json,
]  # fmt: skip


@click.command()
@click.argument("model", type=ModelName())
@partial(all_options, OPTIONS)
def plan(
    model: str,
    figures: Path | None,
    replicas: int | None,
    target_p95: float | None,
    target_first_p95: float | None,
    cost_per_hour: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """How many replicas a number of clients needs, and what they get.

    One replica of MODEL is measured on this machine; then the scheduler of any number of them is simulated, with
    clients that ask, wait, think and ask again. --figures keeps what was measured, so that a plan for another machine
    or another load takes seconds.

    \b
    Examples:
      fewbit plan model.gguf --clients 16
      fewbit plan model.gguf --clients 500 --replicas 8 --cost-per-hour 0.4
      fewbit plan model.gguf --clients 10000 --think-seconds 30 --target-p95 20
      fewbit plan model.gguf --clients 64 --figures arm.json --json
    """
    loading, rest = split_options(options)
    found = read_or_measure(model, figures, loading)
    from ..sizing import ClientLoad

    clients_load = ClientLoad(**rest)
    targets = {"total": target_p95, "first_token": target_first_p95}
    with Waiting("simulating"):
        result = best_plan(found, clients_load, replicas, targets, cost_per_hour)
    if as_json:
        print_json(result.facts())
    else:
        print_plan(result, clients_load)


def read_or_measure(model: str, path: Path | None, loading: dict[str, Any]) -> ReplicaFigures:
    from ..sizing import read_figures
    from ..sizing.measure import measure

    if path is not None and path.exists():
        return read_figures(path)
    with load(model, **loading) as llm, Waiting("measuring") as waiting:
        found = measure(llm, tell=lambda what: waiting(f"measuring: {what}", 0, None))
    if path is not None:
        found.save(path)
        tell(f"fewbit: {path} has the figures of {found.model} on this machine")
    return found


def best_plan(
    figures: ReplicaFigures,
    load: ClientLoad,
    replicas: int | None,
    targets: dict[str, float | None],
    cost_per_hour: float | None,
) -> SizingPlan:
    """The plan for a number of replicas; without one, for the fewest that meet the targets."""
    from ..sizing import make_plan, smallest_plan
    from ..sizing.plan import MAX_REPLICAS

    given = {name: seconds for name, seconds in targets.items() if seconds is not None}
    if replicas is not None or not given:
        return make_plan(figures, load, replicas or 1, cost_per_hour)

    def is_enough(plan: SizingPlan) -> bool:
        return all(getattr(plan, name).p95 <= seconds for name, seconds in given.items())

    most = min(load.clients, MAX_REPLICAS)  # more would be idle
    found = smallest_plan(lambda count: make_plan(figures, load, count, cost_per_hour), is_enough, most)
    if found is None:
        raise click.UsageError("no number of replicas is so quick: a request alone takes longer; use a later target")
    return found


def print_plan(plan: SizingPlan, load: ClientLoad) -> None:
    click.echo(f"{load.clients} clients, {plan.replicas} replica{'s' if plan.replicas > 1 else ''}: "
               f"{plan.tokens_per_second:,.0f} tokens/s, {plan.requests_per_second:,.2f} answers/s")  # fmt: skip
    rows = [
        time_cells("first token", plan.first_token), time_cells("between tokens", plan.per_token),
        time_cells("whole answer", plan.total),
    ]  # fmt: skip
    print_table({"seconds": "left", "median": "right", "p95": "right", "p99": "right"}, rows)
    hits = f", {plan.prefix_hits:.0%} of the prefixes cached" if load.shared_tokens else ""
    lost = f", {plan.preemptions} requests lost their pages for a while" if plan.preemptions else ""
    click.echo(f"busy {plan.utilization:.0%}, {plan.mean_batch:.1f} tokens a step{hits}{lost}")
    if plan.cost_per_hour is not None and plan.cost_per_million_tokens is not None:
        click.echo(f"cost {plan.cost_per_hour:.2f} an hour, {plan.cost_per_million_tokens:.3f} a million tokens")


def time_cells(name: str, times: Percentiles) -> list[str]:
    return [name, *(f"{seconds:.3g}" for seconds in (times.p50, times.p95, times.p99))]
