"""Experts that stay on the CPU while all layers run on a GPU: the same results, and what fits on a card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.devices import cuda
from fewbit.devices.batch import Row
from fewbit.devices.cpu_experts import expert_nodes
from fewbit.errors import OutOfMemory, RequestError
from fewbit.loading import Loaded
from fewbit.models import load_model, open_model
from fewbit.ops.cuda import gpu

from ..loading import load
from .test_layers_gpu import CACHE, PROMPTS, ZOO, error, rows

pytestmark = pytest.mark.cuda
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 6}


def golden_error(name: str, **options: Any) -> tuple[float, Loaded]:
    data = np.load(ZOO / name / "golden.npz")
    tokens = data["tokens"].tolist()
    loaded = load(open_model(ZOO / name / "model.gguf"), **{**CACHE, **options})
    got = loaded.forward([Row(loaded.cache.new(), tokens, len(tokens))])
    return error(got, data["logits"]), loaded


@pytest.mark.parametrize("name", ["qwen3moe", "gpt-oss", "qwen35moe"])
def test_logits_are_those_of_transformers(name: str) -> None:
    """With and without biases, one in several layers, shared experts and recurrent layers beside."""
    found, loaded = golden_error(name, cpu_experts=99)
    assert found < 0.06
    executor: Any = loaded.executor
    nodes = expert_nodes(executor.graph)
    assert len(executor.options.host_experts.layers) == len(nodes) > 0
    assert {("stack", id(node.attributes["up"])) for node in nodes}.isdisjoint(executor.weights._kept)


def texts(**options: Any) -> list[Any]:
    with fb.LLM(ZOO / "qwen3moe" / "model.gguf", ctx=64, **{**CACHE, **options}) as llm:
        found: list[Any] = [one.tokens for one in llm.generate([*PROMPTS, [9, 9], [1]], **GREEDY)]
        found += [one.tokens for one in llm.generate(PROMPTS[0], max_tokens=4, seed=3, n=2).outputs]
        assert llm.loaded.cache.stats().used == 0
    return found


def test_the_text_is_that_of_the_card_alone() -> None:
    expected = texts()
    assert texts(cpu_experts=1, activations="int16", threads=1) == expected
    assert texts(cpu_experts=2, activations="int16", repack=False) == expected


def test_prompts_and_single_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ZOO / "qwen3moe" / "model.gguf"
    expected = rows(load(open_model(path), device="cpu", exact=True, max_seqs=4))
    assert error(rows(load(open_model(path), cpu_experts=1, **CACHE)), expected) < 0.03


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    monkeypatch.setattr(cuda.CudaDevice, "reserve_bytes", 0)

    def make(nbytes: int) -> None:
        monkeypatch.setattr(type(gpu()), "free_bytes", lambda _: nbytes)

    return make


def test_as_few_as_make_the_rest_fit(card: Callable[[int], None]) -> None:
    file = open_model(ZOO / "qwen3moe" / "model.gguf")
    nodes = expert_nodes(load_model(file).graph)
    own = sum(nodes[0].attributes[name].nbytes for name in ("gate", "up", "down"))
    small = {"device": "cuda", "max_batched_tokens": 32, "max_seqs": 2, "ctx": 32}
    for most in range(file.file_bytes, 100 * file.file_bytes, own // 4):  # the smallest card for all of it
        card(most)
        try:
            load(file, cpu_experts=0, **small)
            break
        except (OutOfMemory, UserWarning):
            continue
    card(most - own // 2)
    with pytest.warns(UserWarning, match="the experts of 1 of 2 layers run on the CPU.* and cpu_experts says how many"):
        loaded = load(file, **small)
    assert len(loaded.executor.options.host_experts.layers) == 1  # type: ignore[attr-defined]
    card(own)
    with pytest.raises(OutOfMemory, match="of GPU memory"):
        load(file, cpu_experts=2, **small)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cpu_experts": 1, "gpu_layers": 1}, "with cpu_experts all layers are on one GPU"),
        ({"cpu_experts": 1, "device": "cuda,cuda"}, "with cpu_experts all layers are on one GPU"),
        ({"cpu_experts": 1, "device": "cuda,cuda", "tensor_parallel": 2}, "with cpu_experts all layers are on one GPU"),
        ({"cpu_experts": 1, "device": "cpu"}, "cpu_experts is for device 'cuda', not for 'cpu'"),
        ({"cpu_experts": -1}, "cpu_experts must be at least 0, got -1"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        load(open_model(ZOO / "qwen3moe" / "model.gguf"), **{**CACHE, **options})


def test_models_without_experts() -> None:
    path: Path = ZOO / "qwen3" / "model.gguf"
    with pytest.raises(RequestError, match=r"cpu_experts=2: model.gguf has no experts; leave it out"):
        load(open_model(path), cpu_experts=2, **CACHE)
    load(open_model(path), cpu_experts=0, **CACHE)
