"""Saved logits beside live ones, damaged files, and interrupted writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.errors import FewbitError, FileError, RequestError
from fewbit.evaluation.logprobs import compare, compare_top, log_softmax, top_logprobs
from fewbit.evaluation.saved import pack, read_logits, unpack

from .reference import EXACT, TEXT, models

CTX = 32


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def saved(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logits") / "base.gguf"
    fb.evaluate(pair[0], TEXT, save=path, top=300, ctx=CTX, activations="int16")
    return path


def rows(count: int, vocab: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return log_softmax((4 * rng.standard_normal((count, vocab))).astype(np.float32))


def test_all_tokens_give_the_exact_divergence() -> None:
    base, other, targets = rows(50, 97), rows(50, 97, 1), np.arange(50, dtype=np.int32)
    exact = compare(other, base, targets)
    slow = np.sum(np.exp(base.astype(np.float64)) * (base.astype(np.float64) - other), axis=1)
    np.testing.assert_allclose(exact.divergence, slow, rtol=1e-4, atol=1e-6)
    found = compare_top(other, top_logprobs(base, targets, 97))
    np.testing.assert_allclose(found.divergence, slow, rtol=1e-4, atol=1e-5)
    assert found.agrees.tolist() == exact.agrees.tolist() == (base.argmax(1) == other.argmax(1)).tolist()
    np.testing.assert_array_equal(found.targets, base[np.arange(50), targets])


@pytest.mark.parametrize("count", [1, 5, 40])
def test_fewer_tokens_give_a_lower_bound(count: int) -> None:
    base, other, targets = rows(200, 97), rows(200, 97, 1), np.zeros(200, np.int32)
    exact, found = compare(other, base, targets), compare_top(other, top_logprobs(base, targets, count))
    assert (found.divergence <= exact.divergence + 1e-5).all()
    top = np.argsort(-base, axis=1)[:, :count]
    p, q = (np.exp(np.take_along_axis(x.astype(np.float64), top, axis=1)) for x in (base, other))
    slow = np.sum(p * np.log(p / q), axis=1) + (1 - p.sum(1)) * np.log((1 - p.sum(1)) / (1 - q.sum(1)))
    np.testing.assert_allclose(found.divergence, slow, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("vocab", [97, 70_000])
def test_packing_loses_little(vocab: int) -> None:
    top = top_logprobs(rows(20, vocab), np.arange(20, dtype=np.int32), 64)
    packed = pack(top, vocab)
    assert packed.tokens.dtype == (np.int16 if vocab <= 1 << 16 else np.int32)
    found = unpack(packed)
    assert found.tokens.tolist() == top.tokens.tolist()
    np.testing.assert_allclose(found.logprobs, top.logprobs, atol=24 / 65535)
    np.testing.assert_array_equal(found.rest, top.rest)
    np.testing.assert_array_equal(found.targets, top.targets)


def test_saved_logits_are_those_of_the_live_reference(pair: tuple[Path, Path], saved: Path) -> None:
    base, small = pair
    (live,) = fb.evaluate(small, TEXT, against=base, ctx=CTX, **EXACT)
    (later,) = fb.evaluate(small, logits=saved, **EXACT)
    assert (later.reference, later.tokens) == ("base", live.tokens)
    np.testing.assert_allclose(later.scores.divergence, live.scores.divergence, atol=2e-4)
    assert later.divergence is not None
    assert live.divergence is not None
    assert later.divergence.mean == pytest.approx(live.divergence.mean, abs=2e-5)
    assert later.divergence.top1 == live.divergence.top1
    assert later.divergence.reference_perplexity == pytest.approx(live.divergence.reference_perplexity, rel=1e-5)
    (same,) = fb.evaluate(small, TEXT, logits=saved, ctx=CTX, **EXACT)
    np.testing.assert_array_equal(same.scores.divergence, later.scores.divergence)


def test_top_tokens_take_less(pair: tuple[Path, Path], saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "top.gguf"
    (found,) = fb.evaluate(pair[0], TEXT, save=path, top=8, ctx=CTX, activations="int16")
    assert found.tokens == sum(window.scored for window in read_logits(path).windows)
    assert path.stat().st_size < saved.stat().st_size / 4
    (most,), (fewer,) = (fb.evaluate(pair[1], logits=one, **EXACT) for one in (saved, path))
    assert most.divergence is not None
    assert fewer.divergence is not None
    assert 0 < fewer.divergence.mean < most.divergence.mean


def test_logits_of_another_text_or_model_are_refused(pair: tuple[Path, Path], saved: Path) -> None:
    with pytest.raises(RequestError, match="logits are of another text"):
        fb.evaluate(pair[1], TEXT[::-1], logits=saved, ctx=CTX)
    with pytest.raises(RequestError, match="other windows"):
        fb.evaluate(pair[1], TEXT, logits=saved, ctx=16)
    zoo = Path(__file__).parents[1] / "zoo/llama/model.gguf"
    with pytest.raises(RequestError, match="they cannot be compared"):
        fb.evaluate(zoo, logits=saved)


def rewritten(saved: Path, path: Path, metadata: dict[str, Any] | None = None, **tensors: Any) -> Path:
    with fb.read_gguf(saved) as file:
        kept: dict[str, Any] = {name: file.tensors[name] for name in file.tensors}
        changed = {name.replace("__", "."): value for name, value in tensors.items()}
        named = {name.removeprefix("w"): value for name, value in changed.items()}
        facts = {**file.typed_metadata, **(metadata or {})}
        fb.write_gguf(path, facts, {name: t for name, t in {**kept, **named}.items() if t is not None})
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metadata": {"general.type": "model"}}, "not saved logits"),
        ({"metadata": {"fewbit.logits.version": 2}}, "not saved logits"),
        ({"metadata": {"fewbit.logits.vocab": "x"}}, "metadata of saved logits is damaged"),
        ({"metadata": {"fewbit.logits.skips": "x"}}, "must be a list of whole numbers"),
        ({"metadata": {"fewbit.logits.skips": [40, 17, 17, 17]}}, "shapes that do not fit"),
        ({"w1__codes": None}, "tensor 1.codes is missing"),
        ({"w1__scales": np.zeros((15, 3), np.float32)}, "shapes that do not fit"),
        ({"w1__codes": np.zeros((15, 257), np.float32)}, "formats that do not fit"),
        ({"w1__scales": np.full((15, 4), np.nan, np.float32)}, "window 1 is damaged"),
        ({"w1__tokens": np.full((15, 257), 9999, np.int16)}, "window 1 is damaged"),
    ],
)
def test_damaged_files(
    pair: tuple[Path, Path], saved: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(FileError, match=message):
        fb.evaluate(pair[1], logits=rewritten(saved, tmp_path / "a.gguf", **changes))


def test_cut_files(pair: tuple[Path, Path], saved: Path, tmp_path: Path) -> None:
    data = saved.read_bytes()
    for share in (0.0, 0.01, 0.5, 0.99):
        (tmp_path / "cut.gguf").write_bytes(data[: int(share * len(data))])
        with pytest.raises(FewbitError, match=r"cut\.gguf"):
            read_logits(tmp_path / "cut.gguf")


def test_nothing_is_left_of_an_interrupted_write(pair: tuple[Path, Path], tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fb.evaluate(pair[0], TEXT, save=tmp_path / "a.gguf", ctx=CTX, progress=interrupt)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a.gguf").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        fb.evaluate(pair[0], TEXT, save=tmp_path / "a.gguf", ctx=CTX, progress=interrupt)
    assert (tmp_path / "a.gguf").read_bytes() == b"old"
