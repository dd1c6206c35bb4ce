"""The simulation schedules as the engine does, and its many steps at once are those one by one."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.engine.engine import Engine
from fewbit.sizing import ClientLoad, ReplicaFigures, make_plan, smallest_plan
from fewbit.sizing.load import Clients, SimulatedRequest
from fewbit.sizing.replica import SimulatedReplica
from fewbit.sizing.simulation import Simulation, SimulationResult

from ..engine.toy import Toy

STEP, TOKEN = 1.0, 0.25  # seconds of a step, and of each of its tokens
FIGURES = ReplicaFigures(
    "toy", [(1, STEP + TOKEN), (2, STEP + 2 * TOKEN)], [(1, STEP + TOKEN), (2, STEP + 2 * TOKEN)], 0.0, 0.0, 0.0,
    max_seqs=4, max_batched_tokens=16, pages=400, page_tokens=4,
)  # fmt: skip

Times = list[tuple[float, float, float]]  # arrival, first token, end


def run_engine(load: ClientLoad, figures: ReplicaFigures) -> tuple[Times, int]:
    """The same clients at a real engine, by a clock that counts tokens of steps. Its preemptions, too."""
    toy = Toy(figures.pages, figures.page_tokens, 128, 40, figures.max_batched_tokens)
    engine = Engine(toy, toy.cache, toy.ctx, max_seqs=figures.max_seqs)
    clients, times, random = Clients(load), [], Random(0)

    def now() -> float:
        return sum(STEP + TOKEN * sum(batch) for batch in toy.batches)

    def ask(client: int) -> None:
        asked = clients.ask(client, now())
        if asked is None:
            return
        begin = [one % 40 for one in range(7 * asked.group, 7 * asked.group + asked.shared)]
        own = [random.randrange(40) for _ in range(asked.prompt - asked.shared)]
        (request,) = engine.generation(begin + own, max_tokens=asked.output, client=str(client))
        request.stream, first = True, []

        def take(delta: Any) -> None:
            first.append(now())
            if delta.finish is not None:
                times.append((asked.arrival, first[0], now()))
                ask(client)

        request.sink = take
        engine.add([request])

    for client in range(load.clients):
        ask(client)
    while engine.step():
        pass
    return times, engine.stats().preemptions


def run_simulation(load: ClientLoad, figures: ReplicaFigures) -> tuple[Times, SimulationResult]:
    result = Simulation(figures, load, 1).run()
    return [(one.arrival, one.first_time, one.finish_time) for one in result.requests], result


@pytest.mark.parametrize("clients", [1, 2, 4, 7])
@pytest.mark.parametrize(("prompt", "output"), [((9, 9), (5, 5)), ((1, 40), (1, 20)), ((30, 60), (1, 4))])
def test_times_are_those_of_the_engine(clients: int, prompt: tuple[int, int], output: tuple[int, int]) -> None:
    load = ClientLoad(clients, prompt, output, requests=6, stagger=False)
    real, _ = run_engine(load, FIGURES)
    simulated, _ = run_simulation(load, FIGURES)
    assert len(simulated) == len(real) == 6 * clients
    if clients == 1:
        assert [pytest.approx(one) for one in simulated] == real
    check_close(simulated, real, 0.05)


@pytest.mark.parametrize("pages", [30, 50])
def test_pages_run_out_as_in_the_engine(pages: int) -> None:
    figures = replace(FIGURES, pages=pages)
    load = ClientLoad(6, (20, 40), (20, 40), requests=2, stagger=False)
    real, preemptions = run_engine(load, figures)
    simulated, result = run_simulation(load, figures)
    assert (result.replicas[0].preemptions > 0) == (preemptions > 0)
    assert max(end for *_, end in simulated) == pytest.approx(max(end for *_, end in real), rel=0.15)


def test_prefixes_are_shared_as_in_the_engine() -> None:
    load = ClientLoad(6, (40, 50), (5, 10), shared_tokens=36, groups=2, requests=5, stagger=False)
    real, _ = run_engine(load, FIGURES)
    simulated, result = run_simulation(load, FIGURES)
    check_close(simulated, real, 0.08)
    assert result.replicas[0].hits == 30 - 2
    alone, _ = run_simulation(replace(load, shared_tokens=0), FIGURES)
    assert max(end for *_, end in alone) > 1.5 * max(end for *_, end in simulated)


def check_close(found: Times, wanted: Times, share: float) -> None:
    """The time of all, and the medians to the first token and to the end."""
    for measure in (
        lambda times: max(end for *_, end in times),
        lambda times: median(first - arrival for arrival, first, _ in times),
        lambda times: median(end - arrival for arrival, _, end in times),
    ):
        assert measure(found) == pytest.approx(measure(wanted), rel=share)


class SingleSteps(SimulatedReplica):
    """The slow reference: each step is an event."""

    def _uniform_steps(self) -> int:
        return 1


spans = st.tuples(st.integers(1, 40), st.integers(0, 60)).map(lambda pair: (pair[0], sum(pair)))


@settings(max_examples=60, deadline=None)
@given(
    clients=st.integers(1, 12), prompt=spans, output=spans, think=st.sampled_from([0.0, 3.0, 50.0]),
    replicas=st.integers(1, 3), context=st.sampled_from([0.0, 0.01]), seed=st.integers(0, 9),
)  # fmt: skip
def test_many_steps_at_once_are_those_one_by_one(
    clients: int, prompt: Any, output: Any, think: float, replicas: int, context: float, seed: int
) -> None:
    load = ClientLoad(clients, prompt, output, think, requests=3, seed=seed)
    figures = replace(FIGURES, context_seconds=context, pair_seconds=0.001, request_seconds=0.1)
    fast, slow = Simulation(figures, load, replicas), Simulation(figures, load, replicas)
    slow._replicas = [SingleSteps(figures, prompt[1] + output[1]) for _ in range(replicas)]
    found, wanted = fast.run(), slow.run()
    assert found.seconds == pytest.approx(wanted.seconds)
    key = lambda one: (one.client, one.order)  # noqa: E731
    for a, b in zip(sorted(found.requests, key=key), sorted(wanted.requests, key=key), strict=True):
        assert (a.first_time, a.finish_time) == pytest.approx((b.first_time, b.finish_time))
    assert sum(one.written for one in found.replicas) == sum(one.written for one in found.requests)
    assert sum(one.steps for one in found.replicas) == sum(one.steps for one in wanted.replicas)


@settings(max_examples=60, deadline=None)
@given(clients=st.integers(1, 12), prompt=spans, output=spans, pages=st.integers(0, 40), shared=st.integers(0, 30))
def test_every_request_ends_however_few_the_pages(
    clients: int, prompt: Any, output: Any, pages: int, shared: int
) -> None:
    least = -(-(prompt[1] + output[1] + 1) // 4) + 1
    load = ClientLoad(clients, prompt, output, shared_tokens=min(shared, prompt[0] - 1), groups=2, requests=3)
    result = Simulation(replace(FIGURES, pages=least + pages), load, 1).run()
    assert len(result.requests) == 3 * clients
    for one in result.requests:
        assert one.arrival < one.first_time <= one.finish_time <= result.seconds
    assert result.replicas[0].written == sum(one.written for one in result.requests)


def test_the_same_seed_gives_the_same_plan() -> None:
    load = ClientLoad(20, (5, 50), (5, 50), think_seconds=2.0)
    assert make_plan(FIGURES, load, 3) == make_plan(FIGURES, load, 3)
    assert make_plan(FIGURES, load, 3) != make_plan(FIGURES, replace(load, seed=1), 3)


def test_more_replicas_are_quicker_and_cost_more() -> None:
    load = ClientLoad(64, (5, 50), (5, 50))
    plans = [make_plan(FIGURES, load, count, cost_per_hour=2.0) for count in (1, 2, 4, 8)]
    totals = [plan.total.p95 for plan in plans]
    assert totals == sorted(totals, reverse=True)
    assert [plan.cost_per_hour for plan in plans] == [2.0, 4.0, 8.0, 16.0]
    for plan in plans:
        assert plan.cost_per_million_tokens == pytest.approx(2e6 * plan.replicas / plan.tokens_per_second / 3600)
    found = smallest_plan(lambda count: make_plan(FIGURES, load, count), lambda plan: plan.total.p95 <= totals[2])
    assert found is not None
    assert found.replicas in (3, 4)
    assert smallest_plan(lambda count: make_plan(FIGURES, load, count), lambda _: False, 20) is None


def test_ten_thousand_clients() -> None:
    load = ClientLoad(10_000, (5, 50), (5, 50), think_seconds=60.0, requests=1)
    plan = make_plan(FIGURES, load, 300)
    assert plan.requests_per_second > 0
    assert 0 < plan.utilization < 1


def test_a_request_of_one_token_has_no_time_between_tokens() -> None:
    assert make_plan(FIGURES, ClientLoad(1, (5, 5), (1, 1)), 1).per_token.p50 == 0


def test_what_a_replica_does_by_hand() -> None:
    replica = SimulatedReplica(FIGURES, 100)
    assert replica.begin(0.0) is None
    replica.add(SimulatedRequest(0, 20, 3, 0, 0, 0.0, written=3))
    assert replica.begin(0.0) == STEP + 16 * TOKEN  # a chunk of the prompt
    assert replica.complete() == []
    assert replica.begin(5.0) == 5.0 + STEP + 4 * TOKEN  # the rest, and the first token
    replica.complete()
    assert replica.begin(7.0) == 7.0 + 2 * (STEP + TOKEN)  # two steps at once
    assert replica.interrupt(7.1) == 7.0 + STEP + TOKEN
    assert replica.complete() == []
    replica.begin(8.25)
    (request,) = replica.complete()
    assert (request.first_time, request.finish_time) == (7.0, 9.5)
