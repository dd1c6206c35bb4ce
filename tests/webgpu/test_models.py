"""Every architecture on WebGPU: the tiny models of tests/zoo beside transformers in f32, and greedy text of the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.devices.batch import Row
from fewbit.devices.webgpu import WebGpuDevice, WebGpuExecutor
from fewbit.loading import Loaded
from fewbit.models import open_model

from ..loading import load
from ..mtp_models import with_mtp
from .cases import error

pytestmark = pytest.mark.webgpu
ZOO = Path(__file__).parents[1] / "zoo"
USUAL = ("llama", "qwen35moe")  # that `make test` runs, too
SMALL: dict[str, Any] = {"kv": "f32", "max_batched_tokens": 64, "cache_bytes": 1 << 22, "max_seqs": 8}
BAR = 5e-5
TIE = 1e-4  # of a logit


def named(key: str) -> list[object]:
    names = sorted(path.parent.name for path in ZOO.glob("*/golden.npz") if key in np.load(path))
    return [pytest.param(n, marks=[] if n in USUAL else pytest.mark.exhaustive) for n in names]


def opened(name: str, **options: Any) -> Loaded:
    return load(open_model(ZOO / name / "model.gguf"), device="webgpu", **{**SMALL, **options})


def rows(loaded: Loaded, sequence: int, tokens: list[int]) -> Floats:
    return loaded.forward([Row(sequence, tokens, len(tokens))]).copy()


@pytest.mark.parametrize("name", named("logits"))
def test_logits_of_prompts_chunks_and_batches(name: str) -> None:
    data = np.load(ZOO / name / "golden.npz")
    tokens, expected = data["tokens"].tolist(), data["logits"]
    loaded = opened(name)
    first, parts, start = loaded.cache.new(), [], 0
    for size in (10, 1):
        parts.append(rows(loaded, first, tokens[start : start + size]))
        start += size
    assert error(np.concatenate(parts), expected[:start]) < BAR
    second, third = loaded.cache.new(), loaded.cache.fork(first)
    chunks = [(second, 0, 12), (third, 11, 24), (first, 11, 12)]
    got = loaded.forward([Row(sequence, tokens[a:b], b - a) for sequence, a, b in chunks])
    assert error(got, np.concatenate([expected[a:b] for _, a, b in chunks])) < BAR


@pytest.mark.parametrize("name", named("logits"))
def test_greedy_text_is_that_of_the_cpu(name: str) -> None:
    tokens = np.load(ZOO / name / "golden.npz")["tokens"].tolist()
    prompts = [tokens[:12], tokens[4:7]]
    path, options = ZOO / name / "model.gguf", {"max_tokens": 8, "temperature": 0.0, "stop_token_ids": []}
    with fb.LLM(path, exact=True, kv="f32", cache_bytes=1 << 22) as cpu:
        wanted = [cpu.generate(prompt, logprobs=2, **options) for prompt in prompts]
    with fb.LLM(path, device="webgpu", **SMALL) as gpu:
        got = gpu.generate(prompts, **options)
    for text, other in zip(wanted, got, strict=True):
        for place, token in enumerate(text.tokens):
            if other.tokens[place] != token:
                best, second = text.logprobs[place].top[:2]
                assert best.logprob - second.logprob < TIE
                break


def test_attention_in_chunks(tmp_path: Path) -> None:
    file, path = fb.read_gguf(ZOO / "llama4/model.gguf"), tmp_path / "model.gguf"
    fb.write_gguf(path, dict(file.metadata) | {"llama4.attention.sliding_window": 7}, dict(file.tensors))
    tokens = np.load(ZOO / "llama4/golden.npz")["tokens"].tolist()
    got = []
    for device in ("numpy", "webgpu"):
        loaded = load(open_model(path), device=device, **(SMALL if device == "webgpu" else {"kv": "f32"}))
        sequence = loaded.cache.new()
        got.append(np.concatenate([rows(loaded, sequence, part) for part in (tokens[:10], tokens[10:11], tokens[11:])]))
    assert error(got[1], got[0]) < BAR


@pytest.mark.parametrize("name", named("states"))
@pytest.mark.exhaustive
def test_states_of_encoders(name: str) -> None:
    data = np.load(ZOO / name / "golden.npz")
    tokens, loaded = data["tokens"].tolist(), opened(name)
    chunks = [Row(loaded.cache.new(), text, len(text)) for text in (tokens[:1], tokens, tokens[3:20])]
    together = loaded.forward(chunks, "hidden")
    assert error(together[1 : 1 + len(tokens)], data["states"]) < BAR


def test_a_token_takes_one_submission_and_one_round_trip() -> None:
    path = ZOO / "llama/model.gguf"
    with fb.LLM(path, device="webgpu", **SMALL) as llm:
        executor = llm._engine.executor if hasattr(llm, "_engine") else None
        llm.generate([5, 6, 7], max_tokens=2, temperature=0.8, seed=1, stop_token_ids=[])
        from fewbit.ops.webgpu import open_gpu

        counters = open_gpu().counters
        before = counters.submissions, counters.round_trips, counters.compiled
        out = llm.generate([5, 6, 7], max_tokens=9, temperature=0.8, seed=1, stop_token_ids=[])
        steps = len(out.tokens)  # the prompt's step gives the first token
        assert counters.submissions - before[0] == steps
        assert counters.round_trips - before[1] == steps
        assert counters.compiled == before[2]
        assert executor is None or isinstance(executor, WebGpuExecutor)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("activations", "bar"), [("f16", 0.02), ("int8", 0.06)])
def test_rounded_activations(activations: str, bar: float) -> None:
    data = np.load(ZOO / "llama/golden.npz")
    path = ZOO / "llama/model.gguf"
    packed = fb.LLM(path, format="q8_0", keep=False, device="webgpu", activations=activations, **SMALL)
    with packed as llm:
        assert len(llm.generate(data["tokens"].tolist()[:5], max_tokens=3, stop_token_ids=[]).tokens) == 3
    loaded = opened("llama", activations=activations)
    got = rows(loaded, loaded.cache.new(), data["tokens"].tolist()[:7])
    assert error(got, data["logits"][:7]) < bar


@pytest.mark.parametrize("layers", [1, 2])
def test_the_first_layers_on_the_cpu(layers: int) -> None:
    data = np.load(ZOO / "gemma3/golden.npz")
    tokens = data["tokens"].tolist()
    loaded = opened("gemma3", gpu_layers=layers, activations="exact")
    sequence = loaded.cache.new()
    got = np.concatenate([rows(loaded, sequence, tokens[:8]), rows(loaded, sequence, tokens[8:9])])
    assert error(got, data["logits"][:9]) < 1e-3


def test_layers_that_do_not_fit_stay_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for one of two, and for none."""
    options: dict[str, Any] = {"device": "webgpu", "max_batched_tokens": 32, "ctx": 64, "cache_bytes": 1 << 14}
    greedy: dict[str, Any] = {"max_tokens": 4, "temperature": 0.0}
    path = ZOO / "llama/model.gguf"
    with fb.LLM(path, exact=True, ctx=64) as cpu:
        wanted = cpu.generate([5, 6, 7], **greedy).tokens
    monkeypatch.setattr(WebGpuDevice, "reserve_bytes", 0)
    monkeypatch.setattr("fewbit.devices.webgpu.adapter_memory", lambda gpu: gpu.allocated_bytes + 210_000)
    with pytest.warns(UserWarning, match="1 of 2 layers run there, the others on the CPU"):
        llm = fb.LLM(path, **options)
    with llm:
        assert llm.generate([5, 6, 7], **greedy).tokens == wanted
    monkeypatch.setattr("fewbit.devices.webgpu.adapter_memory", lambda gpu: gpu.allocated_bytes + 50_000)
    with pytest.raises(fb.OutOfMemory, match=r'one layer of .* or device="cpu"'):
        fb.LLM(path, **options)


def test_guesses_by_the_layer_of_the_model(tmp_path: Path) -> None:
    path = with_mtp(tmp_path, "glm4moe", own_tables=False, likely=3)
    options: dict[str, Any] = {"device": "webgpu", "ctx": 64, **SMALL}
    with fb.LLM(path, speculate="mtp", **options) as llm, fb.LLM(path, speculate="off", **options) as plain:
        assert llm.engine._speculation is not None
        llm.engine._speculation.is_adaptive = False
        answers = [one.generate([5, 6, 7], max_tokens=10, temperature=0) for one in (llm, plain)]
    assert answers[0].tokens == answers[1].tokens
    assert answers[0].draft_tokens > 5
