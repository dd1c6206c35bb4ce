"""Times a batch of eight outputs with eight different schemas beside the same batch without, and seven free outputs
beside a constrained one.

    python benchmarks/constrained.py model.gguf
    python benchmarks/constrained.py model.gguf --device cuda --rounds 15 --json

The kinds of batches alternate in every round; figures are medians over the rounds of the ratio to free outputs in the
same round. No schema ends before the output does. `forced` is the share of tokens that needed no sampling: with them
an output has fewer steps, of more tokens. `unforced` is the same with one token in each step: what masks cost alone.
`cpu ratio` compares the time of all threads for a token: with `--threads 1`, so that none waits busily, other processes
do not change it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from threading import Event
from time import process_time
from typing import Any

import fewbit as fb
from fewbit.engine.request import Delta, Generation
from fewbit.ops.sampling import SamplingParams
from fewbit.text.grammar import Grammar

PARAMS = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)  # random weights write random text
BATCH = 8


def schema(number: int) -> dict[str, Any]:
    """One of eight schemas: lists of more objects than an output has room for."""
    text = {"type": "string", "minLength": 20 + number}
    properties: dict[str, Any] = {
        f"text_{number}": text,
        "kind": {"enum": ["first", "second", f"other {number}"]},
        "when": {"type": "string", "pattern": f"^20{number}[0-9]-[01][0-9]-[0-3][0-9]$"},
        "parts": {"type": "array", "items": {"type": "number"}, "minItems": 3 + number},
        "nested": {"type": "object", "properties": {"note": text}, "required": ["note"], "additionalProperties": False},
    }
    item = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "array", "items": item, "minItems": 100}


class Unforced:
    """A constraint that never forces a token."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.mask, self.accept, self.rollback = inner.mask, inner.accept, inner.rollback

    @property
    def is_finished(self) -> bool:
        return bool(self._inner.is_finished)

    def forced(self) -> Sequence[int]:
        return ()


@dataclass
class Took:
    """What a batch took: from the first token of the last output to the end of the first."""

    seconds: float
    cpu_seconds: float  # of all threads, prompts included
    steps: int
    tokens: int
    forced: int
    free_tokens_per_second: float  # of the outputs without a constraint


class Bench:
    def __init__(self, llm: fb.LLM, tokens: int) -> None:
        self.llm, self.tokens = llm, tokens
        self.made = [llm.grammars.compile(Grammar.schema(schema(number))) for number in range(BATCH)]

    def run(self, constraints: Sequence[Callable[[], Any] | None]) -> Took:
        """Outputs of one batch, all of the same number of tokens."""
        llm, over, left = self.llm, Event(), len(constraints)
        prompts = [[2 + number] * 16 for number in range(len(constraints))]

        def sink(delta: Delta) -> None:
            nonlocal left
            left -= delta.finish is not None
            if not left:
                over.set()

        requests: list[Generation] = []
        for number, (prompt, constraint) in enumerate(zip(prompts, constraints, strict=True)):
            requests += llm.engine.generation(
                prompt, PARAMS, max_tokens=self.tokens, seed=number, eos_ids=[0], logit_bias={0: -100.0},
                constraint=constraint,
            )  # fmt: skip
        before, cpu = llm.engine.stats(), process_time()
        llm._worker.submit_batch([[request] for request in requests], sink)
        over.wait()
        after = llm.engine.stats()
        for request in requests:
            assert request.finish_reason == "length", (request.finish_reason, request.error)
        start = max(request.first_token_time for request in requests)
        free = [one for one in requests if one.constraint is None]
        speeds = [(len(one.output_tokens) - 1) / (one.finish_time - one.first_token_time) for one in free]
        return Took(
            max(one.finish_time for one in requests) - start,
            process_time() - cpu,
            after.steps - before.steps - 1,
            after.tokens - before.tokens - BATCH,
            after.forced_tokens - before.forced_tokens,
            median(speeds) if speeds else 0.0,
        )

    def kinds(self) -> dict[str, list[Callable[[], Any] | None]]:
        unforced: list[Callable[[], Any] | None] = [lambda one=one: Unforced(one()) for one in self.made]
        return {
            "free": [None] * BATCH,
            "constrained": [*self.made],
            "unforced": unforced,
            "seven beside": [*[None] * (BATCH - 1), self.made[0]],
            "beside unforced": [*[None] * (BATCH - 1), unforced[0]],
        }


def measure(llm: fb.LLM, tokens: int, rounds: int) -> dict[str, Any]:
    bench = Bench(llm, tokens)
    kinds = bench.kinds()
    took: dict[str, list[Took]] = {name: [] for name in kinds}
    for name in kinds:
        bench.run(kinds[name])  # kernels and grammars are warm after this
    for number in range(rounds):
        for name in [*kinds] if number % 2 else [*reversed(kinds)]:
            took[name].append(bench.run(kinds[name]))

    def ratio(name: str, value: Callable[[Took], float]) -> float:
        return median(value(a) / value(b) for a, b in zip(took[name], took["free"], strict=True))

    results: dict[str, Any] = {}
    for name, every in took.items():
        results[name] = {
            "ms_a_step": round(1e3 * median(one.seconds / one.steps for one in every), 3),
            "steps": median(one.steps for one in every),
            "forced": round(median(one.forced / one.tokens for one in every), 3),
            "step_ratio": round(ratio(name, lambda one: one.seconds / one.steps), 3),
            "cpu_ratio": round(ratio(name, lambda one: one.cpu_seconds / one.tokens), 3),
            "speed_ratio": round(ratio(name, lambda one: one.tokens / one.seconds), 3),
        }
        if "beside" in name:
            results[name]["speed_ratio_of_the_seven"] = round(ratio(name, lambda one: one.free_tokens_per_second), 3)
    return results


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=48, help="of each output")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def main() -> None:
    chosen = options()
    with fb.LLM(chosen.model, device=chosen.device, ctx=1024, threads=chosen.threads) as llm:
        results = measure(llm, chosen.tokens, chosen.rounds)
    if chosen.json:
        print(json.dumps(results, indent=2))
        return
    for name, figures in results.items():
        print(f"{name:15}", ", ".join(f"{what.replace('_', ' ')} {value}" for what, value in figures.items()))


if __name__ == "__main__":
    main()
