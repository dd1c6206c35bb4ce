"""Many outputs in a step on a GPU: captured steps of up to 256, whose texts are those of the outputs alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.devices.cuda import BATCHES, MAX_LOGITS, CudaExecutor
from fewbit.errors import RequestError

pytestmark = pytest.mark.cuda
IS_EMULATED = bool(os.environ.get("FEWBIT_EMULATE_CUDA"))
PATH = Path(__file__).parents[1] / "zoo" / "llama" / "model.gguf"
SMALL: dict[str, Any] = {"kv": "f16", "ctx": 64, "cache_bytes": 1 << 24}
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 6, "stop_token_ids": []}
COUNTS = [64, 80] if IS_EMULATED else [64, 65, 128, 200, 256]
TIE = 0.2  # nats between the two likeliest tokens, below which products in 8 and 16 bits choose differently


@pytest.fixture(scope="module")
def llm() -> Iterator[fb.LLM]:
    with fb.LLM(PATH, device="cuda", **SMALL) as llm:
        yield llm


@pytest.fixture(scope="module")
def exact() -> Iterator[fb.LLM]:
    with fb.LLM(PATH, exact=True, **SMALL) as llm:
        yield llm


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
    assert any(bucket.graphs for key, bucket in executor.buckets.items() if key[0] == size)
    compared = range(0, count, 16 if IS_EMULATED else 1)
    for i in compared:
        alone = llm.generate(prompts[i], **GREEDY)
        place = first_difference(together[i], alone)
        if place is not None:
            before = [*prompts[i], *alone.tokens[:place]]
            best, second = exact.generate(before, logprobs=2, **{**GREEDY, "max_tokens": 1}).logprobs[0].top[:2]
            assert best.logprob - second.logprob < TIE


def test_more_than_a_step_runs_are_refused() -> None:
    with pytest.raises(RequestError, match=r"device 'cuda' runs at most 256 outputs in a step, got max_seqs=257"):
        fb.LLM(PATH, device="cuda", max_seqs=257, **SMALL)
