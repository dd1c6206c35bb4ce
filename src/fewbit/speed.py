"""Tokens/s of a model beside the machine's read bandwidth: what `fewbit bench MODEL` prints."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from os import PathLike
from statistics import median
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .cache.kv import KVCache
from .cache.pages import PAGE_TOKENS
from .engine.contract import Chunk, Runner
from .engine.runner import CpuRunner, checked_ctx, preparation
from .files.gguf import read_gguf
from .models import Model, load_model
from .ops import cpu

MEMORY_BYTES = 1 << 30  # read beside the model; no cache holds it

Bytes = npt.NDArray[np.uint8]
Rng = np.random.Generator


class Measurable(Runner, Protocol):
    """A runner that knows how much it reads."""

    @property
    def step_bytes(self) -> int:
        """Of weights, in one call."""


@dataclass(frozen=True)
class Case:
    """What to measure: a prompt on an empty cache; then, for sequences of some depth, one token each a step."""

    prompt: int
    gen: int
    depth: int
    batch: int
    threads: int
    kv: str | tuple[str, str]  # formats of K and V

    @property
    def tokens(self) -> int:
        """Of the longest sequence."""
        return max(self.prompt, self.depth + self.gen)

    @property
    def pages(self) -> int:
        """Of the cache; each sequence may need one more, for the copy of a page that is cached."""
        pages_of = [-(-tokens // PAGE_TOKENS) + 1 for tokens in (self.prompt, self.depth + self.gen)]
        return max(pages_of[0], self.batch * pages_of[1])


@dataclass(frozen=True)
class Speed:
    """One case; medians over rounds, in which the model and a plain read loop took turns."""

    prompt_tokens: int
    gen_tokens: int
    depth: int
    batch: int
    threads: int
    kv: str
    prefill_tokens_per_second: float
    decode_tokens_per_second: float  # of all sequences
    decode_bandwidth_share: float  # of the weights, K and V that are read a second, in what the plain loop reads


def measure(
    path: str | PathLike[str], cases: Sequence[Case], *, activations: str | None = None, rounds: int = 3
) -> Iterator[Speed]:
    """The speeds of a model in a GGUF file, case by case. Cases with the same threads and formats share a runner."""
    memory = np.ones(MEMORY_BYTES, np.uint8)
    with read_gguf(path) as gguf:
        model = load_model(gguf, preparation(gguf, activations=activations))
    for _, group in groupby(cases, lambda case: (case.threads, case.kv)):
        yield from _measure_group(model, list(group), activations, rounds, memory)


def _measure_group(
    model: Model, cases: Sequence[Case], activations: str | None, rounds: int, memory: Bytes
) -> Iterator[Speed]:
    runner = make_runner(model, cases, activations)
    rng = np.random.default_rng(0)  # one for all, so that no text comes twice and is found in the cache
    prefill = {prompt: prefill_speed(runner, prompt, rounds, rng) for prompt in {case.prompt for case in cases}}
    for case in cases:
        decode, share = decode_speed(runner, case, rounds, rng, memory)
        yield Speed(
            prompt_tokens=case.prompt,
            gen_tokens=case.gen,
            depth=case.depth,
            batch=case.batch,
            threads=case.threads,
            kv=case.kv if isinstance(case.kv, str) else "/".join(case.kv),
            prefill_tokens_per_second=prefill[case.prompt],
            decode_tokens_per_second=decode,
            decode_bandwidth_share=share,
        )


def make_runner(model: Model, cases: Sequence[Case], activations: str | None = None) -> CpuRunner:
    """A runner whose cache has room for the largest of some cases."""
    of, kv = model.config, cases[0].kv
    ctx = checked_ctx(max(case.tokens for case in cases), model)
    k, v = (kv, None) if isinstance(kv, str) else kv
    pages = max(case.pages for case in cases)
    cache = KVCache(of.layers, of.kv_heads, of.dim, pages=pages, k=k, v=v)
    return CpuRunner(model, cache, ctx, activations, cases[0].threads)


def prefill_speed(runner: Runner, prompt: int, rounds: int, rng: Rng) -> float:
    """Tokens/s of a prompt whose last logits are wanted: the median over rounds, each with a prompt of its own."""
    times = []
    for i in range(rounds + 1):
        count = min(prompt, runner.most_tokens) if i == 0 else prompt  # the first is to warm up
        tokens = random_tokens(rng, runner, count)
        with sequences(runner, 1) as (sequence,):
            started = time.perf_counter()
            feed(runner, sequence, tokens, wanted=1)
            times.append(time.perf_counter() - started)
    return prompt / median(times[1:])


def decode_speed(runner: Measurable, case: Case, rounds: int, rng: Rng, memory: Bytes) -> tuple[float, float]:
    """Tokens/s of many sequences at a depth, and how much of the read bandwidth that uses."""
    times, reads = [], []
    with sequences(runner, case.batch) as ids:
        for sequence in ids:
            feed(runner, sequence, random_tokens(rng, runner, max(0, case.depth - 1)), wanted=0)
        for _ in range(rounds + 1):
            tokens = [random_tokens(rng, runner, case.batch) for _ in range(case.gen + 1)]
            go_back(runner, ids, case.depth, tokens.pop())
            reads.append(memory.size / cpu.read_seconds(memory, case.threads))
            started = time.perf_counter()
            for row in tokens:
                step(runner, ids, row)
            times.append((time.perf_counter() - started) / case.gen)
    read = step_bytes(runner, case)
    shares = [read / seconds / bandwidth for seconds, bandwidth in zip(times, reads, strict=True)]
    return case.batch / median(times[1:]), median(shares[1:])


def step_bytes(runner: Measurable, case: Case) -> float:
    """Bytes of weights and of K and V that a step reads, on average over the steps of a case."""
    calls = -(-case.batch // most_sequences(runner))
    tokens = case.batch * (case.depth + (case.gen + 1) / 2)
    return calls * runner.step_bytes + tokens * runner.cache.layout.token_bytes


@contextmanager
def sequences(runner: Runner, count: int) -> Iterator[list[int]]:
    """New sequences, given back at the end."""
    ids: list[int] = []
    try:
        ids.extend(runner.cache.new() for _ in range(count))
        yield ids
    finally:
        for sequence in ids:
            runner.cache.free(sequence)


def feed(runner: Runner, sequence: int, tokens: Sequence[int], wanted: int) -> None:
    """Run many tokens of one sequence, logits of the last `wanted`."""
    most = runner.most_tokens
    for start in range(0, len(tokens), most):
        last = start + most >= len(tokens)
        runner.forward([Chunk(sequence, tokens[start : start + most], wanted if last else 0)])


def go_back(runner: Runner, ids: list[int], depth: int, tokens: list[int]) -> None:
    """Bring sequences to a depth by a last step: it copies pages that are cached, and the steps after it need not."""
    for sequence in ids:
        runner.cache.truncate(sequence, max(0, depth - 1))
    if depth:
        step(runner, ids, tokens)


def step(runner: Runner, ids: list[int], tokens: list[int]) -> None:
    most = most_sequences(runner)
    for start in range(0, len(ids), most):
        some = zip(ids[start : start + most], tokens[start : start + most], strict=True)
        runner.forward([Chunk(sequence, [token], 1) for sequence, token in some])


def most_sequences(runner: Runner) -> int:
    """How many sequences one call can bring a token further."""
    return min(runner.most_tokens, runner.most_wanted)


def random_tokens(rng: Rng, runner: Runner, count: int) -> list[int]:
    return [int(token) for token in rng.integers(0, runner.vocab, count)]
