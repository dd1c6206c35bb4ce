"""Many outputs in a step on a GPU: captured steps of up to 256, whose texts are those of the outputs alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.devices.batch import Row
from fewbit.devices.cuda_executor import BATCHES, MAX_LOGITS, CudaExecutor
from fewbit.errors import RequestError
from fewbit.models import open_model
from fewbit.ops.cuda.inputs import InputLayout

from ..loading import load
from .test_models_gpu import USUAL, error

pytestmark = pytest.mark.cuda
IS_EMULATED = bool(os.environ.get("FEWBIT_EMULATE_CUDA"))
ZOO = Path(__file__).parents[1] / "zoo"
PATH = ZOO / "llama" / "model.gguf"
SMALL: dict[str, Any] = {"kv": "f16", "ctx": 64, "cache_bytes": 1 << 24}
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 6 if IS_EMULATED else 24}
COUNTS = [64, 65] if IS_EMULATED else [64, 65, 128, 200, 256]
TIE = 0.2  # nats between the two likeliest tokens, below which products in 8 and 16 bits choose differently


@pytest.fixture(scope="module")
def llm() -> Iterator[fb.LLM]:
    with fb.LLM(PATH, device="cuda", **SMALL) as llm:
        yield endless(llm)


@pytest.fixture(scope="module")
def exact() -> Iterator[fb.LLM]:
    with fb.LLM(PATH, exact=True, **SMALL) as llm:
        yield endless(llm)


def endless(llm: fb.LLM) -> fb.LLM:
    """No token ends a text: all outputs are in all steps."""
    llm.engine.eos_ids = frozenset()
    return llm


def make_prompts(count: int) -> list[list[int]]:
    rng = np.random.default_rng(count)
    return [rng.integers(0, 256, rng.integers(1, 12)).tolist() for _ in range(count)]


def first_difference(a: Any, b: Any) -> int | None:
    return next((i for i, (one, other) in enumerate(zip(a.tokens, b.tokens, strict=True)) if one != other), None)


def test_a_card_runs_256_outputs_by_default(llm: fb.LLM) -> None:
    assert llm.loaded.max_seqs == MAX_LOGITS == BATCHES[-1] == 256


@pytest.mark.parametrize("count", COUNTS)
def test_texts_are_those_alone(llm: fb.LLM, exact: fb.LLM, count: int) -> None:
    """But where the two likeliest tokens are nearly as likely."""
    prompts = make_prompts(count)
    together = llm.generate(prompts, **GREEDY)
    executor = llm.loaded.executor
    assert isinstance(executor, CudaExecutor)
    size = next(size for size in BATCHES if size >= count)
    assert any(bucket.graphs for key, bucket in executor.buckets.items() if key.size == size)
    compared = range(0, count, 16 if IS_EMULATED else 1)
    for i in compared:
        alone = llm.generate(prompts[i], **GREEDY)
        place = first_difference(together[i], alone)
        if place is not None:
            before = [*prompts[i], *alone.tokens[:place]]
            best, second = exact.generate(before, logprobs=2, **{**GREEDY, "max_tokens": 1}).logprobs[0].top[:2]
            assert best.logprob - second.logprob < TIE


@pytest.mark.parametrize("name", ["llama", "qwen35moe", "gemma3", "deepseek2"])
def test_prompts_beside_outputs(name: str) -> None:
    """Outputs, then prompts, in steps that are padded: the same rows as in steps of their own."""
    data = np.load(ZOO / name / "golden.npz")
    tokens, expected = data["tokens"].tolist(), data["logits"]
    loaded = load(open_model(ZOO / name / "model.gguf"), device="cuda", kv="f16", cache_bytes=1 << 22, max_seqs=8)
    sequences = [loaded.cache.new() for _ in range(5)]
    first = loaded.forward([Row(sequence, tokens[:9], 9) for sequence in sequences[:3]])
    assert error(first, np.concatenate([expected[:9]] * 3)) < USUAL
    parts = [(0, 9, 10), (1, 9, 10), (2, 9, 10), (3, 0, 23), (4, 0, 18)]
    layouts = list[InputLayout]()
    executor: Any = loaded.executor
    prompt_layout = executor._prompt_layout
    executor._prompt_layout = lambda *args: layouts.append(prompt_layout(*args)) or layouts[-1]
    rows = [Row(sequences[i], tokens[begin:end], end - begin) for i, begin, end in parts]
    found = loaded.forward(rows)
    assert error(found, np.concatenate([expected[begin:end] for _, begin, end in parts])) < USUAL
    assert (layouts[0].tokens, layouts[0].singles) == (48, 4)
    found = loaded.forward([Row(sequences[0], tokens[10:11], 1), Row(sequences[3], tokens[23:], 1)])
    assert error(found, expected[[10, 23]]) < USUAL


def test_steps_of_a_size_are_recorded_once(llm: fb.LLM) -> None:
    """Prompts of lengths that are padded to one, beside other numbers of outputs."""
    executor: Any = llm.loaded.executor
    (segment,) = executor.plans["logits"].segments
    recorded = segment.recorded.kept

    def run(outputs: int, length: int) -> None:
        cache = llm.loaded.cache
        sequences = [cache.new() for _ in range(outputs + 1)]
        llm.loaded.forward([Row(sequence, [7, 8], 1) for sequence in sequences[:outputs]])
        rows = [Row(sequence, [9], 1) for sequence in sequences[:outputs]]
        llm.loaded.forward([*rows, Row(sequences[-1], [5] * length, 7 - outputs)])
        for sequence in sequences:
            cache.free(sequence)

    run(6, 38)
    before = set(recorded)
    run(5, 36)
    new = {sizes for sizes in set(recorded) - before if sizes[0] > 20}
    assert not new


def test_more_than_a_step_runs_are_refused() -> None:
    with pytest.raises(RequestError, match=r"device 'cuda' runs at most 256 outputs in a step, got max_seqs=257"):
        fb.LLM(PATH, device="cuda", max_seqs=257, **SMALL)
