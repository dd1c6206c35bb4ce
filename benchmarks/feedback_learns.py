"""Does a model follow a user's votes? A simulated one prefers short answers.

The user asks questions, reads a few sampled answers to each, and votes for the shortest and against the longest. A
version is trained on these votes (`tune_from_feedback`). On other questions the same rule compares answers of the model
with the adapter and without, and the perplexity of plain text tells what else has changed. With --worse a second
version is trained that cannot be better, and must not be used. Time is CPU time.

    python benchmarks/feedback_learns.py smollm2.gguf --threads 2 --worse
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fewbit.files.adapter_versions import AdapterVersions
from fewbit.files.feedback import FeedbackStore
from fewbit.llm import LLM
from fewbit.tuning import tune_from_feedback

THINGS = """
apple bread river mountain piano bicycle candle window garden castle engine mirror pepper bottle shadow winter summer
thunder island desert forest volcano glacier planet comet magnet battery bridge tunnel harbor lighthouse compass
telescope microscope camera printer keyboard violin trumpet guitar drum painting sculpture novel poem
"""
QUESTIONS = ("What is a {}?", "Why do people like a {}?", "Where would I find a {}?", "How would you describe a {}?")
Messages = list[dict[str, str]]


def questions(count: int) -> list[Messages]:
    found = [question.format(thing) for question in QUESTIONS for thing in THINGS.split()]
    order = np.random.default_rng(0).permutation(len(found))[:count]
    return [[{"role": "user", "content": found[place]}] for place in order]


def answers(llm: LLM, asked: Sequence[Messages], tokens: int, seed: int, adapter: str | None = None) -> list[str]:
    done = llm.chat([*asked], max_tokens=tokens, temperature=1.0, seed=seed, adapter=adapter)
    return [one.text for one in done]


def vote(store: FeedbackStore, llm: LLM, asked: Sequence[Messages], tokens: int) -> tuple[float, float]:
    """Two votes for each question, and the mean lengths of what was good and bad."""
    drawn = [answers(llm, asked, tokens, seed) for seed in range(3)]
    lengths = []
    for number, (messages, *texts) in enumerate(zip(asked, *drawn, strict=True)):
        texts.sort(key=len)
        for place, text in enumerate((texts[0], texts[-1])):
            store.keep(f"{number}", place, llm.model_name, messages, text)
            store.rate(f"{number}", place, "bad" if place else "good")
        lengths.append((len(texts[0]), len(texts[-1])))
    good, bad = np.mean(lengths, axis=0)
    return float(good), float(bad)


def perplexity(llm: LLM, text: str, adapter: str | None) -> float:
    scores = llm.score(llm.tokenize(text)[:2000], adapter=adapter)
    return float(np.exp(-np.mean(scores)))


def preferred(llm: LLM, asked: Sequence[Messages], tokens: int) -> float:
    """How often the answer with the adapter is the shorter one; ties count half."""
    pairs = zip(answers(llm, asked, tokens, 9), answers(llm, asked, tokens, 9, "learned"), strict=True)
    return float(np.mean([(len(new) < len(old)) + 0.5 * (len(new) == len(old)) for old, new in pairs]))


def show(what: str, done: int, total: int | None) -> None:
    print(f"\rstep {done} of {total}: {what}   ", end="", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--votes", type=int, default=200)
    parser.add_argument("--held-out", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--text", type=Path, default=Path(__file__).parents[1] / "docs" / "design.md")
    parser.add_argument("--worse", action="store_true")
    args = parser.parse_args()
    asked = questions(args.votes // 2 + args.held_out)
    asked, others = asked[: args.votes // 2], asked[args.votes // 2 :]
    settings: dict[str, Any] = {"threads": args.threads, "progress": show}
    with tempfile.TemporaryDirectory() as name, LLM(args.model, ctx=2048, threads=args.threads) as llm:
        votes, versions = Path(name, "votes.db"), Path(name, "versions")
        store, used = FeedbackStore(votes), time.process_time()
        good, bad = vote(store, llm, asked, args.tokens)
        print(f"{args.votes} votes: {good:.0f} letters were good, {bad:.0f} bad; {time.process_time() - used:.0f} s")
        used = time.process_time()
        made = tune_from_feedback(args.model, votes, versions, epochs=args.epochs, **settings)
        print(f"\n{made.name}: held-out loss {made.loss:.4f}, before {made.previous_loss:.4f}, "
              f"{time.process_time() - used:.0f} s")  # fmt: skip
        llm.load_adapter("learned", versions / made.name)
        text = args.text.read_text()
        share, (before, after) = (
            preferred(llm, others, args.tokens), (perplexity(llm, text, adapter) for adapter in (None, "learned")),
        )  # fmt: skip
        print(f"preferred in {100 * share:.0f}% of {len(others)} other questions; "
              f"perplexity {before:.3f} -> {after:.3f} ({100 * (after / before - 1):+.1f}%)", flush=True)  # fmt: skip
        if args.worse:
            worse = tune_from_feedback(args.model, votes, versions, epochs=1, learning_rate=1e-8, **settings)
            print(f"\n{worse.name}: held-out loss {worse.loss:.4f}, before {worse.previous_loss:.4f}; "
                  f"in use: {AdapterVersions(versions).current}")  # fmt: skip
        store.close()


if __name__ == "__main__":
    main()
