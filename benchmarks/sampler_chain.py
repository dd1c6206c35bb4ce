"""What a chain of samplers costs, natively and in NumPy, as a share of a model's step; the least of many each.

python benchmarks/sampler_chain.py smollm2.gguf --threads 1
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fewbit.llm import LLM
from fewbit.ops import cpu
from fewbit.ops.sampler_chain import ChainState, ChainStep, SamplerChain, sample_chain
from fewbit.ops.sampling import SamplingParams

USUAL = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repetition_penalty=1.1)
WIDE = SamplingParams(temperature=0.8, top_k=0, top_p=0.95)
ALL: dict[str, Any] = {
    "typical_p": 0.9, "top_n_sigma": 2, "xtc_probability": 0.5, "dry_multiplier": 0.8, "dynatemp_range": 0.3,
}  # fmt: skip
CASES: dict[str, tuple[SamplingParams, dict[str, Any]]] = {
    "all samplers": (USUAL, ALL),
    "typical_p, xtc": (USUAL, {"typical_p": 0.9, "xtc_probability": 0.5}),
    "mirostat": (USUAL, {"mirostat": 2}),
    "top_n_sigma without top_k": (WIDE, {"top_n_sigma": 1}),
    "xtc without top_k": (WIDE, {"xtc_probability": 0.5}),
    "typical_p without top_k": (WIDE, {"typical_p": 0.9}),
}


def least(calls: list[Callable[[], object]], count: int) -> list[float]:
    """Seconds of each call, in turns."""
    found = [float("inf")] * len(calls)
    for _ in range(count):
        for place, call in enumerate(calls):
            began = time.perf_counter()
            call()
            found[place] = min(found[place], time.perf_counter() - began)
    return found


def step_seconds(llm: LLM, count: int) -> float:
    """A decoding step of one sequence."""

    def run(tokens: int) -> Callable[[], object]:
        return lambda: llm.generate([1, 2, 3], max_tokens=tokens, min_tokens=tokens, temperature=0)

    few, many = least([run(1), run(33)], count)
    return (many - few) / 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--count", type=int, default=100)
    args = parser.parse_args()
    with LLM(args.model, ctx=512, threads=args.threads) as llm:
        step, vocab = step_seconds(llm, 5), llm.tokenizer.vocab_size
    print(f"a step takes {1e3 * step:.2f} ms")
    rng = np.random.default_rng(0)
    logits = (3 * rng.standard_normal(vocab)).astype(np.float32)
    seen = rng.choice(vocab, 200, replace=False).astype(np.int32), np.ones(200, np.int32)
    dry = seen[0][:5], np.ones(5, np.float32)
    for name, (params, given) in CASES.items():
        state = ChainState(SamplerChain(**given), 0.1, dry if "dry_multiplier" in given else None)
        one = ChainStep(params, state, seen)
        native, slow = least(
            [
                lambda one=one: cpu.sample_chain(logits, one, 0.5),
                lambda one=one: sample_chain(logits, one, 0.5, top_tokens=cpu.top_tokens),
            ],
            args.count,
        )
        print(f"{name}: {1e6 * native:.0f} us, {100 * native / step:.1f}% of a step; NumPy {1e6 * slow:.0f} us")


if __name__ == "__main__":
    main()
