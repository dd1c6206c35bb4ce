"""The default model's greedy text on an adapter, beside exact products on the CPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import fewbit as fb
from fewbit.files.hub import find
from fewbit.ops.webgpu import open_gpu

pytestmark = [pytest.mark.webgpu, pytest.mark.slow, pytest.mark.exhaustive]
TOKENS = 64


def model_path() -> Path:
    """FEWBIT_SMOLLM2 names a file; else the one in the cache folder."""
    given = os.environ.get("FEWBIT_SMOLLM2")
    try:
        return Path(given) if given else find("smollm2", offline=True)
    except fb.FewbitError as error:
        pytest.skip(str(error))


def test_greedy_text_is_that_of_the_cpu() -> None:
    path, prompt = model_path(), [{"role": "user", "content": "Why is the sky blue?"}]
    options = {"max_tokens": TOKENS, "temperature": 0.0}
    with fb.LLM(path, exact=True, kv="f16", ctx=512) as cpu:
        wanted = cpu.chat(prompt, **options)
    with fb.LLM(path, device="webgpu", kv="f16", ctx=512, max_batched_tokens=64) as llm:
        counters = open_gpu().counters
        before = counters.submissions, counters.round_trips
        got = llm.chat(prompt, **options)
        assert counters.submissions - before[0] == counters.round_trips - before[1] == TOKENS
    assert len(wanted.tokens) == TOKENS
    assert got.tokens == wanted.tokens
