"""Measures many outputs at a time on an NVIDIA GPU, many clients, and the first use: a model of Llama 3.1 8B's shape.

    python benchmarks/cuda_batches.py --json batches.json
    python benchmarks/cuda_batches.py --only batches --batch 64,128,256 --model random-8b.gguf

`batches`: tokens a second of wall time while so many outputs are written, after prompts of 128 tokens; and of the
steps of decoding alone, by the clock of the GPU. `clients`: each sends a new prompt when its last answer is complete;
tokens out a second of wall time, with the steps that read prompts and those that only decode told apart. `first`:
seconds until a model is loaded and until its first token, in a process that finds no compiled kernel and in one that
finds them all. Weights are random, made in Q4_K_M, unless --model names a file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from cuda_model import VOCAB, Steps, write_model

import fewbit as fb

FIRST = """
import sys, time
begun = time.perf_counter()
import fewbit as fb
imported = time.perf_counter()
with fb.LLM(sys.argv[1], device="cuda", kv="f16") as llm:
    loaded = time.perf_counter()
    llm.generate(list(range(300, 300 + int(sys.argv[2]))), max_tokens=1, temperature=0.0)
    first = time.perf_counter()
print(imported - begun, loaded - imported, first - loaded)
"""


class NotedSteps(Steps):
    """Steps, with how many tokens each had."""

    def __init__(self, llm: fb.LLM) -> None:
        super().__init__(llm)
        self.sizes: list[tuple[int, int]] = []  # tokens and sequences

    def __enter__(self) -> NotedSteps:
        super().__enter__()
        timed = self.executor.launch

        def noted(batch: Any, *given: Any) -> Any:
            self.sizes.append((len(batch.tokens), len(batch.view.lengths)))
            return timed(batch, *given)

        self.executor.launch = noted
        return self

    def kinds(self) -> dict[str, Any]:
        """Steps with prompts and without: how many, milliseconds and tokens on average, and the share without steps."""
        found: dict[str, list[tuple[float, int]]] = {"prompt": [], "decode": []}
        for (begun, ended), (tokens, sequences) in zip(self.marks, self.sizes, strict=True):
            found["decode" if tokens == sequences else "prompt"].append((ended - begun, tokens))
        total = self.marks[-1][1] - self.marks[0][0]
        idle = sum(max(0.0, b[0] - a[1]) for a, b in pairwise(self.marks)) / total
        kinds: dict[str, Any] = {"idle": round(idle, 3)}
        for kind, steps in found.items():
            ms, tokens = (float(np.mean(column)) if steps else 0.0 for column in zip(*steps or [(0, 0)], strict=True))
            kinds[kind] = {"steps": len(steps), "ms": round(ms, 2), "tokens": round(tokens)}
        return kinds


class Bench:
    def __init__(self, path: Path, args: argparse.Namespace) -> None:
        self.path, self.args, self.rng = path, args, np.random.default_rng(1)
        self.found: dict[str, Any] = {}

    def prompt(self, length: int) -> list[int]:
        return self.rng.integers(300, VOCAB, length).tolist()

    @contextmanager
    def open(self) -> Iterator[fb.LLM]:
        begun = time.perf_counter()
        with fb.LLM(self.path, device="cuda", kv="f16", ctx=2048) as llm:
            print(f"loaded in {time.perf_counter() - begun:.2f} s; {llm.loaded.max_seqs} outputs in a step", flush=True)
            yield llm

    def batches(self) -> None:
        with self.open() as llm:
            for count in map(int, self.args.batch.split(",")):
                prompts = [self.prompt(128) for _ in range(count)]
                llm.generate(prompts, max_tokens=24, temperature=0.0)  # prompts are in the cache now, graphs captured
                begun = time.perf_counter()
                with NotedSteps(llm) as steps:
                    outputs = llm.generate(prompts, max_tokens=self.args.tokens, temperature=0.0)
                wall = sum(len(one.tokens) for one in outputs) / (time.perf_counter() - begun)
                seconds, idle = steps.times(skip=8)
                rate = count * (steps.count - 8) / seconds
                self.keep(f"batch_{count}", {"wall": round(wall), "steps": round(rate), "idle": round(idle, 4)})

    def clients(self) -> None:
        count, length, tokens, rounds = (int(part) for part in self.args.clients.split(","))
        with self.open() as llm:
            llm.generate([self.prompt(length) for _ in range(count)], max_tokens=32, temperature=0.0)
            prompts = [[self.prompt(length) for _ in range(rounds)] for _ in range(count)]

            def ask(number: int) -> int:
                options: dict[str, Any] = {"max_tokens": tokens, "temperature": 0.0}
                return sum(len(llm.generate(prompt, **options).tokens) for prompt in prompts[number])

            begun = time.perf_counter()
            with NotedSteps(llm) as steps, ThreadPoolExecutor(count) as pool:
                total = sum(pool.map(ask, range(count)))
            seconds = time.perf_counter() - begun
            rates = {"out": round(total / seconds), "in": round(count * length * rounds / seconds)}
            self.keep(f"clients_{count}", rates | steps.kinds())

    def first(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for name in ("nothing compiled", "kernels kept"):
                command = [sys.executable, "-c", FIRST, str(self.path), "40"]
                done = subprocess.run(
                    command, env={**os.environ, "FEWBIT_CACHE": folder}, check=True, stdout=subprocess.PIPE, text=True
                )
                imported, loaded, token = map(float, done.stdout.split())
                found = {"import": round(imported, 2), "load": round(loaded, 2), "first_token": round(token, 3)}
                self.keep(name.replace(" ", "_"), found)

    def keep(self, name: str, found: Any) -> None:
        self.found[name] = found
        print(f"{name:18} {found}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a GGUF file with a vocabulary of 128,256 tokens")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--only", default="first,batches,clients")
    parser.add_argument("--batch", default="1,8,32,64,128,256")
    parser.add_argument("--tokens", type=int, default=136, help="of each output of a batch")
    parser.add_argument("--clients", default="64,512,128,3", help="clients, tokens in, tokens out, prompts of each")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        path = args.model
        if path is None:
            path = Path(folder, "random-8b.gguf")
            write_model(path, args.layers)
        bench = Bench(path, args)
        for name in args.only.split(","):
            getattr(bench, name)()
    if args.json:
        args.json.write_text(json.dumps(bench.found, indent=1))


if __name__ == "__main__":
    main()
