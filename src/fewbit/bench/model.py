"""Tokens/s of a model beside the machine's read bandwidth: what `fewbit bench MODEL` prints."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from os import PathLike
from statistics import median

import numpy as np

from .. import devices
from ..arrays import Bytes
from ..cache.groups import PAGE_TOKENS
from ..devices import Device
from ..devices.batch import Row
from ..devices.forward import sample_greedily
from ..errors import RequestError
from ..files.hub import recommended_activations
from ..load_options import LoadOptions
from ..loading import Loaded, check_ctx, load_weights, place, with_activations
from ..models import LoadedModel, open_model
from ..ops import cpu

MEMORY_BYTES = 1 << 30  # read beside the model; no cache holds it

Rng = np.random.Generator


@dataclass(frozen=True)
class ModelCase:
    """What to measure: a prompt on an empty cache; then, for sequences of a depth, steps that sample one token each."""

    prompt: int
    gen: int
    depth: int
    batch: int
    threads: int
    kv: str | tuple[str, str]  # formats of K and V
    drafts: int = 0  # guesses that each sequence verifies in a step; here none is right

    @property
    def tokens(self) -> int:
        """Of the longest sequence."""
        return max(self.prompt, self.depth + self.gen + self.drafts)

    @property
    def pages(self) -> int:
        """Of the cache; each sequence may need one more, for the copy of a page that is cached."""
        pages_of = [-(-tokens // PAGE_TOKENS) + 1 for tokens in (self.prompt, self.depth + self.gen + self.drafts)]
        return max(pages_of[0], self.batch * pages_of[1])


@dataclass(frozen=True)
class Speed:
    """One case; medians over rounds, in which the model and a plain read loop alternate."""

    prompt_tokens: int
    gen_tokens: int
    depth: int
    batch: int
    threads: int
    kv: str
    drafts: int  # guesses that each sequence verified in a step; none was right
    activations: str | None  # how products take their inputs; None: as the device does by default
    prefill_tokens_per_second: float
    decode_tokens_per_second: float  # of all sequences
    decode_bandwidth_share: float | None  # weights, K and V read a second over what a plain loop reads; CPUs only


def measure(
    path: str | PathLike[str], cases: Sequence[ModelCase], options: LoadOptions, rounds: int = 3
) -> Iterator[Speed]:
    """The speeds of a model, case by case. Cases with the same threads and formats share a cache.

    Args:
        path: The model's file.
        cases: What to measure.
        options: How the model is loaded; threads and the format of the KV cache are those of the cases.
        rounds: Number of times that each case is measured.
    """
    file = open_model(path)
    device = devices.get(options.device, options)
    options = with_activations(options, device, recommended_activations(file.tokenizer()))
    model = load_weights(file, device, options.repack)
    file.close()
    if model.is_encoder:
        raise RequestError("the model is an encoder: it writes no text, and there is no speed of that to measure")
    memory, activations = None, options.activations
    if device.threads is not None:
        memory, activations = np.ones(MEMORY_BYTES, np.uint8), cpu.describe_activations(activations)
    for (threads, _), group in groupby(cases, lambda case: (case.threads, case.kv)):
        used = replace(options, threads=threads if memory is not None else None)
        yield from _measure_group(model, list(group), devices.get(options.device, used), activations, rounds, memory)


def _measure_group(
    model: LoadedModel,
    cases: Sequence[ModelCase],
    device: Device,
    activations: str | None,
    rounds: int,
    memory: Bytes | None,
) -> Iterator[Speed]:
    loaded = place_for(model, cases, device)
    rng = np.random.default_rng(0)  # one for all, so that no text comes twice and is found in the cache
    prefill = {prompt: prefill_speed(loaded, prompt, rounds, rng) for prompt in {case.prompt for case in cases}}
    for case in cases:
        decode, share = decode_speed(loaded, case, rounds, rng, memory)
        yield Speed(
            prompt_tokens=case.prompt,
            gen_tokens=case.gen,
            depth=case.depth,
            batch=case.batch,
            threads=case.threads,
            kv=case.kv if isinstance(case.kv, str) else "/".join(case.kv),
            drafts=case.drafts,
            activations=activations,
            prefill_tokens_per_second=prefill[case.prompt],
            decode_tokens_per_second=decode,
            decode_bandwidth_share=share,
        )


def place_for(model: LoadedModel, cases: Sequence[ModelCase], device: Device) -> Loaded:
    """A model beside a cache with room for the largest of some cases."""
    ctx = check_ctx(max(case.tokens for case in cases), model.config)
    return place(model, device, cases[0].kv, ctx, max(case.pages for case in cases) * PAGE_TOKENS)


def prefill_speed(loaded: Loaded, prompt: int, rounds: int, rng: Rng) -> float:
    """Tokens/s of a prompt whose last logits are wanted: the median over rounds, each with a prompt of its own."""
    times = []
    for i in range(rounds + 1):
        count = min(prompt, loaded.executor.max_batched_tokens) if i == 0 else prompt  # the first is to warm up
        tokens = random_tokens(rng, loaded, count)
        with sequences(loaded, 1) as (sequence,):
            started = time.perf_counter()
            feed(loaded, sequence, tokens, num_logits=1)
            times.append(time.perf_counter() - started)
    return prompt / median(times[1:])


def decode_speed(
    loaded: Loaded, case: ModelCase, rounds: int, rng: Rng, memory: Bytes | None
) -> tuple[float, float | None]:
    """Tokens/s of many sequences at a depth, and how much of the read bandwidth of `memory` that uses."""
    times, reads = [], []
    with sequences(loaded, case.batch) as ids:
        for sequence in ids:
            feed(loaded, sequence, random_tokens(rng, loaded, max(0, case.depth - 1)), num_logits=0)
        for _ in range(rounds + 1):
            tokens = [random_tokens(rng, loaded, case.batch) for _ in range(case.gen + 1)]
            go_back(loaded, ids, case.depth, tokens.pop())
            if memory is not None:
                reads.append(memory.size / cpu.read_seconds(memory, case.threads))
            started = time.perf_counter()
            for row in tokens:
                step(loaded, ids, row, case.drafts)
            times.append((time.perf_counter() - started) / case.gen)
    speed = case.batch / median(times[1:])
    if memory is None:
        return speed, None
    read = step_bytes(loaded, case)
    shares = [read / seconds / bandwidth for seconds, bandwidth in zip(times, reads, strict=True)]
    return speed, median(shares[1:])


def step_bytes(loaded: Loaded, case: ModelCase) -> float:
    """Bytes of weights and of K and V that a step reads, on average over the steps of a case."""
    calls = -(-case.batch // max_sequences(loaded))
    tokens = case.batch * (case.depth + (case.gen + 1) / 2)
    return calls * loaded.step_bytes + tokens * loaded.cache.layout.token_bytes


@contextmanager
def sequences(loaded: Loaded, count: int) -> Iterator[list[int]]:
    """New sequences, freed at the end."""
    ids: list[int] = []
    try:
        ids.extend(loaded.cache.new() for _ in range(count))
        yield ids
    finally:
        for sequence in ids:
            loaded.cache.free(sequence)


def feed(loaded: Loaded, sequence: int, tokens: Sequence[int], num_logits: int) -> None:
    """Run many tokens of one sequence, logits of the last `num_logits`."""
    limit = loaded.executor.max_batched_tokens
    for start in range(0, len(tokens), limit):
        last = start + limit >= len(tokens)
        loaded.forward([Row(sequence, tokens[start : start + limit], num_logits if last else 0)])


def go_back(loaded: Loaded, ids: list[int], depth: int, tokens: list[int]) -> None:
    """Bring sequences to a depth by a last step: it copies pages that are cached, and the steps after it need not."""
    for sequence in ids:
        loaded.cache.truncate(sequence, max(0, depth - 1))
    if depth:
        step(loaded, ids, tokens)


def step(loaded: Loaded, ids: list[int], tokens: list[int], drafts: int = 0) -> None:
    """One more token for each sequence, and guesses after it that are verified and taken back."""
    limit = max(1, max_sequences(loaded) // (1 + drafts))
    for start in range(0, len(ids), limit):
        pairs = zip(ids[start : start + limit], tokens[start : start + limit], strict=True)
        chunks = [Row(sequence, [token] * (1 + drafts), 1 + drafts) for sequence, token in pairs]
        sample_greedily(loaded.executor, loaded.cache, chunks)
        for sequence in ids[start : start + limit] if drafts else ():
            loaded.cache.truncate(sequence, loaded.cache.length(sequence) - drafts)


def max_sequences(loaded: Loaded) -> int:
    """How many sequences one call can bring a token further."""
    return min(loaded.executor.max_batched_tokens, loaded.executor.max_logits)


def random_tokens(rng: Rng, loaded: Loaded, count: int) -> list[int]:
    return [int(token) for token in rng.integers(0, loaded.executor.vocab, count)]
