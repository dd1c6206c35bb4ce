"""The default model beside llama.cpp, on the first 1,024 tokens of a text. `fewbit pull smollm2` fetches the model.

`smollm2-exact.json` has the truth: llama.cpp with weights decoded to F16 and activations that are not quantized.
`smollm2.json` has what llama.cpp makes of the file as it is, with 8-bit activations.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fewbit as fb
from fewbit.devices.batch import Row
from fewbit.files.hub import find

from ..loading import load

GOLDEN = Path(__file__).parents[1] / "golden" / "logits"
Doubles = npt.NDArray[np.float64]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def gguf() -> Any:
    try:
        return fb.read_gguf(find("smollm2", offline=True))
    except fb.FewbitError as error:
        pytest.skip(f"the default model is not here: {error}")


def expected(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def log_probabilities(loaded: Any, tokens: list[int], at_once: int) -> Doubles:
    """Of every token of the vocabulary, after each token."""
    sequence = loaded.cache.new()
    rows = []
    for start in range(0, len(tokens), at_once):
        chunk = tokens[start : start + at_once]
        logits = loaded.forward([Row(sequence, chunk, len(chunk))]).astype(np.float64)
        top = logits.max(axis=1, keepdims=True)
        rows.append(logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True)))
    loaded.cache.free(sequence)
    return np.concatenate(rows)


def divergence(truth: Any, next_logprobs: Doubles, likeliest: list[int], of_top: Doubles) -> dict[str, float]:
    """How far from the truth: all tokens but the 16 likeliest count as one."""
    theirs = np.array(truth["top_logprobs"])
    rest, other = (1 - np.exp(x).sum(axis=1) for x in (theirs, of_top))
    kl = (np.exp(theirs) * (theirs - of_top)).sum(axis=1) + rest * np.log(rest / other)
    wanted = np.array(truth["next_logprob"])[: len(next_logprobs)]
    return {
        "mean": float(np.abs(next_logprobs - wanted).mean()),
        "kl": float(kl.mean()),
        "top": float(np.mean([a == b[0] for a, b in zip(likeliest, truth["top_ids"], strict=True)])),
        "perplexity": float(np.exp(wanted.mean() - next_logprobs.mean())),
    }


def measure(gguf: Any, at_once: int, activations: str) -> dict[str, float]:
    truth = expected("smollm2-exact")
    found = log_probabilities(load(gguf, activations=activations), truth["tokens"], at_once)
    after = found[np.arange(len(found) - 1), truth["tokens"][1:]]
    of_top = np.take_along_axis(found, np.array(truth["top_ids"]), axis=1)
    return divergence(truth, after, found.argmax(axis=1).tolist(), of_top)


def llama_cpp() -> dict[str, float]:
    """The same of llama.cpp; a token that is not among its 16 likeliest is left to the rest."""
    truth, other = expected("smollm2-exact"), expected("smollm2")
    likely = [dict(zip(ids, of, strict=True)) for ids, of in zip(other["top_ids"], other["top_logprobs"], strict=True)]
    kl = []
    for ids, logprobs, found in zip(truth["top_ids"], truth["top_logprobs"], likely, strict=True):
        both = [(p, found[i]) for i, p in zip(ids, logprobs, strict=True) if i in found]
        rest = [1 - sum(np.exp(pair[side]) for pair in both) for side in (0, 1)]
        kl.append(sum(np.exp(p) * (p - q) for p, q in both) + rest[0] * np.log(rest[0] / rest[1]))
    return {
        "mean": float(np.abs(np.array(truth["next_logprob"]) - other["next_logprob"]).mean()),
        "kl": float(np.mean(kl)),
        "top": float(np.mean([a[0] == b[0] for a, b in zip(other["top_ids"], truth["top_ids"], strict=True)])),
    }


def test_tokens(gguf: Any) -> None:
    assert fb.Tokenizer.from_gguf(gguf.path).decode(expected("smollm2")["tokens"])
    assert expected("smollm2")["tokens"] == expected("smollm2-exact")["tokens"]


@pytest.mark.exhaustive
def test_exact_is_the_truth(gguf: Any) -> None:
    found = measure(gguf, 512, "exact")
    assert found["mean"] <= 0.005
    assert found["top"] >= 0.995
    assert abs(found["perplexity"] - 1) <= 0.001


@pytest.mark.exhaustive
@pytest.mark.parametrize("at_once", [512, 1], ids=["prompt", "token by token"])
def test_fast_is_no_worse_than_llama_cpp(gguf: Any, at_once: int) -> None:
    found, theirs = measure(gguf, at_once, "int8"), llama_cpp()
    assert found["mean"] <= min(theirs["mean"], 0.058)
    assert found["kl"] <= theirs["kl"]
    assert found["top"] >= theirs["top"]


@pytest.mark.parametrize("at_once", [48, 1], ids=["prompt", "token by token"])
def test_16_bits_are_nearly_the_truth(gguf: Any, at_once: int, isa: str) -> None:
    if isa == "amx" and at_once > 1:
        pytest.skip("prompts are in bf16 there")
    truth = expected("smollm2-exact")
    tokens = truth["tokens"][: 4 if isa == "scalar" else 48]
    after = np.arange(len(tokens) - 1)
    found = log_probabilities(load(gguf, activations="int16"), tokens, at_once)[after, tokens[1:]]
    assert np.abs(found - np.array(truth["next_logprob"])[after]).mean() <= 0.003


def greedy(loaded: Any, prompt: list[int], count: int) -> list[int]:
    sequence = loaded.cache.new()
    chunk, out = prompt, []
    while len(out) < count:
        out.append(int(loaded.forward([Row(sequence, chunk, 1)])[0].argmax()))
        chunk = out[-1:]
    return out


@pytest.mark.parametrize("count", [3, pytest.param(48, marks=pytest.mark.exhaustive)])
def test_exact_continues_like_numpy(gguf: Any, count: int) -> None:
    prompt = fb.Tokenizer.from_gguf(gguf.path).encode("Once upon a time")
    assert greedy(load(gguf, exact=True), prompt, count) == greedy(load(gguf, device="numpy"), prompt, count)
