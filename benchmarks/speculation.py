"""Tokens/s with guesses beside plain decoding, in turns: text that is copied, and text that is not.

python benchmarks/speculation.py model.gguf --tokens 200 --rounds 5
python benchmarks/speculation.py model.gguf --batch 32 --tokens 64
python benchmarks/speculation.py model.gguf --draft model.gguf
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import fewbit as fb

SOURCE = Path(fb.__file__).parent / "engine" / "queue.py"
SUBJECTS = ["dragon", "lighthouse", "clock", "river", "baker", "comet", "violin", "glacier", "orchard", "submarine"]


def prompts(kind: str, number: int, count: int) -> list[list[dict[str, str]]]:
    """Conversations that were not asked before, so that no answer is known."""
    code = SOURCE.read_text()
    found = []
    for i in range(count):
        subject = f"{SUBJECTS[(number + i) % len(SUBJECTS)]} number {100 * number + i}"
        text = {
            "copy": f"Repeat this code, changing nothing ({subject}):\n{code[37 * i : 37 * i + 1800]}",
            "plain": f"Tell me a story about a {subject}.",
        }[kind]
        found.append([{"role": "user", "content": text}])
    return found


def measure(llm: fb.LLM, chats: list[list[dict[str, str]]], tokens: int, clock: Any) -> tuple[float, int]:
    """Seconds after the prompts are known, and tokens."""
    llm.chat(chats, max_tokens=1, temperature=0)
    begin = clock()
    answers = llm.chat(chats, max_tokens=tokens, temperature=0)
    return clock() - begin, sum(len(answer.tokens) for answer in answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--draft", help="a draft model, in the place of lookups")
    parser.add_argument("--draft-tokens", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--kinds", default="copy,plain")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true", help="processor time, where other programs run")
    args = parser.parse_args()
    common: dict[str, Any] = {"device": args.device, "threads": args.threads, "ctx": 2048, "max_seqs": args.batch}
    plain = fb.LLM(args.model, speculate="off", **common)
    guesses = {"draft": args.draft, "speculate": "auto" if args.draft else "ngram", "draft_tokens": args.draft_tokens}
    guessing = fb.LLM(args.model, **guesses, **common)
    clock = time.process_time if args.cpu_time else time.perf_counter
    for kind in args.kinds.split(","):
        ratios = []
        before = guessing.engine.stats()
        for number in range(args.rounds + 1):
            chats = prompts(kind, number, args.batch)
            pairs = [measure(llm, chats, args.tokens, clock) for llm in (plain, guessing)]
            ratios.append(pairs[0][0] / pairs[0][1] / (pairs[1][0] / pairs[1][1]))
        after = guessing.engine.stats()
        drafted, accepted = after.draft_tokens - before.draft_tokens, after.accepted_tokens - before.accepted_tokens
        print(f"{kind}: {median(ratios[1:]):.2f} x plain decoding, {accepted} of {drafted} guesses right", flush=True)


if __name__ == "__main__":
    main()
