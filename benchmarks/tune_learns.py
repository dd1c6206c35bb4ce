"""Does an adapter learn 200 short examples, and does PEFT compute the same loss with it?

Sentences about purchases are rewritten as records. 180 of them are learned, 20 held out. Time is CPU time, memory the
process's largest. With --peft the base is decoded into transformers, and PEFT loads the adapter.

    python benchmarks/tune_learns.py smollm2.gguf --threads 2 --peft
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fewbit.models import open_model
from fewbit.tuning import tune
from fewbit.tuning.data import ExampleReader
from fewbit.tuning.model import TokenizedExample, TrainableModel

NAMES = ["Anna", "Boris", "Chen", "Dilara", "Emeka", "Fatima", "Goran", "Hana", "Ivo", "Jun", "Kofi", "Lena"]
THINGS = ["apples", "pencils", "lamps", "tickets", "chairs", "books", "bulbs", "maps", "coats", "keys"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


def examples(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Sentences and their records."""
    rng, found = random.Random(seed), []
    for _ in range(count):
        who, thing, day, number = rng.choice(NAMES), rng.choice(THINGS), rng.choice(DAYS), rng.randrange(2, 60)
        texts = (
            f"{who} bought {number} {thing} on {day}.",
            f"On {day}, {number} {thing} were bought by {who}.",
            f"The {number} {thing} that {who} got on {day} were cheap.",
        )
        record = f"WHO={who}; COUNT={number}; WHAT={thing}; DAY={day}"
        question = {"role": "user", "content": rng.choice(texts)}
        found.append({"messages": [question, {"role": "assistant", "content": record}]})
    return found


def write_examples(path: Path, count: int = 200, seed: int = 0) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in examples(count, seed)))
    return path


def loss_of_peft(model: Path, adapter: Path, learned: list[TokenizedExample]) -> float:
    """The mean loss of examples by transformers on decoded weights, with the adapter by PEFT."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    torch.set_grad_enabled(False)
    base = AutoModelForCausalLM.from_pretrained(model.parent, gguf_file=model.name, dtype=torch.float32)
    tuned, total, count = PeftModel.from_pretrained(base, adapter).eval(), 0.0, 0
    for example in learned:
        scores = tuned(torch.tensor([example.tokens])).logits[0].log_softmax(-1)
        total -= sum(float(scores[place - 1, example.tokens[place]]) for place in example.targets)
        count += len(example.targets)
    return total / count


def loss_here(base: TrainableModel, adapter: Path, learned: list[TokenizedExample]) -> float:
    import torch

    from fewbit.tuning.saving import saved_adapter

    lora = saved_adapter(base.modules, adapter)
    with torch.no_grad():
        scores = base.logprobs(learned, lora.terms())
    return -float(sum(part.sum() for part in scores)) / sum(map(len, scores))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--peft", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = args.out or Path(folder, "adapter")
        data = write_examples(Path(folder, "data.jsonl"), args.examples)
        began, used = time.perf_counter(), time.process_time()

        def show(what: str, done: int, total: int | None) -> None:
            print(f"\rstep {done} of {total}: {what}   ", end="", file=sys.stderr, flush=True)

        made = tune(args.model, data, out, epochs=args.epochs, threads=args.threads, force=True, progress=show)
        seconds, wall = time.process_time() - used, time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        assert made.held_out
        before, after = made.held_out
        print(f"\nheld-out loss {before:.4f} -> {after:.4f} ({100 * (after / before - 1):+.1f}%)")
        print(f"{made.steps} steps, {made.tokens} tokens, {seconds:.0f} s of CPU time on {args.threads} threads, "
              f"{wall:.0f} s in all, {peak:.0f} MiB at most")  # fmt: skip
        if args.peft:
            base = TrainableModel(open_model(args.model), args.threads)
            learned = ExampleReader(base.tokenizer, 1024).read(write_examples(Path(folder, "more.jsonl"), 16, seed=9))
            ours = loss_here(base, out, learned)
            print(f"loss here {ours:.5f}, of PEFT {loss_of_peft(args.model, out, learned):.5f}")


if __name__ == "__main__":
    main()
