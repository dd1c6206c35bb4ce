"""What guesses give on a GPU: times of steps by tokens of a sequence, tokens/s by how many guesses are right.

python benchmarks/draft_steps.py model.gguf [--batch 1,8,32] [--rows 1,2,3,5,8,16]

Steps have drafts of random tokens. For tokens/s an oracle guesses what plain decoding gave, and with some chance
something else; drafts are chosen as for any other drafter. `ngram` is the usual lookup, on text that is not repeated.
"""

from __future__ import annotations

import argparse
import time
from random import Random
from statistics import median
from typing import Any

import fewbit as fb
from fewbit.bench.model import sequences, step
from fewbit.engine.speculation.drafter import Prospect
from fewbit.engine.speculation.lookup import LookupDrafter
from fewbit.engine.speculation.speculation import Speculation
from fewbit.llm.llm import LLM


class Oracle:
    """Guesses what comes next, each token with a chance."""

    max_tokens = 8

    def __init__(self, texts: list[list[int]], chance: float) -> None:
        self.texts, self.chance, self.random = {tuple(text[:8]): text for text in texts}, chance, Random(0)

    def prospect(self, request: Any) -> Prospect:
        return Prospect(self.max_tokens, "oracle")

    def seconds(self, length: int) -> float:
        return 0.0

    def propose(self, requests: Any, lengths: Any) -> list[list[int]]:
        drafts = []
        for request, length in zip(requests, lengths, strict=True):
            rest = self.texts[tuple(request.tokens[:8])][len(request.tokens) :][:length]
            drafts.append([token if self.random.random() < self.chance else token ^ 1 for token in rest])
        return drafts

    def finish(self, request: Any) -> None:
        pass


def step_times(llm: LLM, batch: int, rows: list[int], steps: int = 24) -> None:
    """Milliseconds of a step, fetched before the next."""
    loaded, times = llm.loaded, []
    with sequences(loaded, batch) as ids:
        for count in rows:
            if batch * count > loaded.executor.max_logits:
                continue
            taken = []
            for _ in range(steps):
                begin = time.perf_counter()
                step(loaded, ids, [7] * batch, count - 1)
                taken.append(time.perf_counter() - begin)
            times.append(f"{count}: {1e3 * median(taken[4:]):.2f}")
    print(f"batch {batch}, ms by tokens of a sequence: {', '.join(times)}", flush=True)


def rate(llm: LLM, drafter: Any, prompts: list[list[int]], tokens: int) -> tuple[float, list[list[int]]]:
    """Tokens/s with a drafter, or without."""
    llm.engine._speculation = Speculation(drafter) if drafter else None
    begin = time.perf_counter()
    answers = llm.generate(prompts, max_tokens=tokens, temperature=0)
    return sum(len(one.tokens) for one in answers) / (time.perf_counter() - begin), [one.tokens for one in answers]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--rows", default="1,2,3,5,8,16")
    parser.add_argument("--tokens", type=int, default=96)
    args = parser.parse_args()
    batches, rows = ([int(one) for one in text.split(",")] for text in (args.batch, args.rows))
    with fb.LLM(args.model, device=args.device, ctx=1024, max_seqs=max(batches)) as llm:
        for batch in batches:
            step_times(llm, batch, rows)
        random = Random(1)
        for batch in batches:
            prompts = [[random.randrange(300, 40_000) for _ in range(16)] for _ in range(batch)]
            plain, texts = rate(llm, None, prompts, args.tokens)
            plain = max(plain, rate(llm, None, prompts, args.tokens)[0])
            results = [f"plain {plain:.0f}"]
            for chance in (1.0, 0.8, 0.5, 0.0):
                whole = [prompt + text for prompt, text in zip(prompts, texts, strict=True)]
                best = max(rate(llm, Oracle(whole, chance), prompts, args.tokens)[0] for _ in range(2))
                results.append(f"{chance:.0%} right {best / plain:.2f} x")
            best = max(rate(llm, LookupDrafter(8), prompts, args.tokens)[0] for _ in range(2))
            print(f"batch {batch}, tokens/s: {', '.join(results)}, ngram {best / plain:.2f} x", flush=True)


if __name__ == "__main__":
    main()
