"""Layers divided over stages: the same bits as in one process, wherever a model can be cut."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.devices.batch import Row
from fewbit.devices.dividing import divide
from fewbit.devices.stages import StagedDevice, StagedExecutor
from fewbit.errors import DataError, OutOfMemory, RequestError
from fewbit.loading import Loaded
from fewbit.models import load_model, open_model
from fewbit.ops.cut import cut_all, factors_of, layers_of

from ..loading import load
from ..models.random_llama import write_llama
from .test_splitting import plan

ZOO = Path(__file__).parents[1] / "zoo"
PROMPTS = [[5 + i % 40 for i in range(40)], [7, 8, 9]]
EXACT: dict[str, Any] = {"batch_invariant": True, "max_batched_tokens": 64, "max_seqs": 4, "cache_bytes": 1 << 20}
# With a window, recurrent layers, experts, tied embeddings, several values that cross a cut, all tokens seen.
NAMES = [
    "llama",
    "qwen2",
    "gemma3",
    "gpt-oss",
    "lfm2",
    "qwen35",
    "granitehybrid",
    "qwen3moe",
    "mistral3",
    "gemma4",
    "bert",
]


def rows(loaded: Loaded, output: str) -> Floats:
    """Of two sequences of different lengths, the longer one in chunks, and of a fork."""
    first, second = loaded.cache.new(), loaded.cache.new()
    got = [loaded.forward([Row(first, PROMPTS[0][:33], 33)], output).copy()]
    third = loaded.cache.fork(first)
    parts = [Row(first, PROMPTS[0][33:36], 3), Row(second, PROMPTS[1], 3), Row(third, [3, 4], 2)]
    got.append(loaded.forward(parts, output).copy())
    got.append(loaded.forward([Row(first, PROMPTS[0][36:37], 1), Row(second, [11], 1)], output).copy())
    return np.concatenate(got)


@pytest.mark.parametrize("name", NAMES)
def test_rows_have_the_same_bits(name: str) -> None:
    path = ZOO / name / "model.gguf"
    output = "hidden" if name == "bert" else "logits"
    one, two = (load(open_model(path), device=device, threads=1, **EXACT) for device in ("cpu", "cpu,cpu"))
    assert isinstance(two.executor, StagedExecutor)
    np.testing.assert_array_equal(rows(two, output), rows(one, output))


@pytest.mark.parametrize("name", ["gemma3", "qwen35", "smollm3"])
def test_three_stages_write_the_same_text(name: str) -> None:
    path, texts = ZOO / name / "model.gguf", []
    prompts = [[i + 3, *PROMPTS[0][: 7 * i]] for i in range(5)]
    for device in ("cpu", "cpu,cpu,cpu"):
        with fb.LLM(path, device, ctx=64, threads=1, **EXACT) as llm:
            found = llm.generate(prompts, max_tokens=9, seed=5, n=2)
            texts.append([one.tokens for first in found for one in first.outputs])
            assert llm.loaded.cache.stats().used == 0
            texts[-1] += [llm.generate(PROMPTS[0], max_tokens=3, regex="[a-f]+", seed=1).tokens]
            texts[-1] += [llm.generate(PROMPTS[0], max_tokens=6, mirostat=2, seed=1).tokens]  # its state is kept here
            scores = llm.score(PROMPTS[0])
            texts[-1] += [scores.tolist()]
    assert texts[0] == texts[1]


def test_numpy_stages(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "model.gguf", layers=3)
    one, two = (load(open_model(path), device=device, max_seqs=4) for device in ("numpy", "numpy,numpy,numpy"))
    np.testing.assert_array_equal(rows(two, "logits"), rows(one, "logits"))
    mixed = load(open_model(path), device="numpy,cpu", kv="f32", max_seqs=4)
    np.testing.assert_allclose(rows(mixed, "hidden"), rows(one, "hidden"), atol=0.2)


def test_pages_are_saved_and_read_back(tmp_path: Path) -> None:
    """What stages keep goes to a file and back, into one process too."""
    path, saved = ZOO / "smollm3" / "model.gguf", []
    options = {"ctx": 64, "threads": 1, **EXACT}
    with fb.LLM(path, "cpu,cpu", **options) as staged, fb.LLM(path, "cpu", **options) as plain:
        for number, llm in enumerate((staged, plain)):
            expected = llm.generate(PROMPTS[0], max_tokens=4, seed=1).tokens
            llm.loaded.cache.save(llm.loaded.cache.new(PROMPTS[0]), tmp_path / f"{number}")
            saved.append((tmp_path / f"{number}").read_bytes())
        assert saved[0] == saved[1]
    for device in ("cpu,cpu", "cpu"):
        with fb.LLM(path, device, **options) as llm:
            assert llm.loaded.cache.length(llm.loaded.cache.load(tmp_path / "0")) == 32
            assert llm.generate(PROMPTS[0], max_tokens=4, seed=1).tokens == expected
            assert llm.loaded.cache.stats().hits


def test_a_stage_that_fails_ends_its_step_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with fb.LLM(ZOO / "smollm3" / "model.gguf", "cpu,cpu,cpu", ctx=64, threads=1, **EXACT) as llm:
        expected = llm.generate(PROMPTS, max_tokens=6, seed=2)
        middle = llm.loaded.executor.executors[1]  # type: ignore[attr-defined]
        launch, calls = type(middle).launch, []

        def fail(self: Any, *args: Any) -> Any:
            calls.append(self is middle)
            if calls.count(True) == 3:
                calls.append(True)
                raise DataError("the second stage has failed")
            return launch(self, *args)

        monkeypatch.setattr(type(middle), "launch", fail)
        with pytest.raises(DataError, match="the second stage has failed"):
            llm.generate(PROMPTS, max_tokens=6, seed=2)
        assert [one.tokens for one in llm.generate(PROMPTS, max_tokens=6, seed=2)] == [one.tokens for one in expected]


def test_the_busiest_stage_has_as_little_as_can_be(tmp_path: Path) -> None:
    model = load_model(fb.read_gguf(write_llama(tmp_path / "model.gguf", layers=6)))
    whole = plan(model, 1 << 30)
    for stages in (2, 3, 4):
        parts = divide([whole] * stages, model.graph, 256)
        counts = [part.layers for part in parts]
        assert sum(counts) == 6
        busiest = _busiest(model.graph, counts)
        for i, j in pairwise(range(stages)):
            for step in (-1, 1):
                other = [*counts]
                other[i] += step
                other[j] -= step
                assert min(other) == 0 or _busiest(model.graph, other) >= busiest


def _busiest(graph: Any, counts: list[int]) -> int:
    return max(sum(w.nbytes for w in factors_of(part).values()) for part in cut_all(graph, counts))


def test_a_small_stage_gets_what_fits(tmp_path: Path) -> None:
    model = load_model(fb.read_gguf(write_llama(tmp_path / "model.gguf", layers=6)))
    whole = plan(model, 1 << 30)
    (first, *_), layer = divide([whole] * 6, model.graph, 256), cut_all(model.graph, [1] * 6)[1]
    assert first.layers == 1
    nbytes = sum(w.nbytes for w in factors_of(layer).values()) + whole.cache_bytes(256) // 6
    parts = divide([whole, plan(model, nbytes), whole], model.graph, 256)
    assert parts[1].layers == 1
    assert [part.fits(256) for part in parts] == [True] * 3
    with pytest.raises(RequestError, match="cannot be cut into 7 stages: at most into 6"):
        divide([whole] * 7, model.graph, 256)


def test_what_does_not_fit_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_llama(tmp_path / "model.gguf", layers=3)
    monkeypatch.setattr("fewbit.ops.memory.available_memory", lambda: 200 << 20)
    monkeypatch.setattr("fewbit.ops.memory.host_memory", lambda *_: 200 << 20)
    monkeypatch.setattr("fewbit.devices.cpu.host_memory", lambda *_: 100 << 20)
    with pytest.raises(OutOfMemory, match=r"model.gguf needs .* of memory"):
        load(open_model(path), device="cpu,cpu")


def test_devices_that_cannot_be_stages() -> None:
    file = open_model(ZOO / "llama" / "model.gguf")
    with pytest.raises(RequestError, match="gpu_layers is for one GPU beside the CPU"):
        load(file, device="cpu,cpu", gpu_layers=1)
    with pytest.raises(RequestError, match="the model cannot be cut into 3 stages: at most into 2"):
        load(file, device="cpu,cpu,cpu")
    with pytest.raises(RequestError, match="there is no device ''"):
        load(file, device="cpu,")
    with pytest.raises(RequestError, match="cannot be cut into 2 stages: its layers share what they keep"):
        load(open_model(ZOO / "gemma4-wide" / "model.gguf"), device="cpu,cpu")


def test_each_stage_has_its_layers_alone() -> None:
    model = load_model(open_model(ZOO / "smollm3" / "model.gguf"))
    parts = cut_all(model.graph, [1, 2, 1])
    assert [layers_of(part.nodes) for part in parts] == [{0}, {1, 2}, {3}]
    assert StagedDevice.takes_rows is False
