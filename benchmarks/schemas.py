"""How many JSON schemas of a folder compile, how long that and each mask take, and whether what is written validates.

    python benchmarks/schemas.py path/to/jsonschemabench/data --model smollm2.gguf
    python benchmarks/schemas.py data --model smollm2.gguf --sample 200 --seed 1 --json figures.json

The folder has a schema in each *.json file, at any depth, as the public repository guidance-ai/jsonschemabench has in
`data`. Texts are random walks through the masks, in which tokens that close something are likelier than others. A walk
that ends and passes `Grammar.check` counts as a success, and is validated by plain jsonschema. Times are those of the
processor, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fewbit.errors import FewbitError
from fewbit.text.grammar import Grammar, GrammarCompiler
from fewbit.text.grammar.constraint import StepwiseConstraint
from fewbit.text.tokenizer import Tokenizer

MAX_TOKENS = 300  # of a walk
CLOSING = b'"]},0123456789'


class Walker:
    """Writes random texts that a constraint allows."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._eos = tokenizer.end_of_generation
        self._bytes = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        self._weights = np.array([1e4 if data and set(data) <= set(CLOSING) else 1.0 for data in self._bytes])
        self._draws = np.random.default_rng(seed)
        self.seconds: list[float] = []  # of each mask

    def write(self, constraint: StepwiseConstraint) -> str | None:
        """A text, or None if it did not end."""
        tokens: list[int] = []
        while len(tokens) < MAX_TOKENS:
            if constraint.is_finished:
                return b"".join(self._bytes[token] for token in tokens).decode()
            token = self._next(constraint)
            if token in self._eos:
                return b"".join(self._bytes[token] for token in tokens).decode()
            constraint.accept(token)
            tokens.append(token)
        return None

    def _next(self, constraint: StepwiseConstraint) -> int:
        forced = constraint.forced()
        if forced:
            return forced[0]
        started = time.thread_time()
        mask = constraint.mask()
        self.seconds.append(time.thread_time() - started)
        assert mask is not None
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        ends = [token for token in allowed.tolist() if token in self._eos]
        if ends and self._draws.random() < 0.5:
            return int(ends[0])
        weights = self._weights[allowed]
        return int(self._draws.choice(allowed, p=weights / weights.sum()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", required=True, help="a GGUF file, for its tokenizer")
    parser.add_argument("--sample", type=int, default=1000, help="schemas")
    parser.add_argument("--walks", type=int, default=1, help="texts for each schema")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    figures = measure(options)
    for name, figure in figures.items():
        print(f"{name}: {figure}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    tokenizer = Tokenizer.from_gguf(options.model)
    compiler, walker = GrammarCompiler(tokenizer), Walker(tokenizer, options.seed)
    compiler.compile(Grammar.json())()
    files = sorted(options.folder.rglob("*.json"))
    Random(options.seed).shuffle(files)
    counts, refused, bad, seconds = Counter[str](), {}, {}, []
    for file in files[: options.sample]:
        schema = json.loads(file.read_text())
        started = time.process_time()
        try:
            grammar = Grammar.schema(schema)
            constraint = compiler.compile(grammar)
        except FewbitError as error:
            refused[file.name] = str(error)
            counts["refused"] += 1
            continue
        seconds.append(time.process_time() - started)
        counts["compiled"] += 1
        counts["with unheld features"] += bool(grammar.unheld)
        for _ in range(options.walks):
            ending, detail = outcome(grammar, walker, constraint())
            counts[ending] += 1
            if detail:
                bad[file.name] = f"{ending}: {detail}"
    return {
        "schemas": len(files[: options.sample]),
        **counts,
        "compile ms p50, p99, max": percentiles(seconds, 1e3),
        "mask us p50, p99, max": percentiles(walker.seconds or [0.0], 1e6),
        "masks": len(walker.seconds),
        "refusals": refused,
        "bad walks": bad,
    }


def outcome(grammar: Grammar, walker: Walker, constraint: StepwiseConstraint) -> tuple[str, str]:
    """What became of one text, and what is wrong if it should not have."""
    try:
        text = walker.write(constraint)
    except FewbitError as error:
        return "walk failed", str(error)
    if text is None:
        return "walk too long", ""
    if reason := grammar.check(text):
        return "walk invalid", "" if grammar.unheld else f"though all is held: {reason} {text:.200}"
    if is_valid(json.loads(grammar.text), json.loads(text)):
        return "walk valid", ""
    return "walk valid by check, not by jsonschema", text[:200]


def is_valid(schema: Any, value: Any) -> bool:
    """Whether plain jsonschema finds a value valid."""
    from jsonschema.validators import Draft202012Validator, validator_for

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bool(validator_for(schema, default=Draft202012Validator)(schema).is_valid(value))


def percentiles(values: list[float], scale: float) -> list[float]:
    return [round(float(value) * scale, 3) for value in np.percentile(values, [50, 99, 100])]


if __name__ == "__main__":
    main()
