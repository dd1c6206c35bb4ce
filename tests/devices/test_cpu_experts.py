"""Experts that stay on the CPU: what computes them, and how many do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewbit.devices.cpu_experts import expert_nodes, make_experts, place_experts
from fewbit.devices.fitting import MemoryPlan
from fewbit.errors import RequestError
from fewbit.load_options import LoadOptions
from fewbit.models import LoadedModel, load_model, open_model
from fewbit.ops import numpy as reference

from .test_splitting import plan

ZOO = Path(__file__).parents[1] / "zoo"
EXACT = LoadOptions(activations="exact", threads=1, cpu_experts=9)


def opened(name: str) -> LoadedModel:
    return load_model(open_model(ZOO / name / "model.gguf"))


@pytest.mark.parametrize("name", ["qwen3moe", "gpt-oss", "deepseek2", "granitehybrid", "gemma4-moe", "glm4moe"])
@pytest.mark.parametrize("rows", [1, 7])
def test_rows_are_those_of_numpy(name: str, rows: int) -> None:
    graph = opened(name).graph
    made, random = make_experts(graph, EXACT), np.random.default_rng(rows)
    assert len(made) == len(expert_nodes(graph)) > 0
    for node in expert_nodes(graph):
        x, scores = (random.standard_normal((rows, value.width), np.float32) for value in node.inputs)
        step: Any = reference.NumpyStep(None, None, None, None, [])  # type: ignore[arg-type]
        expected = reference.experts(step, x, scores, **node.attributes)
        found = np.full_like(expected, np.nan)
        made[id(node.attributes["up"])](np.concatenate([x, scores], axis=1), found)
        assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def test_the_first_layers_stay() -> None:
    graph = opened("qwen3moe").graph
    first, second = (id(node.attributes["up"]) for node in expert_nodes(graph))
    assert [*make_experts(graph, replace(EXACT, cpu_experts=1))] == [first]
    assert [*make_experts(graph, EXACT)] == [first, second]
    assert make_experts(graph, replace(EXACT, cpu_experts=None)) == {}


def placed(model: LoadedModel, memory: int, **options: Any) -> MemoryPlan:
    return place_experts(plan(model, memory), model.graph, LoadOptions(**options), 64)


def test_as_few_as_make_the_rest_fit() -> None:
    model = opened("qwen3moe")
    whole, every = plan(model, 0), placed(model, 0, cpu_experts=9)
    own = (whole.file_bytes - every.file_bytes) // 2  # both layers have experts of one size
    enough = whole.file_bytes + whole.cache_bytes(64)
    assert (every.cpu_experts, every.kv_layout, every.layers) == (2, whole.kv_layout, whole.layers)
    assert placed(model, enough).cpu_experts == 0
    assert placed(model, 0, cpu_experts=0).cpu_experts == 0
    for count, memory in ((1, enough - 1), (1, enough - own), (2, enough - own - 1), (2, enough - 2 * own)):
        with pytest.warns(UserWarning, match=f"the experts of {count} of 2 layers run on the CPU"):
            assert placed(model, memory).cpu_experts == count
    assert placed(model, enough - 2 * own - 1).cpu_experts == 0  # layers are divided instead
    assert placed(model, 0, gpu_layers=1).cpu_experts == 0


def test_models_without_experts() -> None:
    with pytest.raises(RequestError, match=r"cpu_experts=1: model.gguf has no experts; leave it out"):
        placed(opened("llama"), 0, cpu_experts=1)
