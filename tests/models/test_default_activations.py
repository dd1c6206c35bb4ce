"""How products take their inputs unless told otherwise, and what the default model makes of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import fewbit as fb
from fewbit.devices import get
from fewbit.files.hub import find
from fewbit.load_options import LoadOptions
from fewbit.loading import with_activations
from fewbit.ops import cpu

INT16 = {"amx", "avx512", "avx512bw"}  # where 16 bits cost less than 15% for one row: see docs/log.md
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def model() -> Path:
    try:
        return find("smollm2", offline=True)
    except fb.FewbitError as error:
        pytest.skip(f"the default model is not here: {error}")


def test_one_row_has_16_bits_where_they_cost_little(isa: str) -> None:
    assert cpu.inputs_of("q4_k") == ("q16" if isa in INT16 else "q8")
    assert cpu.inputs_of("q4_k", m=2) == "q8"
    assert cpu.describe_activations().startswith("int16 for one token" if isa in INT16 else "int8")
    assert cpu.inputs_of("q4_k", activations="int8") == "q8"


def test_what_a_model_needs_gives_way_to_what_a_caller_asks_for() -> None:
    nothing, int8 = LoadOptions(), LoadOptions(activations="int8")
    assert with_activations(nothing, get("cpu"), "int16").activations == "int16"
    assert with_activations(int8, get("cpu"), "int16").activations == "int8"
    assert with_activations(nothing, get("numpy"), "int16") == nothing  # it has no choice


@pytest.mark.slow
def test_the_default_model_knows_paris(isa: str, model: Path) -> None:
    with fb.LLM(model, ctx=256) as llm:
        assert "Paris" in llm.chat(QUESTION, temperature=0, max_tokens=16)


@pytest.mark.slow
def test_every_copy_of_the_default_model_has_16_bits(model: Path, tmp_path: Path) -> None:
    copy = shutil.copy(model, tmp_path / "other.gguf")
    for path, options, expected in ((model, {}, "int16"), (copy, {}, "int16"), (copy, {"activations": "int8"}, "int8")):
        with fb.LLM(path, ctx=64, **options) as llm:  # type: ignore[arg-type]
            assert llm.loaded.executor.activations == expected  # type: ignore[attr-defined]
