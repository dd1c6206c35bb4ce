"""Every layer shared by several ranks: the same results as in one, wherever a model can be divided."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.devices.splitting import find_devices
from fewbit.devices.tensor_parallel import RankedStore, TensorParallelExecutor
from fewbit.errors import DataError, OutOfMemory, RequestError
from fewbit.load_options import LoadOptions
from fewbit.loading import Loaded
from fewbit.models import open_model

from ..llm.test_adapters import toy, write_adapter
from ..llm_toy import TOKENS
from ..loading import load
from ..models.random_llama import write_llama
from .test_stages import PROMPTS, rows

ZOO = Path(__file__).parents[1] / "zoo"
ENCODERS = {"bert", "gemma-embedding", "modern-bert", "nomic-bert"}
TOO_SMALL = {"gpt-oss"}  # experts of one block
NAMES = sorted(path.parent.name for path in ZOO.glob("*/model.gguf"))
SMALL: dict[str, Any] = {"max_batched_tokens": 64, "max_seqs": 4, "cache_bytes": 1 << 22, "threads": 1}
EXACT: dict[str, Any] = {**SMALL, "activations": "exact", "kv": "f32"}
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 12}


def ranked(name: str, ranks: int | None, **options: Any) -> Loaded:
    loaded = load(open_model(ZOO / name / "model.gguf"), tensor_parallel=ranks, **options)
    assert isinstance(loaded.executor, TensorParallelExecutor) == (ranks is not None)
    return loaded


@pytest.mark.parametrize("name", [name for name in NAMES if name not in TOO_SMALL])
def test_logits_are_those_of_one(name: str) -> None:
    """With windows, experts, latents, recurrent layers, norms of all heads, tied embeddings, all tokens seen."""
    output = "hidden" if name in ENCODERS else "logits"
    one, two = (rows(ranked(name, ranks, **EXACT), output) for ranks in (None, 2))
    assert np.abs(two - one).max() <= 1e-4 * np.abs(one).max()


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that four can share, with sizes that are no multiples of four."""
    path = tmp_path_factory.mktemp("wide") / "model.gguf"
    return write_llama(path, heads=10, kv_heads=5, dim=32, feed_forward=224, vocab=len(TOKENS), layers=3)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_parts_of_different_sizes(wide: Path, ranks: int, device: str) -> None:
    options = EXACT if device == "cpu" else {"max_seqs": 4, "kv": "f32"}
    one, several = (load(open_model(wide), device=device, tensor_parallel=n, **options) for n in (None, ranks))
    expected = rows(one, "logits")
    assert np.abs(rows(several, "logits") - expected).max() <= 1e-4 * np.abs(expected).max()
    assert isinstance(several.cache.store, RankedStore)
    heads = [store.layout.attention(0).kv_heads for store in several.cache.store.stores]
    assert sum(heads) == 5
    assert several.cache.store.nbytes == one.cache.store.nbytes


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_text_is_that_of_one(wide: Path, ranks: int) -> None:
    """With chains of samplers, constraints, scores, several outputs and forks: all that reads logits."""
    prompts, texts = [[i + 3, *PROMPTS[0][: 7 * i]] for i in range(5)], []
    for count in (None, ranks):
        with toy(wide, ctx=64, tensor_parallel=count, **EXACT) as llm:
            found = [one.tokens for one in llm.generate(prompts, **GREEDY)]
            found += [one.tokens for one in llm.generate(prompts[4], max_tokens=5, seed=3, n=3).outputs]
            found += [llm.generate(prompts[1], max_tokens=6, mirostat=2, seed=1).tokens]
            texts.append((found, llm.score(prompts[3]).tolist()))
            assert llm.loaded.cache.stats().used == 0
    assert texts[0][0] == texts[1][0]
    np.testing.assert_allclose(texts[0][1], texts[1][1], atol=1e-3)


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3moe", "deepseek2", "lfm2"])
def test_greedy_text_of_packed_activations(name: str) -> None:
    """As models run by default: int8 activations, f16 pages, interleaved weights."""
    texts = []
    for ranks in (None, 2):
        with fb.LLM(ZOO / name / "model.gguf", ctx=64, tensor_parallel=ranks, **SMALL) as llm:
            texts.append([one.tokens for one in llm.generate(PROMPTS, **GREEDY)])
    assert texts[0] == texts[1]


def test_a_seed_gives_the_same_text_in_any_batch(wide: Path) -> None:
    """Sums are added in the order of ranks: the same bits again and again, beside any others."""
    options = {**SMALL, "ctx": 64, "batch_invariant": True, "tensor_parallel": 3}
    with toy(wide, **options) as llm, toy(wide, **options) as other:
        alone = [llm.generate(prompt, max_tokens=8, seed=4).tokens for prompt in PROMPTS]
        with ThreadPoolExecutor(8) as pool:  # in one batch, and two models at the same time
            pairs = [(one, prompt) for _ in range(2) for one in (llm, other) for prompt in PROMPTS]
            calls = [pool.submit(one.generate, prompt, max_tokens=8, seed=4) for one, prompt in pairs]
            assert [call.result().tokens for call in calls] == alone * 4


def test_pages_are_saved_and_read_back(tmp_path: Path) -> None:
    """A file has the heads of all ranks, in the order in which one has them."""
    path, options = ZOO / "llama" / "model.gguf", {**EXACT, "ctx": 64}
    with fb.LLM(path, tensor_parallel=2, **options) as two, fb.LLM(path, **options) as one:
        expected = one.generate(PROMPTS[0], **GREEDY).tokens
        assert two.generate(PROMPTS[0], **GREEDY).tokens == expected
        two.loaded.cache.save(two.loaded.cache.new(PROMPTS[0]), tmp_path / "pages")
    for ranks in (None, 2):
        with fb.LLM(path, tensor_parallel=ranks, **options) as llm:
            assert llm.loaded.cache.length(llm.loaded.cache.load(tmp_path / "pages")) == 32
            assert llm.generate(PROMPTS[0], **GREEDY).tokens == expected
            assert llm.loaded.cache.stats().hits


@pytest.mark.parametrize("name", ["qwen2", "lfm2"])
def test_what_all_ranks_keep_is_written_to_all(name: str, tmp_path: Path) -> None:
    """A single head of K and V, and the states of recurrent layers."""
    options = {**EXACT, "ctx": 64, "tensor_parallel": 2}
    with fb.LLM(ZOO / name / "model.gguf", **options) as llm:
        expected = llm.generate(PROMPTS[0], **GREEDY).tokens
        llm.loaded.cache.save(llm.loaded.cache.new(PROMPTS[0]), tmp_path / "pages")
    with fb.LLM(ZOO / name / "model.gguf", **options) as llm:
        llm.loaded.cache.load(tmp_path / "pages")
        assert llm.generate(PROMPTS[0], **GREEDY).tokens == expected


def test_adapters(tmp_path: Path) -> None:
    """Of all matrices and the table; a request without one runs beside."""
    base = write_llama(tmp_path / "model.gguf", format="f32", vocab=len(TOKENS))
    adapter = write_adapter(tmp_path / "adapter.gguf", 1)
    texts = []
    for ranks in (None, 2):
        with toy(base, ctx=64, tensor_parallel=ranks, **EXACT) as llm:
            plain = llm.generate(PROMPTS[0], **GREEDY).tokens
            llm.load_adapter("own", adapter)
            texts.append([plain, llm.generate(PROMPTS[0], adapter="own", **GREEDY).tokens])
            assert llm.generate(PROMPTS[0], **GREEDY).tokens == plain
    assert texts[0] == texts[1]
    assert texts[0][0] != texts[0][1]


@pytest.mark.parametrize("number", [0, 1])
def test_a_rank_that_fails_ends_its_step_alone(wide: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with toy(wide, ctx=64, tensor_parallel=2, **EXACT) as llm:
        expected = [one.tokens for one in llm.generate(PROMPTS, **GREEDY)]
        failing = llm.loaded.executor.executors[number]  # type: ignore[attr-defined]
        launch, calls = type(failing).launch, []

        def fail(self: Any, *args: Any) -> Any:
            if self is failing:
                calls.append(self)
                if len(calls) == 3:
                    raise DataError("a rank has failed by itself")
            return launch(self, *args)

        monkeypatch.setattr(type(failing), "launch", fail)
        with pytest.raises(DataError, match="a rank has failed by itself"):
            llm.generate(PROMPTS, **GREEDY)
        assert [one.tokens for one in llm.generate(PROMPTS, **GREEDY)] == expected


def test_a_draft_model_runs_on_one() -> None:
    path = ZOO / "llama" / "model.gguf"
    options: dict[str, Any] = {**SMALL, "ctx": 64, "batch_invariant": True, "tensor_parallel": 2}
    with fb.LLM(path, draft=path, **options) as drafted, fb.LLM(path, **options) as plain:
        assert drafted.generate(PROMPTS[0], **GREEDY).tokens == plain.generate(PROMPTS[0], **GREEDY).tokens


def test_memory_is_shared(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewbit.devices.cpu.host_memory", lambda *_: 100 << 20)
    with pytest.raises(OutOfMemory, match=r"model.gguf needs .* of memory, and 52 MB is available"):
        load(open_model(wide), tensor_parallel=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_parallel": 4}, r"into 2 parts at most \(2 heads of K and V\)"),
        ({"tensor_parallel": 0}, "tensor_parallel must be at least 1, got 0"),
        ({"tensor_parallel": 2, "stages": 2}, "leave gpu_layers and stages out"),
        ({"tensor_parallel": 2, "gpu_layers": 1}, "leave gpu_layers and stages out"),
        ({"tensor_parallel": 2, "device": "cpu,cpu,cpu"}, "tensor_parallel=2 needs 2 devices, named as in"),
        ({"tensor_parallel": 2, "device": "cpu,numpy"}, "must be of one kind, not cpu and numpy"),
        ({"tensor_parallel": 2, "device": "cuda:1"}, "tensor_parallel=2 needs 2 devices, named as in"),
        ({"tensor_parallel": 2, "device": "abacus"}, "there is no device 'abacus'"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        load(open_model(ZOO / "llama" / "model.gguf"), **options)


def test_experts_of_one_block_are_refused() -> None:
    with pytest.raises(RequestError, match=r"a layer of experts of 32 columns cannot be divided \(mxfp4 is cut"):
        ranked("gpt-oss", 2, **EXACT)


def test_one_rank_is_no_rank() -> None:
    loaded = load(open_model(ZOO / "llama" / "model.gguf"), tensor_parallel=1)
    assert not isinstance(loaded.executor, TensorParallelExecutor)
    assert [place for place, _ in find_devices(LoadOptions(device="cpu", tensor_parallel=3))] == ["cpu"] * 3
    assert [place for place, _ in find_devices(LoadOptions(device="cpu, cpu", tensor_parallel=2))] == ["cpu"] * 2
