"""A model that drafts for itself: all guesses are right, and the speed is what the costs of steps predict, or less.

python benchmarks/draft_itself.py model.gguf --threads 1 --cpu-time

With t(n) for a step of n tokens, k guesses and the token after them take k t(1) + t(k + 1).
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import fewbit as fb
from fewbit.bench.model import sequences, step

PROMPT = list(range(300, 332))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--cpu-time", action="store_true", help="processor time, where other programs run")
    args = parser.parse_args()
    clock = time.process_time if args.cpu_time else time.perf_counter
    common: dict[str, Any] = {"threads": args.threads, "ctx": 1024}
    plain = fb.LLM(args.model, speculate="off", **common)
    guessing = fb.LLM(args.model, draft=args.model, draft_tokens=args.draft_tokens, **common)
    assert guessing.engine._speculation is not None
    guessing.engine._speculation.is_adaptive = False
    k, ratios, accepted, drafted = args.draft_tokens, [], 0, 0
    for _ in range(args.rounds + 1):
        seconds = []
        for llm in (plain, guessing):
            begin = clock()
            answer = llm.generate(PROMPT, max_tokens=args.tokens, temperature=0)
            seconds.append((clock() - begin) / len(answer.tokens))
            accepted, drafted = accepted + answer.accepted_tokens, drafted + answer.draft_tokens
        one, several = (step_seconds(plain, count, clock) for count in (1, k + 1))
        predicted = (k + 1) * one / (k * one + several)
        ratios.append((seconds[0] / seconds[1], predicted))
    measured, predicted = (median(pair[place] for pair in ratios[1:]) for place in (0, 1))
    share = median(one / other for one, other in ratios[1:])
    print(
        f"{k} guesses: {accepted} of {drafted} right, {measured:.2f} x plain decoding, predicted {predicted:.2f}: "
        f"{share:.0%}"
    )


def step_seconds(llm: fb.LLM, tokens: int, clock: Any, count: int = 24) -> float:
    with sequences(llm.loaded, 1) as ids:
        times = []
        for _ in range(count):
            begin = clock()
            step(llm.loaded, ids, [7], tokens - 1)
            times.append(clock() - begin)
        return float(median(times))


if __name__ == "__main__":
    main()
