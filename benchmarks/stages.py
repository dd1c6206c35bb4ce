"""Two stages beside one process with as many threads: tokens a second while several requests are answered.

Rounds take turns, so that whatever else the machine does concerns all; printed are medians, and the ratio of each
way to one process.

    python benchmarks/stages.py model.gguf --batch 8
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import ExitStack
from statistics import median
from typing import Any

import fewbit as fb

PROMPT = list(range(100, 164))


def rate(llm: fb.LLM, batch: int, tokens: int) -> float:
    """Tokens a second of so many requests, their prompts being cached."""
    prompts = [[200 + i, *PROMPT] for i in range(batch)]
    llm.generate(prompts, max_tokens=1, temperature=0)
    begin = time.perf_counter()
    llm.generate(prompts, max_tokens=tokens, min_tokens=tokens, temperature=0)
    return batch * tokens / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ray", action="store_true", help="stages in Ray actors too")
    parser.add_argument("--batch-invariant", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    options: dict[str, Any] = {"ctx": 512, "batch_invariant": args.batch_invariant}
    with ExitStack() as stack:
        ways = {
            "one process, 2 threads": fb.LLM(args.model, threads=2, **options),
            "two stages, 1 thread each": fb.LLM(args.model, "cpu,cpu", threads=1, **options),
        }
        if args.ray:
            ways["two Ray stages, 1 thread each"] = fb.LLM(args.model, stages=2, threads=1, **options)
        for llm in ways.values():
            stack.enter_context(llm)
            rate(llm, args.batch, 4)
        rounds = [{name: rate(llm, args.batch, args.tokens) for name, llm in ways.items()} for _ in range(args.rounds)]
    one, *_ = ways
    found = {
        name: {
            "tokens_per_s": round(median(single[name] for single in rounds), 1),
            "ratio": round(median(single[name] / single[one] for single in rounds), 3),
        }
        for name in ways
    }
    if args.json:
        print(json.dumps(found))
    else:
        for name, figures in found.items():
            print(f"{name:32} {figures['tokens_per_s']:8.1f} tokens/s  {figures['ratio']:.2f}x")


if __name__ == "__main__":
    main()
