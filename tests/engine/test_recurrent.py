"""Recurrent layers in the engine: chunks, prefix hits, forks and preemptions give what a request gives alone."""

from __future__ import annotations

from pathlib import Path

import pytest

import fewbit as fb
from fewbit.ops.sampling import SamplingParams

from .alone import run
from .test_batch_invariant import Model, check_schedules, result

ZOO = Path(__file__).parents[1] / "zoo"
WARM = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


@pytest.mark.parametrize("name", ["qwen35", "lfm2", "granitehybrid"])
def test_any_schedule_has_the_same_bits(name: str, isa: str) -> None:
    check_schedules(Model(ZOO / name / "model.gguf"), 6)


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(ZOO / "qwen35/model.gguf")


def test_a_prefix_hit_begins_with_a_state(model: Model) -> None:
    engine = model.engine(64, 1000)
    tokens, given = model.texts[0][:80], []
    for _ in range(2):
        (request,) = engine.generation(tokens, WARM, max_tokens=6, seed=0, logprobs=2)
        engine.add([request])
        run(engine)
        given.append(request)
    assert engine.cache.stats().hits
    assert result(given[0]) == result(given[1])


def test_several_outputs_of_one_prompt(model: Model) -> None:
    """They begin with the same state, and each goes on with its own."""
    engine = model.engine(64, 1000)
    several = engine.generation(model.texts[1][:40], WARM, n=3, max_tokens=12, seed=5, logprobs=2)
    engine.add(several)
    run(engine)
    assert len({tuple(request.output_tokens) for request in several}) > 1
    for i, forked in enumerate(several):
        other = model.engine(200, 1000)
        (request,) = other.generation(model.texts[1][:40], WARM, max_tokens=12, seed=5 + i, logprobs=2)
        other.add([request])
        run(other)
        assert result(request) == result(forked)


def test_text_of_a_recurrent_model() -> None:
    with fb.LLM(ZOO / "qwen35/model.gguf", batch_invariant=True) as llm:
        whole = llm.generate("the sky is blue", max_tokens=12, seed=1)
        both = llm.generate(["the sky is blue", "the sky is"], max_tokens=12, seed=1)
    assert both[0].text == whole.text
