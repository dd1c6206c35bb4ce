"""The native plan beside the NumPy backend, which runs the model's own code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.engine.contract import Chunk
from fewbit.engine.runner import CpuRunner, load
from fewbit.errors import FileError, MissingError, ShapeError
from fewbit.ops import cpu
from fewbit.ops.plan import record

from .random_llama import llama, write_llama

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


def logits(runner: Any, ids: list[int], *cuts: int) -> np.ndarray:
    """Logits of all tokens, which are given in pieces."""
    sequence = runner.cache.new()
    ends = [*cuts, len(ids)]
    out = []
    for begin, end in zip([0, *cuts], ends, strict=True):
        out.append(runner.forward([Chunk(sequence, ids[begin:end], end - begin)]).copy())
    runner.cache.free(sequence)
    return np.concatenate(out)


def near(a: np.ndarray, b: np.ndarray, bar: float = 1e-4) -> bool:
    return bool(np.abs(a - b).max() <= bar * np.abs(b).max())


@pytest.mark.parametrize("threads", [1, 3])
def test_plan_does_what_the_model_says(path: Path, threads: int) -> None:
    gguf = fb.read_gguf(path)
    slow, fast = load(gguf, device="numpy", kv="f32"), load(gguf, kv="f32", exact=True, threads=threads)
    ids = tokens(40, slow.vocab)
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


def test_pieces_give_what_the_whole_gives(path: Path) -> None:
    runner = load(fb.read_gguf(path), kv="f32", exact=True)
    ids = tokens(45, runner.vocab)
    whole = logits(runner, ids)
    assert near(logits(runner, ids, *range(1, 45)), whole)  # token by token
    assert near(logits(runner, ids, 7, 39), whole)


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
    assert repacked.model.blk[0].ffn_up.weight.abreast == (cpu.isa() != "scalar")
    assert not repacked.model.token_embd.abreast
    assert np.array_equal(logits(repacked, ids), logits(plain, ids))
    fast, expected = load(gguf, repack=True), logits(plain, ids)
    for cuts in ((), tuple(range(1, 40)), (3, 9, 16)):
        error = logits(fast, ids, *cuts) - expected
        assert np.sqrt((error**2).mean()) <= 0.03 * np.sqrt((expected**2).mean())
    with pytest.raises(fb.FewbitError, match="leave repack out"):
        load(gguf, device="numpy", repack=True)


def test_weights_are_repacked_where_it_gains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = fb.read_gguf(write_llama(tmp_path / "model.gguf", hidden=256, feed_forward=512, vocab=61, format="q4_0"))

    def is_laid(**options: Any) -> bool:
        return bool(load(gguf, **options).model.blk[0].ffn_up.weight.abreast)

    gains = cpu.isa() != "scalar"
    assert is_laid() == gains
    assert is_laid(exact=True, repack=True) == gains
    assert not is_laid(repack=False)
    assert not is_laid(exact=True)
    assert not is_laid(device="numpy")
    monkeypatch.setattr("fewbit.engine.runner.machine_memory", lambda: gguf.file_bytes)
    assert not is_laid(ctx=8)
    assert is_laid(ctx=8, repack=True) == gains


@pytest.mark.skipif(cpu.isa() == "scalar", reason="plain C++ gains nothing from repacked weights")
def test_repacked_weights_share_memory(tmp_path: Path) -> None:
    gguf = fb.read_gguf(write_llama(tmp_path / "model.gguf", hidden=256, feed_forward=512, vocab=61, format="q4_0"))
    block = load(gguf, repack=True).model.blk[0]
    places = sorted(w.weight.stored.ctypes.data for w in (block.ffn_up, block.ffn_gate, block.ffn_down))
    assert places[2] - places[0] < gguf.file_bytes
    assert all(place % 64 == 0 for place in places)


def test_ragged_batch(path: Path) -> None:
    runner = load(fb.read_gguf(path), kv="f32", exact=True)
    texts = [tokens(n, runner.vocab, n) for n in (1, 33, 12, 40)]
    alone = [logits(runner, ids) for ids in texts]
    begun = [len(ids) // 2 for ids in texts]
    sequences = [runner.cache.new() for _ in texts]
    chunks = [Chunk(s, ids[:n], 0) for s, ids, n in zip(sequences, texts, begun, strict=True) if n]
    assert runner.forward(chunks).shape == (0, runner.vocab)
    chunks = [Chunk(s, ids[n:], w) for s, ids, n, w in zip(sequences, texts, begun, (1, 3, 0, 20), strict=True)]
    rows = runner.forward(chunks)
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


def test_as_written_and_put_together_are_the_same(path: Path) -> None:
    runner = load(fb.read_gguf(path), kv="f32", exact=True, threads=1)
    assert isinstance(runner, CpuRunner)
    ids = tokens(10, runner.vocab)
    expected = logits(runner, ids)
    runner.plan = record(runner.model.forward, runner.cache, fuse=False)
    assert near(logits(runner, ids), expected, 1e-6)


def test_put_together() -> None:
    """What is expected of a block: two norms, a gate and two sums disappear in products."""
    gguf = _opened(*llama(layers=3))
    runner = load(gguf)
    assert isinstance(runner, CpuRunner)
    kinds = [kind for kind, _ in _operations(runner)]
    block = ["linear", "rope", "rope", "attend", "linear", "gated", "linear"]
    last = [*block[:4], "gather", "gather", *block[4:]]
    assert kinds == ["embed", *block, *block, *last, "linear"]


def _operations(runner: CpuRunner) -> list[tuple[str, float]]:
    runner.plan.profile(True)
    logits(runner, [1, 2, 3])
    seconds: list[tuple[str, float]] = runner.plan.seconds()
    assert all(s > 0 for _, s in seconds)
    return seconds


def _opened(metadata: dict[str, Any], tensors: dict[str, Any]) -> Any:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        fb.write_gguf(f"{folder}/model.gguf", metadata, tensors)
        return fb.read_gguf(f"{folder}/model.gguf")


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = {
    "architecture": ({"general.architecture": "mamba9"}, {}, FileError, "architecture 'mamba9' is not known; .*llama"),
    "no architecture": ({"general.architecture": 3}, {}, FileError, "must be a name, it is 3"),
    "part": ({"general.architecture": "checkpoint"}, {}, FileError, "'checkpoint' is not known"),
    "no sizes": ({"llama.block_count": None}, {}, MissingError, "llama.block_count is missing"),
    "no layers": ({"llama.block_count": 0}, {}, FileError, "llama.block_count must be a whole number from 1"),
    "many layers": ({"llama.block_count": 3}, {}, MissingError, "tensor blk.2.attn_norm.weight is missing"),
    "few layers": ({"llama.block_count": 1}, {}, FileError, "do not have: blk.1.attn_norm.weight.* and 6 more"),
    "word": ({"llama.embedding_length": "64"}, {}, FileError, "must be a whole number .*, it is '64'"),
    "negative": ({"llama.embedding_length": -64}, {}, FileError, "must be a whole number"),
    "huge": ({"llama.embedding_length": 1 << 40}, {}, FileError, "must be a whole number"),
    "shape": ({"llama.embedding_length": 128}, {}, ShapeError, "token_embd.weight must be 61 x 128, it is 61 x 64"),
    "heads": ({"llama.attention.head_count_kv": 3}, {}, FileError, "4 heads cannot share 3 heads"),
    "uneven": ({"llama.attention.head_count": 5, "llama.attention.head_count_kv": 5}, {}, FileError, "evenly"),
    "layers differ": (
        {"llama.attention.head_count_kv": np.array([2, 1], np.int32)}, {}, FileError, "the same number for all layers",
    ),
    "eps": ({"llama.attention.layer_norm_rms_epsilon": -1.0}, {}, FileError, "a number of at least 0"),
    "nan": ({"llama.rope.freq_base": float("nan")}, {}, FileError, "rope.freq_base must be a number"),
    "rope": ({"llama.rope.dimension_count": 17}, {}, FileError, "must be even and at most 16, it is 17"),
    "scaling": ({"llama.rope.scaling.type": "longrope"}, {}, FileError, "'longrope' is not supported"),
    "experts": ({"llama.expert_count": 8}, {}, FileError, "mixtures of experts"),
    "missing": ({}, {"output_norm.weight": None}, MissingError, "tensor output_norm.weight is missing"),
    "extra": ({}, {"blk.0.attn_q_norm.weight": np.ones(16, np.float32)}, FileError, "do not have: blk.0.attn_q_norm"),
    "matrix": ({}, {"output_norm.weight": np.ones((2, 32), np.float32)}, ShapeError, "must hold 64 values"),
    "vector": ({}, {"output.weight": np.ones(64, np.float32)}, ShapeError, "must be 61 x 64, it is 64"),
    "freqs": ({}, {"rope_freqs.weight": np.zeros(8, np.float32)}, FileError, "must hold positive numbers"),
}  # fmt: skip


@pytest.mark.parametrize(("metadata", "tensors", "kind", "text"), WRONG.values(), ids=WRONG.keys())
def test_wrong_files(metadata: dict[str, Any], tensors: dict[str, Any], kind: type[Exception], text: str) -> None:
    known, weights = llama()
    for target, changes in ((known, metadata), (weights, tensors)):
        for name, value in changes.items():
            if value is None:
                del target[name]
            else:
                target[name] = value
    with pytest.raises(kind, match=text):
        load(_opened(known, weights))


def test_wrong_options(tmp_path: Path) -> None:
    gguf = fb.read_gguf(write_llama(tmp_path / "model.gguf"))
    with pytest.raises(fb.FewbitError, match="ctx is a number of tokens from 1 to 512"):
        load(gguf, ctx=513)
    with pytest.raises(fb.FewbitError, match="there is no device 'tpu'"):
        load(gguf, device="tpu")
    with pytest.raises(fb.FormatError, match="k cannot be q4_k"):
        load(gguf, kv="q4_k")
    with pytest.raises(fb.FewbitError, match="threads must be from 1"):
        load(gguf, threads=0)
    with pytest.raises(fb.FewbitError, match="'numpy' has no threads"):
        load(gguf, device="numpy", threads=2)


def test_result_of_a_plan_is_alone_in_its_place() -> None:
    plan = cpu.Plan()
    result = plan.buffer(8, True, 0)
    other = cpu.Plan()
    shared = other.buffer(8, True, 0)
    other.buffer(4, True, 0)
    plan.set_result(result)
    with pytest.raises(ValueError, match="takes no more buffers"):
        plan.buffer(8, True, 0)
    with pytest.raises(ValueError, match="slot of another buffer"):
        other.set_result(shared)
    with pytest.raises(ValueError, match="slot of a buffer"):
        cpu.Plan().buffer(8, False, 1)


def test_failed_step_changes_nothing(tmp_path: Path) -> None:
    runner = load(fb.read_gguf(write_llama(tmp_path / "model.gguf")))
    a, b = runner.cache.new(), runner.cache.new()
    runner.forward([Chunk(a, [1, 2, 3], 1)])
    with pytest.raises(fb.FewbitError, match="token 61 of 61"):
        runner.forward([Chunk(a, [1], 0), Chunk(b, [61], 1)])
    assert runner.cache.length(a) == 3
    assert runner.cache.length(b) == 0
    before = runner.forward([Chunk(a, [4], 1)]).copy()
    assert np.array_equal(before, logits(runner, [1, 2, 3, 4], 3)[-1:])


@pytest.mark.parametrize("kv", ["f16", "q8_0", ("q8_0", "q4_0")])
def test_kv_formats(tmp_path: Path, kv: Any) -> None:
    gguf = fb.read_gguf(write_llama(tmp_path / "model.gguf", hidden=128, heads=2, kv_heads=1))
    ids = tokens(70, 61)
    expected = logits(load(gguf, device="numpy", kv=kv), ids)
    assert near(logits(load(gguf, kv=kv, exact=True), ids), expected, 2e-3)
