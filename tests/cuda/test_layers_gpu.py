"""Some layers on a GPU, the others on the CPU: the same results as with all of them there, and what fits on a card."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.devices import cuda
from fewbit.devices.batch import Row
from fewbit.devices.hybrid import HybridExecutor
from fewbit.errors import OutOfMemory, RequestError
from fewbit.loading import Loaded
from fewbit.models import open_model
from fewbit.ops.cuda import gpu

from ..loading import load
from ..models.random_llama import write_llama

pytestmark = pytest.mark.cuda
ZOO = Path(__file__).parents[1] / "zoo"
SMALL: dict[str, Any] = {"device": "cuda", "max_batched_tokens": 64, "max_seqs": 4}
CACHE: dict[str, Any] = {**SMALL, "cache_bytes": 1 << 20}
LAYERS = 3
FOR_TWO = 320_000  # bytes: two layers and 128 tokens take 314,516, all of them 354,336
PROMPTS = [[5 + i % 50 for i in range(40)], [7, 8, 9]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layers")
    return write_llama(folder / "model.gguf", layers=LAYERS, format="q4_0")


def rows(loaded: Loaded, output: str = "logits") -> Floats:
    """Of two sequences of different lengths, the longer one in chunks, and of a fork."""
    first, second = loaded.cache.new(), loaded.cache.new()
    got = [loaded.forward([Row(first, PROMPTS[0][:33], 33)], output).copy()]
    third = loaded.cache.fork(first)
    parts = [Row(first, PROMPTS[0][33:36], 3), Row(second, PROMPTS[1], 3), Row(third, [3, 4], 2)]
    got.append(loaded.forward(parts, output).copy())
    parts = [Row(first, PROMPTS[0][36:37], 1), Row(second, [11], 1)]
    got.append(loaded.forward(parts, output).copy())
    return np.concatenate(got)


def error(got: Floats, expected: Floats) -> float:
    return float(np.sqrt(np.square(got - expected).mean() / np.square(expected).mean()))


@pytest.mark.parametrize(("layers", "output"), [(1, "logits"), (2, "hidden"), (99, "logits")])
def test_results_are_those_of_the_cpu(path: Path, layers: int, output: str) -> None:
    expected = rows(load(open_model(path), device="cpu", exact=True, max_seqs=4), output)
    loaded = load(open_model(path), gpu_layers=layers, **CACHE)
    assert isinstance(loaded.executor, HybridExecutor) == (layers < LAYERS)
    assert error(rows(loaded, output), expected) < 0.03


def test_text_forks_and_prefix_hits() -> None:
    path = ZOO / "qwen2" / "model.gguf"
    with fb.LLM(path, exact=True, ctx=64) as llm:
        expected = llm.generate(PROMPTS, max_tokens=4, temperature=0.0)
    with fb.LLM(path, gpu_layers=1, ctx=64, **CACHE) as llm:
        got = llm.generate(PROMPTS, max_tokens=4, temperature=0.0)
        assert [one.tokens for one in got] == [one.tokens for one in expected]
        before = llm.loaded.cache.stats().hits
        several = llm.generate(PROMPTS[0], max_tokens=4, temperature=0.0, n=2).outputs
        assert llm.loaded.cache.stats().hits > before
        assert [one.tokens for one in several] == [expected[0].tokens] * 2


@pytest.mark.parametrize("name", ["gpt-oss", "qwen3moe", "gemma3", "bert", "lfm2", "qwen35", "granitehybrid"])
def test_other_architectures(name: str) -> None:
    """With windows, experts, without logits, and with recurrent layers; lfm2's last one keeps no K and V."""
    data = np.load(ZOO / name / "golden.npz")
    tokens = data["tokens"].tolist()
    output = "logits" if "logits" in data else "hidden"
    loaded = load(open_model(ZOO / name / "model.gguf"), gpu_layers=1, **CACHE)
    got = loaded.forward([Row(loaded.cache.new(), tokens, len(tokens))], output)
    assert error(got, data["logits" if output == "logits" else "states"]) < 0.06


def test_no_layer_on_the_gpu_is_the_cpu(path: Path) -> None:
    expected = rows(load(open_model(path), max_seqs=4))
    np.testing.assert_array_equal(rows(load(open_model(path), device="cuda", gpu_layers=0, max_seqs=4)), expected)


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_other_devices_have_no_such_layers(path: Path, device: str) -> None:
    with pytest.raises(RequestError, match=f"gpu_layers is for devices 'cuda' and 'webgpu', not for '{device}'"):
        load(open_model(path), device=device, gpu_layers=1)


@pytest.mark.parametrize("layers", [-1, 1.5])
def test_layers_are_counted(path: Path, layers: Any) -> None:
    with pytest.raises(fb.FewbitError, match="gpu_layers"):
        load(open_model(path), device="cuda", gpu_layers=layers)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A card with so many bytes of memory, of which the system takes none."""
    monkeypatch.setattr(cuda.CudaDevice, "reserve_bytes", 0)

    def make(nbytes: int) -> None:
        monkeypatch.setattr(type(gpu()), "free_bytes", lambda _: nbytes)

    return make


def test_as_many_layers_as_fit(path: Path, card: Callable[[int], None]) -> None:
    card(FOR_TWO)
    with pytest.warns(UserWarning, match=f"the GPU's memory is short: 2 of {LAYERS} layers run there"):
        loaded = load(open_model(path), ctx=128, **SMALL)
    assert isinstance(loaded.executor, HybridExecutor)
    assert loaded.forward([Row(loaded.cache.new(), [1, 2, 3], 1)]).shape == (1, 61)


def test_the_cache_is_sized_by_the_share_of_the_card(path: Path, card: Callable[[int], None]) -> None:
    card(3 << 20)
    whole = load(open_model(path), ctx=512, **SMALL).cache.store
    part = load(open_model(path), ctx=512, gpu_layers=1, **SMALL).cache.store
    assert part.pages[0] > whole.pages[0]
    assert part.device.nbytes <= 3 << 18  # a quarter
    assert part.host.nbytes == 2 * part.device.nbytes


def test_what_does_not_fit_says_what_would(path: Path, card: Callable[[int], None]) -> None:
    card(100_000)
    with pytest.raises(OutOfMemory, match=r"one layer of model.gguf needs .* of GPU memory.* or device=\"cpu\"$"):
        load(open_model(path), ctx=128, **SMALL)
    card(FOR_TWO)
    with pytest.raises(OutOfMemory, match=r"try .*gpu_layers=2$"):
        load(open_model(path), ctx=128, gpu_layers=LAYERS, **SMALL)
    with pytest.raises(OutOfMemory, match=r"try cache_bytes=\d+") as caught:
        load(open_model(path), gpu_layers=1, cache_bytes=1 << 30, **SMALL)
    (size,) = re.findall(r"cache_bytes=(\d+)", str(caught.value))
    assert load(open_model(path), gpu_layers=1, cache_bytes=int(size), **SMALL).cache.store.nbytes == int(size)
