"""The native plan of a model beside NumPy, which walks the same graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.devices.batch import Row
from fewbit.devices.cpu import CpuExecutor
from fewbit.ops import cpu
from fewbit.ops.cpu.plan import build
from fewbit.ops.passes import select_logits

from ..loading import load
from .random_llama import write_llama

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "k-quants": {"hidden": 256, "feed_forward": 512, "format": "q4_k", "layers": 1},
    "q6_k": {"hidden": 256, "feed_forward": 256, "format": "q6_k", "layers": 1, "heads": 8, "kv_heads": 1},
    "q4_1, tied": {"format": "q4_1", "tied": True, "heads": 2, "kv_heads": 2},
    "f16, biases": {"format": "f16", "biases": True, "hidden": 60, "heads": 3, "kv_heads": 3, "feed_forward": 77},
    "f32, odd sizes": {"format": "f32", "hidden": 30, "heads": 3, "kv_heads": 1, "feed_forward": 41, "vocab": 7},
    "q4_0, heads of their own size": {"format": "q4_0", "dim": 32},
    "bf16, window": {"format": "bf16", "attention__sliding_window": 5},
    "linear rope": {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0},
    "yarn": {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__dimension_count": 12},
}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_llama(tmp_path / "model.gguf", **request.param)


def tokens(count: int, vocab: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab, count).tolist()


def logits(loaded: Any, ids: list[int], *cuts: int) -> np.ndarray:
    """Logits of all tokens, which are given in chunks."""
    sequence = loaded.cache.new()
    ends = [*cuts, len(ids)]
    out = []
    for begin, end in zip([0, *cuts], ends, strict=True):
        out.append(loaded.forward([Row(sequence, ids[begin:end], end - begin)]).copy())
    loaded.cache.free(sequence)
    return np.concatenate(out)


def weights(loaded: Any) -> list[fb.QuantTensor]:
    return [node.attributes["w"] for node in loaded.executor.graph.nodes if node.operation == "linear"]


def near(a: np.ndarray, b: np.ndarray, bar: float = 1e-4) -> bool:
    return bool(np.abs(a - b).max() <= bar * np.abs(b).max())


@pytest.mark.parametrize("threads", [1, 3])
def test_plan_gives_what_numpy_gives(path: Path, threads: int) -> None:
    gguf = fb.read_gguf(path)
    slow, fast = load(gguf, device="numpy", kv="f32"), load(gguf, kv="f32", exact=True, threads=threads)
    ids = tokens(40, slow.executor.vocab)
    expected = logits(slow, ids)
    assert expected.std() > 0.1
    assert near(logits(fast, ids), expected)


def test_every_instruction_set(path: Path) -> None:
    gguf = fb.read_gguf(path)
    ids = tokens(20, 7)
    expected = logits(load(gguf, device="numpy", kv="f32"), ids)
    for isa in cpu.isas():
        with cpu.forced_isa(isa):
            assert near(logits(load(gguf, kv="f32", exact=True), ids), expected), isa


def test_chunks_give_what_the_whole_gives(path: Path) -> None:
    loaded = load(fb.read_gguf(path), kv="f32", exact=True)
    ids = tokens(45, loaded.executor.vocab)
    whole = logits(loaded, ids)
    assert near(logits(loaded, ids, *range(1, 45)), whole)  # token by token
    assert near(logits(loaded, ids, 7, 39), whole)


def test_fast_path_is_near(path: Path) -> None:
    gguf = fb.read_gguf(path)
    ids = tokens(40, 7)
    expected = logits(load(gguf, device="numpy"), ids)
    fast = load(gguf)
    for cuts in ((), tuple(range(1, 40))):
        error = logits(fast, ids, *cuts) - expected
        assert np.sqrt((error**2).mean()) <= 0.03 * np.sqrt((expected**2).mean())


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("format", ["q4_0", "q4_k", "q6_k", "q8_0"])
def test_repacked_weights(tmp_path: Path, format: str, tied: bool) -> None:
    shape = {"hidden": 256, "feed_forward": 512, "vocab": 61, "format": format, "tied": tied}
    gguf = fb.read_gguf(write_llama(tmp_path / "model.gguf", **shape))
    ids = tokens(40, 61)
    plain, repacked = (load(gguf, exact=True, repack=on) for on in (False, True))
    layout = "rows" if cpu.isa() == "scalar" else "interleaved16"
    assert {w.layout for w in weights(repacked) if w.shape[0] % 16 == 0} == {layout}
    assert repacked.executor.graph.nodes[0].attributes["table"].layout == "rows"
    assert np.array_equal(logits(repacked, ids), logits(plain, ids))
    fast, expected = load(gguf, repack=True), logits(plain, ids)
    for cuts in ((), tuple(range(1, 40)), (3, 9, 16)):
        error = logits(fast, ids, *cuts) - expected
        assert np.sqrt((error**2).mean()) <= 0.03 * np.sqrt((expected**2).mean())
    with pytest.raises(fb.FewbitError, match="leave repack out"):
        load(gguf, device="numpy", repack=True)


def test_weights_are_repacked_where_it_gains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = fb.read_gguf(write_llama(tmp_path / "model.gguf", hidden=256, feed_forward=512, vocab=61, format="q4_0"))

    def is_repacked(**options: Any) -> bool:
        return any(w.layout == "interleaved16" for w in weights(load(gguf, **options)))

    gains = cpu.isa() != "scalar"
    assert is_repacked() == gains
    assert is_repacked(exact=True, repack=True) == gains
    assert not is_repacked(repack=False)
    assert not is_repacked(exact=True)
    assert not is_repacked(device="numpy")
    monkeypatch.setattr("fewbit.devices.Device.reserve_bytes", 0)
    monkeypatch.setattr("fewbit.ops.memory.available_memory", lambda: gguf.file_bytes * 5 // 4)
    small = {"ctx": 8, "max_batched_tokens": 1}
    assert not is_repacked(**small)
    assert is_repacked(**small, repack=True) == gains


@pytest.mark.skipif(cpu.isa() == "scalar", reason="plain C++ gains nothing from repacked weights")
def test_repacked_weights_share_memory(tmp_path: Path) -> None:
    gguf = fb.read_gguf(write_llama(tmp_path / "model.gguf", hidden=256, feed_forward=512, vocab=61, format="q4_0"))
    repacked = [w for w in weights(load(gguf, repack=True)) if w.layout == "interleaved16"]
    addresses = sorted(w.stored.ctypes.data for w in repacked)
    assert len(addresses) > 2
    assert addresses[-1] - addresses[0] < gguf.file_bytes
    assert all(address % 64 == 0 for address in addresses)


def test_ragged_batch(path: Path) -> None:
    loaded = load(fb.read_gguf(path), kv="f32", exact=True)
    texts = [tokens(n, loaded.executor.vocab, n) for n in (1, 33, 12, 40)]
    alone = [logits(loaded, ids) for ids in texts]
    begun = [len(ids) // 2 for ids in texts]
    sequences = [loaded.cache.new() for _ in texts]
    chunks = [Row(s, ids[:n], 0) for s, ids, n in zip(sequences, texts, begun, strict=True) if n]
    assert loaded.forward(chunks).shape == (0, loaded.executor.vocab)
    chunks = [Row(s, ids[n:], w) for s, ids, n, w in zip(sequences, texts, begun, (1, 3, 0, 20), strict=True)]
    rows = loaded.forward(chunks)
    expected = np.concatenate([alone[0][-1:], alone[1][-3:], alone[3][-20:]])
    assert near(rows, expected)


def test_same_bits_for_any_number_of_threads(path: Path) -> None:
    gguf = fb.read_gguf(path)
    ids = tokens(70, 7)
    one, *others = (load(gguf, threads=n) for n in (1, 2, 3, 8))
    for cuts in ((), tuple(range(1, 8))):
        expected = logits(one, ids, *cuts)
        for other in others:
            assert np.array_equal(logits(other, ids, *cuts), expected)


def test_fused_and_as_recorded_are_the_same(path: Path) -> None:
    loaded = load(fb.read_gguf(path), kv="f32", exact=True, threads=1)
    assert isinstance(loaded.executor, CpuExecutor)
    ids = tokens(10, loaded.executor.vocab)
    expected = logits(loaded, ids)
    executor = loaded.executor
    executor.plans["logits"] = build(select_logits(executor.graph), executor.store, fuse=False)
    assert near(logits(loaded, ids), expected, 1e-6)


def test_operations_of_a_block(tmp_path: Path) -> None:
    """Two norms, a gate and two sums disappear in products."""
    loaded = load(fb.read_gguf(write_llama(tmp_path / "model.gguf", layers=3)))
    assert isinstance(loaded.executor, CpuExecutor)
    kinds = [kind for kind, _ in _operations(loaded)]
    block = ["linear", "rope", "rope", "attend", "linear", "gated", "linear"]
    last = [*block[:4], "gather", "gather", *block[4:]]
    assert kinds == ["embed", *block, *block, *last, "linear"]


def _operations(loaded: Any) -> list[tuple[str, float]]:
    loaded.executor.plans["logits"].profile(True)
    logits(loaded, [1, 2, 3])
    seconds: list[tuple[str, float]] = loaded.executor.plans["logits"].seconds()
    assert all(s > 0 for _, s in seconds)
    return seconds


def test_wrong_options(tmp_path: Path) -> None:
    gguf = fb.read_gguf(write_llama(tmp_path / "model.gguf"))
    with pytest.raises(fb.FewbitError, match="ctx must be between 1 and 512 tokens, the model's own context, got"):
        load(gguf, ctx=513)
    with pytest.raises(fb.FewbitError, match="there is no device 'tpu'"):
        load(gguf, device="tpu")
    with pytest.raises(fb.FormatError, match="k cannot be q4_k"):
        load(gguf, kv="q4_k")
    with pytest.raises(fb.FewbitError, match="threads must be at least 1, got 0"):
        load(gguf, threads=0)
    with pytest.raises(fb.FewbitError, match="'numpy' has no threads"):
        load(gguf, device="numpy", threads=2)


def test_failed_step_changes_nothing(tmp_path: Path) -> None:
    loaded = load(fb.read_gguf(write_llama(tmp_path / "model.gguf")))
    a, b = loaded.cache.new(), loaded.cache.new()
    loaded.forward([Row(a, [1, 2, 3], 1)])
    with pytest.raises(fb.FewbitError, match="token 61 of 61"):
        loaded.forward([Row(a, [1], 0), Row(b, [61], 1)])
    assert loaded.cache.length(a) == 3
    assert loaded.cache.length(b) == 0
    before = loaded.forward([Row(a, [4], 1)]).copy()
    assert np.array_equal(before, logits(loaded, [1, 2, 3, 4], 3)[-1:])


@pytest.mark.parametrize("kv", ["f16", "f8_e4m3", "q8_0", ("q8_0", "q4_0")])
def test_kv_formats(tmp_path: Path, kv: Any) -> None:
    gguf = fb.read_gguf(write_llama(tmp_path / "model.gguf", hidden=128, heads=2, kv_heads=1))
    ids = tokens(70, 61)
    expected = logits(load(gguf, device="numpy", kv=kv), ids)
    assert near(logits(load(gguf, kv=kv, exact=True), ids), expected, 2e-3)
