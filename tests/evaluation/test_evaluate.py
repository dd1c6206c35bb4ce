"""Perplexity and divergence beside slow references."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.errors import DataError, DtypeError, FormatError, PathError, RequestError
from fewbit.evaluation.windows import cut_windows

from .reference import EXACT, TEXT, divergences, logprobs, models, of_windows

CTX = 32


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return models(tmp_path_factory.mktemp("models"))


def tokens_of(path: Path) -> list[int]:
    return fb.Tokenizer.from_gguf(path).encode(TEXT, add_special=True)


def cut(path: Path, size: int = CTX) -> list[list[int]]:
    tokens = tokens_of(path)
    return [tokens[start : start + size] for start in range(0, len(tokens) - size + 1, size)]


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_perplexity_is_that_of_the_second_halves(pair: tuple[Path, Path], device: str) -> None:
    base, _ = pair
    (found,) = fb.evaluate(base, TEXT, ctx=CTX, device=device, **EXACT)
    windows, skip = cut(base), CTX // 2 + 1
    expected = of_windows(logprobs(base, windows), windows, skip)
    assert found.tokens == len(expected) == len(windows) * (CTX - skip)
    np.testing.assert_allclose(found.scores.logprobs, expected, atol=1e-4)
    assert found.perplexity == pytest.approx(math.exp(-expected.mean()), rel=1e-5)
    error = found.perplexity * expected.std(ddof=1) / math.sqrt(len(expected))
    assert found.perplexity_error == pytest.approx(error, rel=1e-3)
    assert found.divergence is None
    assert found.scores.depths.tolist() == [*range(skip, CTX)] * len(windows)
    assert found.scores.positions.tolist() == [CTX * w + d for w in range(len(windows)) for d in range(skip, CTX)]


def test_divergence_from_a_reference(pair: tuple[Path, Path]) -> None:
    base, small = pair
    (found,) = fb.evaluate(small, TEXT, against=base, ctx=CTX, device="numpy")
    windows, skip = cut(base), CTX // 2 + 1
    first, second = logprobs(base, windows), logprobs(small, windows)
    expected = divergences(first, second, skip)
    np.testing.assert_allclose(found.scores.divergence, expected, atol=1e-5)
    d = found.divergence
    assert d is not None
    assert (d.mean, d.max) == (pytest.approx(expected.mean(), rel=1e-3), pytest.approx(expected.max(), rel=1e-3))
    for got, percent in ((d.median, 50), (d.p90, 90), (d.p99, 99), (d.p999, 99.9)):
        assert got == pytest.approx(np.percentile(expected, percent), rel=1e-3)
    own, other = of_windows(second, windows, skip), of_windows(first, windows, skip)
    assert d.rms_delta_p == pytest.approx(np.sqrt(np.mean((np.exp(own) - np.exp(other)) ** 2)), rel=1e-3)
    assert d.reference_perplexity == pytest.approx(np.exp(-other.mean()), rel=1e-4)
    same = [p.argmax(axis=1) == q.argmax(axis=1) for p, q in zip(first, second, strict=True)]
    assert d.top1 == pytest.approx(np.concatenate([one[skip - 1 : -1] for one in same]).mean())


def test_a_model_does_not_differ_from_itself(pair: tuple[Path, Path]) -> None:
    (found,) = fb.evaluate(pair[0], TEXT, against=pair[0], ctx=CTX, device="numpy")
    assert found.divergence is not None
    assert found.divergence.mean < 1e-6
    assert found.divergence.top1 == 1
    assert found.divergence.rms_delta_p < 1e-6


def test_strides_score_the_last_tokens_of_each_window(pair: tuple[Path, Path]) -> None:
    base, _ = pair
    (found,) = fb.evaluate(base, TEXT, ctx=CTX, stride=10, device="numpy")
    tokens = tokens_of(base)
    windows = [tokens[start : start + CTX] for start in range(0, len(tokens) - CTX + 1, 10)]
    expected = of_windows(logprobs(base, windows), windows, CTX - 10)
    np.testing.assert_allclose(found.scores.logprobs, expected, atol=1e-4)
    last = CTX + 10 * (len(windows) - 1)
    assert found.scores.positions.tolist() == [*range(CTX - 10, last)]  # each token once, and none left out


def test_a_short_text_is_one_window(pair: tuple[Path, Path]) -> None:
    (found,) = fb.evaluate(pair[0], TEXT[:20], skip=1, **EXACT)
    assert found.tokens == 19
    with fb.LLM(pair[0], **EXACT) as llm:
        np.testing.assert_allclose(found.scores.logprobs, llm.score(TEXT[:20]), atol=1e-5)


@pytest.mark.parametrize("ctx", [8, 64, 100])
def test_windows_that_share_steps_give_the_same(pair: tuple[Path, Path], ctx: int) -> None:
    """Short windows run beside each other, long ones in several steps."""
    (found,) = fb.evaluate(pair[0], TEXT * 8, ctx=ctx, skip=1, **EXACT)
    windows = cut_windows(fb.Tokenizer.from_gguf(pair[0]).encode(TEXT * 8), ctx)
    with fb.LLM(pair[0], **EXACT) as llm:
        expected = np.concatenate([llm.score(window.tokens) for window in windows])
    np.testing.assert_allclose(found.scores.logprobs, expected, atol=2e-4)


def test_several_choices_are_one_run(pair: tuple[Path, Path]) -> None:
    base, _ = pair
    done: list[tuple[int, int]] = []
    options: dict[str, Any] = {"ctx": CTX, "against": base, "progress": lambda *args: done.append(args)}
    found = fb.evaluate(base, TEXT, kv=["f32", "q4_0"], activations=["exact", "int8"], **options)
    assert [(one.kv, one.activations) for one in found] == [
        ("f32", "exact"), ("f32", "int8"), ("q4_0", "exact"), ("q4_0", "int8"),
    ]  # fmt: skip
    assert done == [(n + 1, 4) for n in range(4)]
    losses = [one.divergence.mean for one in found if one.divergence]
    assert losses[0] < losses[2]
    assert len({one.perplexity for one in found}) > 1
    (alone,) = fb.evaluate(base, TEXT, kv="q4_0", activations="exact", ctx=CTX, against=base)
    np.testing.assert_allclose(alone.scores.logprobs, found[2].scores.logprobs, atol=1e-5)


def test_formats_of_weights(pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWBIT_CACHE", str(tmp_path))
    base, small = pair
    plain, packed = fb.evaluate(base, TEXT, format=[None, "q4_0"], against=base, ctx=CTX, **EXACT)  # type: ignore[list-item]
    (written,) = fb.evaluate(small, TEXT, against=base, ctx=CTX, **EXACT)
    assert (plain.format, packed.format) == (None, "q4_0")
    assert packed.file_bytes < plain.file_bytes
    assert packed.divergence is not None
    assert written.divergence is not None
    assert packed.divergence.mean == pytest.approx(written.divergence.mean, rel=1e-3)


def test_parts_by_depth_and_position(pair: tuple[Path, Path]) -> None:
    (found,) = fb.evaluate(pair[1], TEXT, against=pair[0], ctx=140, skip=1, device="numpy")
    depths = found.by_depth()
    assert list(depths) == [(0, 64), (64, 128), (128, 256)]
    assert [len(part.logprobs) for part in depths.values()] == [63, 64, 12]
    parts = found.by_position(4)
    assert [part.positions.tolist() for part in parts] == [p.tolist() for p in np.array_split(np.arange(1, 140), 4)]
    facts = found.to_dict()
    assert [part["tokens"] for part in facts["by_depth"]] == [63, 64, 12]
    weighted = sum(part["tokens"] * part["divergence"] for part in facts["by_depth"]) / found.tokens
    assert weighted == pytest.approx(facts["divergence"]["mean"])


def test_text_from_a_file_and_token_ids(pair: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(TEXT)
    found = [fb.evaluate(pair[0], text, ctx=CTX, **EXACT)[0].perplexity for text in (TEXT, path, tokens_of(pair[0]))]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": "a"}, "has 1 tokens: at least two"),
        ({"text": None}, "no text"),
        ({"ctx": 1}, "ctx must be at least 2"),
        ({"stride": 64}, "stride must be at most ctx=32"),
        ({"skip": 32}, "skip must be less than the 32 tokens"),
        ({"text": [1, 9999]}, "tokens that base does not"),
        ({"kv": []}, "a list of choices is empty"),
        ({"save": "x", "kv": ["f16", "q8_0"]}, "logits are saved for one way to run the model, not for 2"),
        ({"against": "x", "logits": "y"}, "give against or logits, not both"),
        ({"ctx": 1 << 20, "text": [1] * (1 << 17)}, "ctx must be between"),
    ],
)
def test_what_cannot_be_evaluated(pair: tuple[Path, Path], options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        fb.evaluate(pair[0], **{"text": TEXT, "ctx": CTX, **options})


def test_other_mistakes(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(DtypeError, match="text must be"):
        fb.evaluate(pair[0], 3)  # type: ignore[arg-type]
    with pytest.raises(FormatError):
        fb.evaluate(pair[0], TEXT, kv=["f16", "nothing"])
    with pytest.raises(PathError, match="No such file"):
        fb.evaluate(pair[0], tmp_path / "none.txt")
    (tmp_path / "bad.txt").write_bytes(b"a\xff")
    with pytest.raises(DataError, match="not UTF-8 text"):
        fb.evaluate(pair[0], tmp_path / "bad.txt")
    encoder = Path(__file__).parents[1] / "zoo/bert/model.gguf"
    with pytest.raises(RequestError, match="encoder"):
        fb.evaluate(encoder, [1, 2, 3])


def test_a_reference_with_other_tokens_is_refused(pair: tuple[Path, Path]) -> None:
    other = Path(__file__).parents[1] / "zoo/llama/model.gguf"
    with pytest.raises(RequestError, match="they cannot be compared"):
        fb.evaluate(pair[0], TEXT, against=other)
