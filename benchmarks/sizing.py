"""Compares `fewbit plan` with real runs of 1, 2 and 4 replicas, each a process with one thread.

    python benchmarks/sizing.py [--model model.gguf] [--replicas 1,2,4] [--clock cpu]

All replicas of a run are measured at the same time, before and after the load, so that figures and load have the same
share of the machine. With `--clock cpu` times are those that a process computes for, which others on the machine hardly
disturb: a replica with one thread and clients that never think computes all the time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from fewbit.llm import LLM
from fewbit.ops.sampling import SamplingParams
from fewbit.sizing import ClientLoad, ReplicaFigures, make_plan
from fewbit.sizing.measure import measure

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
LOADING: dict[str, Any] = {"ctx": 2048, "threads": 1, "max_seqs": 16}
GREEDY = SamplingParams(temperature=0.0)


class Replica:
    """Clients that ask the engine of this process, one request each at a time, by the clock that is given."""

    def __init__(self, llm: LLM, load: ClientLoad, clock: Any) -> None:
        self._engine, self._load, self._clock = llm.engine, load, clock
        self._random = Random(load.seed)
        self._left = [load.requests] * load.clients
        self.times: list[tuple[float, float, float, int]] = []  # arrival, first token, end, tokens

    def run(self) -> float:
        begun = self._clock()
        for client in range(self._load.clients):
            self._ask(client)
        while self._engine.step():
            pass
        return self._clock() - begun

    def _ask(self, client: int) -> None:
        if not self._left[client]:
            return
        self._left[client] -= 1
        prompt, output = (
            self._random.randint(*self._load.prompt_tokens),
            self._random.randint(*self._load.output_tokens),
        )
        vocab = self._engine.executor.vocab
        tokens = [self._random.randrange(vocab) for _ in range(prompt)]
        (request,) = self._engine.generation(tokens, GREEDY, max_tokens=output, client=str(client))
        request.eos_ids, request.stream = frozenset(), True
        arrival, first = self._clock(), 0.0

        def take(delta: Any) -> None:
            nonlocal first
            first = first or self._clock()
            if delta.finish is not None:
                self.times.append((arrival, first, self._clock(), output))
                self._ask(client)

        request.sink = take
        self._engine.add([request])


def work(number: int, model: str, load: ClientLoad, clock_name: str, barrier: Any, results: Any) -> None:
    clock = CLOCKS[clock_name]
    with LLM(model, **LOADING) as llm:
        figures = []
        for is_after in (False, True):
            barrier.wait()
            figures.append(measure(llm, 15, clock))
            barrier.wait()
            if not is_after:
                replica = Replica(llm, replace(load, seed=number), clock)
                seconds = replica.run()
        results.put((figures, replica.times, seconds))


def averaged(figures: list[ReplicaFigures]) -> ReplicaFigures:
    """The means of what was measured."""

    def points(name: str) -> list[tuple[int, float]]:
        columns = zip(*(getattr(one, name) for one in figures), strict=True)
        return [(column[0][0], sum(seconds for _, seconds in column) / len(column)) for column in columns]

    def number(name: str) -> float:
        return sum(getattr(one, name) for one in figures) / len(figures)

    return replace(
        figures[0], decode=points("decode"), prefill=points("prefill"), context_seconds=number("context_seconds"),
        pair_seconds=number("pair_seconds"), request_seconds=number("request_seconds"),
    )  # fmt: skip


def real_run(model: str, load: ClientLoad, count: int, clock: str) -> tuple[ReplicaFigures, dict[str, float]]:
    context = mp.get_context("spawn")
    barrier, results = context.Barrier(count), context.Queue()
    each = replace(load, clients=load.clients // count)
    processes = [
        context.Process(target=work, args=(number, model, each, clock, barrier, results)) for number in range(count)
    ]
    for process in processes:
        process.start()
    found = [results.get() for _ in processes]
    for process in processes:
        process.join()
    times = [one for _, replica_times, _ in found for one in replica_times]
    measured = {
        "tokens_per_second": sum(sum(one[3] for one in own) / seconds for _, own, seconds in found),
        "first_token": median(first - arrival for arrival, first, _, _ in times),
        "per_token": median((end - first) / (tokens - 1) for _, first, end, tokens in times),
        "total": median(end - arrival for arrival, _, end, _ in times),
    }
    return averaged([one for figures, _, _ in found for one in figures]), measured


def compare(model: str, load: ClientLoad, count: int, clock: str) -> dict[str, Any]:
    figures, real = real_run(model, load, count, clock)
    plan = make_plan(figures, load, count, steady=False)
    planned = {"tokens_per_second": plan.tokens_per_second} | {
        name: getattr(plan, name).p50 for name in ("first_token", "per_token", "total")
    }
    errors = {name: round(planned[name] / real[name] - 1, 3) for name in real}
    return {"replicas": count, "clients": load.clients, "real": real, "planned": planned, "errors": errors}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a GGUF file; without it, a small one with random weights")
    parser.add_argument("--replicas", default="1,2,4")
    parser.add_argument("--clients", type=int, default=24, help="for each replica")
    parser.add_argument("--requests", type=int, default=6)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--rounds", type=int, default=3, help="the median of their errors counts")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    from tests.cli.tiny import write_tiny

    with tempfile.TemporaryDirectory() as folder:
        small = {"hidden": 256, "feed_forward": 1024, "layers": 4, "format": "q8_0"}
        model = args.model or str(write_tiny(Path(folder) / "small.gguf", **small))
        for count in map(int, args.replicas.split(",")):
            load = ClientLoad(args.clients * count, (100, 700), (20, 100), requests=args.requests, stagger=False)
            runs = [compare(model, load, count, args.clock) for _ in range(args.rounds)]
            errors = {name: median(run["errors"][name] for run in runs) for name in runs[0]["errors"]}
            if args.json:
                print(json.dumps({"replicas": count, "clock": args.clock, "errors": errors, "runs": runs}), flush=True)
            else:
                print(f"{count} replicas: " + ", ".join(f"{name} {error:+.1%}" for name, error in errors.items()),
                      flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
