"""What a number of replicas does for a load, and the smallest number that is quick enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..errors import ArgumentError
from .figures import ReplicaFigures
from .load import ClientLoad, SimulatedRequest
from .simulation import Simulation, SimulationResult

MAX_REPLICAS = 4096


@dataclass(frozen=True)
class Percentiles:
    """Of times in seconds."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True)
class SizingPlan:
    """What can be expected of a number of replicas.

    Args:
        replicas: Number of replicas.
        requests_per_second: Answers that are finished.
        tokens_per_second: Tokens that are written.
        first_token: Time from a request to its first token.
        per_token: Time between two tokens of an answer.
        total: Time from a request to the end of its answer.
        utilization: Share of the time in which a replica runs a step.
        mean_batch: Tokens that a step writes.
        prefix_hits: Share of the requests whose prefix was cached.
        preemptions: Requests that lost their pages for a while.
        cost_per_hour: Of all replicas.
        cost_per_million_tokens: Of tokens that are written.
    """

    replicas: int
    requests_per_second: float
    tokens_per_second: float
    first_token: Percentiles
    per_token: Percentiles
    total: Percentiles
    utilization: float
    mean_batch: float
    prefix_hits: float
    preemptions: int
    cost_per_hour: float | None = None
    cost_per_million_tokens: float | None = None

    def facts(self) -> dict[str, Any]:
        return asdict(self)


def make_plan(
    figures: ReplicaFigures, load: ClientLoad, replicas: int, cost_per_hour: float | None = None, steady: bool = True
) -> SizingPlan:
    """What a number of replicas does for a load.

    Args:
        figures: Of one replica.
        load: The clients.
        replicas: Number of replicas.
        cost_per_hour: Of one replica.
        steady: Leave out the beginning and the end, when not all clients are there.
    """
    check_fits(figures, load)
    if not 1 <= replicas <= MAX_REPLICAS:
        raise ArgumentError(f"replicas must be between 1 and {MAX_REPLICAS}, got {replicas}")
    result = Simulation(figures, load, replicas).run()
    found, seconds = _window(result) if steady else (result.requests, result.seconds)
    tokens = sum(request.written for request in found) / seconds
    busy = sum(replica.busy_seconds for replica in result.replicas)
    steps, written = sum(one.steps for one in result.replicas), sum(one.written for one in result.replicas)
    cost = None if cost_per_hour is None else cost_per_hour * replicas
    return SizingPlan(
        replicas, len(found) / seconds, tokens, *_latencies(found), busy / (replicas * result.seconds),
        written / max(1, steps), sum(one.hits for one in result.replicas) / len(result.requests),
        sum(one.preemptions for one in result.replicas), cost, None if cost is None else cost / (tokens * 3600) * 1e6,
    )  # fmt: skip


def smallest_plan(
    make: Callable[[int], SizingPlan], is_enough: Callable[[SizingPlan], bool], most: int = MAX_REPLICAS
) -> SizingPlan | None:
    """The plan with the fewest replicas that is enough; None if none of up to `most` is."""
    least, enough, best = 0, 1, make(1)
    while not is_enough(best):
        if enough >= most:
            return None
        least, enough = enough, min(2 * enough, most)
        best = make(enough)
    while enough - least > 1:
        middle = (least + enough) // 2
        plan = make(middle)
        if is_enough(plan):
            enough, best = middle, plan
        else:
            least = middle
    return best


def check_fits(figures: ReplicaFigures, load: ClientLoad) -> None:
    """Refuse requests that no replica could ever run."""
    longest = load.prompt_tokens[1] + load.output_tokens[1]
    if longest + 1 > figures.pages * figures.page_tokens:
        raise ArgumentError(
            f"a request of {longest} tokens does not fit into the cache of {figures.pages * figures.page_tokens} tokens"
        )


def _window(result: SimulationResult) -> tuple[list[SimulatedRequest], float]:
    """The requests that ended in the middle half of the time."""
    first, last = result.seconds / 4, result.seconds * 3 / 4
    found = [request for request in result.requests if first <= request.finish_time < last]
    return (found, last - first) if found else (result.requests, result.seconds)


def _latencies(found: Sequence[SimulatedRequest]) -> tuple[Percentiles, Percentiles, Percentiles]:
    arrival, first, end, tokens = (
        np.array([getattr(one, name) for one in found]) for name in ("arrival", "first_time", "finish_time", "written")
    )
    several = tokens > 1
    between = (end - first)[several] / (tokens[several] - 1)
    return _percentiles(first - arrival), _percentiles(between), _percentiles(end - arrival)


def _percentiles(seconds: Any) -> Percentiles:
    return Percentiles(*map(float, np.percentile(seconds, [50, 95, 99]))) if len(seconds) else Percentiles(0, 0, 0)
