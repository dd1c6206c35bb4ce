"""Programs as JSON, run by a runtime that knows nothing but the JSON; and all of their shaders through Dawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewbit.devices.batch import Row
from fewbit.devices.forward import make_batch
from fewbit.loading import Loaded
from fewbit.models import open_model
from fewbit.ops.webgpu.export import export
from fewbit.ops.webgpu.sampling import sample

from ..loading import load
from .cases import error
from .plan_runner import PlanRunner
from .test_shaders import refused

pytestmark = pytest.mark.webgpu
ZOO = Path(__file__).parents[1] / "zoo"
NAMES = ("llama", "gemma3", "qwen3", "gpt-oss", "granitehybrid", "qwen35", "deepseek2", "starcoder2")


def exported(name: str, kv: str = "f16") -> tuple[Loaded, dict[str, Any]]:
    file = open_model(ZOO / name / "model.gguf")
    loaded = load(file, device="webgpu", kv=kv, max_batched_tokens=32, cache_bytes=1 << 20, max_seqs=2)
    executor: Any = loaded.executor
    programs = {key: executor.builder("logits").program(*sizes) for key, sizes in (("one", (1, 1)), ("many", (0, 1)))}
    found = export(programs, executor.weights, executor._step, executor.layout, file.tensors)
    return loaded, json.loads(json.dumps(found))


def test_a_runtime_that_knows_only_the_plan() -> None:
    loaded, plan = exported("llama")
    executor: Any = loaded.executor
    tokens = np.load(ZOO / "llama/golden.npz")["tokens"].tolist()[:9]
    sequence = loaded.cache.new()
    batch = make_batch(loaded.cache, [Row(sequence, tokens, 1)])
    counts = {"tokens": 9, "logits": 1, "sequences": 1, "samples": 0}
    numbers = executor.layout.pack(batch.tokens, batch.view, batch.logits_indices, counts)
    loaded.cache.rollback(batch.view)
    expected = loaded.forward([Row(loaded.cache.new(), tokens, 1)])[0]
    runner = PlanRunner(plan, open_model(ZOO / "llama/model.gguf").tensors)
    assert error(runner.run("many", numbers, counts), expected) <= 1e-6


@pytest.mark.exhaustive
def test_every_shader_of_models_compiles_elsewhere(tmp_path: Path) -> None:
    shaders = {"sample": sample().portable_source}
    for name in NAMES:
        shaders |= {f"{k['name']} {digest}": k["wgsl"] for digest, k in exported(name)[1]["kernels"].items()}
    assert len(shaders) > 40
    assert refused(shaders, tmp_path) == {}


def test_dispatches_and_bytes_of_a_token() -> None:
    """What a token costs follows from the program: kernels for each layer, and every weight read once."""
    loaded, _ = exported("llama")
    executor: Any = loaded.executor
    program, _ = executor.program("logits", 1, 1)
    file = open_model(ZOO / "llama/model.gguf")
    weights = [w for name, w in file.tensors.items() if len(w.shape) == 2 and "embd" not in name]
    labels = [one.label for one in program.dispatches]
    assert labels.count("attend") == file.config["block_count"]
    assert len(labels) <= 9 * file.config["block_count"] + 5
    assert program.weight_bytes >= sum(w.nbytes for w in weights)
