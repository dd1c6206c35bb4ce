"""Adapters of an LLM: loaded, named, mixed and unloaded, while requests run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.errors import DtypeError, RequestError
from fewbit.models import open_model

from ..llm_toy import TOKENS, byte_tokenizer
from ..loading import load
from ..models.random_llama import llama, write_llama

ZOO = Path(__file__).parents[1] / "zoo"
MODEL, ADAPTER = ZOO / "llama" / "model.gguf", ZOO / "llama" / "adapter"
PROMPT = [5 + i % 50 for i in range(40)]
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 8}


def write_adapter(path: Path, seed: int, size: float = 0.3, rank: int = 4) -> Path:
    """A random adapter of all matrices of a random llama, as a GGUF file."""
    random = np.random.default_rng(seed)
    _, tensors = llama(vocab=len(TOKENS))
    terms: dict[str, Any] = {}
    for name, w in tensors.items():
        if len(w.shape) < 2:
            continue
        n, k = w.shape
        is_table = name == "token_embd.weight"
        a = random.standard_normal((n, rank) if is_table else (rank, k), np.float32) / np.float32(np.sqrt(k))
        b = size * random.standard_normal((k if is_table else n, rank), np.float32)
        terms |= {f"{name}.lora_a": a, f"{name}.lora_b": b.astype(np.float32)}
    metadata = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"}
    fb.write_gguf(path, {**metadata, "adapter.lora.alpha": 8.0}, terms)
    return path


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [write_adapter(folder / f"{i}.gguf", i) for i in range(3)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("base") / "model.gguf", format="f32", vocab=len(TOKENS))


def merged(base: Path, adapter: Path, out: Path) -> Path:
    return fb.merge_adapter(base, adapter, out, "f32").path


def toy(path: Path, **options: Any) -> fb.LLM:
    """A model with a token for each byte."""
    return fb.LLM.from_parts(load(open_model(path), **options), byte_tokenizer())


def test_an_adapter_by_name() -> None:
    with fb.LLM(MODEL, ctx=64, adapters={"a": ADAPTER}) as llm:
        assert llm.adapters == {"a": str(ADAPTER)}
        plain, adapted = llm.generate(PROMPT, **GREEDY), llm.generate(PROMPT, adapter="a", **GREEDY)
        assert plain.tokens != adapted.tokens
        assert llm.generate(PROMPT, **GREEDY).tokens == plain.tokens
        assert [*llm.stream(PROMPT, adapter={"a": 1.0}, **GREEDY)][-1] is not None
        with pytest.raises(RequestError, match="there is no adapter 'b'; there are: a"):
            llm.generate(PROMPT, adapter="b")
        llm.unload_adapter("a")
        assert llm.adapters == {}
        with pytest.raises(RequestError, match="there is no adapter 'a'; there are: none"):
            llm.generate(PROMPT, adapter="a")
        with pytest.raises(RequestError, match="there is no adapter 'a'"):
            llm.unload_adapter("a")
        llm.load_adapter("a", ADAPTER / "adapter_model.safetensors")
        assert llm.generate(PROMPT, adapter="a", **GREEDY).tokens == adapted.tokens


def test_options_are_checked() -> None:
    with pytest.raises(DtypeError, match="adapters must be a dict"):
        fb.LLM(MODEL, adapters=["a"])  # type: ignore[arg-type]
    with pytest.raises(fb.PathError, match="no such file or folder"):
        fb.LLM(MODEL, adapters={"a": "/nothing/here"})
    with fb.LLM(MODEL, ctx=64) as llm:
        with pytest.raises(RequestError, match="an adapter's name has letters"):
            llm.load_adapter("a b", ADAPTER)
        llm.load_adapter("a", ADAPTER)
        with pytest.raises(RequestError, match="there is an adapter 'a' already"):
            llm.load_adapter("a", ADAPTER)


def test_scores_and_embeddings_take_adapters_too() -> None:
    with fb.LLM(MODEL, ctx=64, exact=True, kv="f32", adapters={"a": ADAPTER}) as llm:
        assert not np.allclose(llm.score(PROMPT), llm.score(PROMPT, adapter="a"))
        assert not np.allclose(llm.embed([PROMPT]), llm.embed([PROMPT], adapter="a"))
        half = llm.score(PROMPT, adapter={"a": 0.5})
        assert not np.allclose(half, llm.score(PROMPT, adapter="a"))
        labels = llm.classify("one", ["two", "six"]), llm.classify("one", ["two", "six"], adapter="a")
        assert labels[0] != labels[1]
        (pair, other) = llm.token_logprobs([PROMPT, PROMPT], adapter="a")
        assert [one.logprob for one in pair] == pytest.approx([one.logprob for one in other], abs=1e-5)


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_an_adapter_is_what_merged_weights_are(base: Path, adapters: list[Path], tmp_path: Path, device: str) -> None:
    options: dict[str, Any] = {"device": device, "kv": "f32", "ctx": 64}
    options |= {"exact": True} if device == "cpu" else {}
    whole = merged(base, adapters[0], tmp_path / "merged.gguf")
    with toy(base, **options) as llm, toy(whole, **options) as other, toy(base, **options) as plain:
        llm.load_adapter("a", adapters[0])
        got, expected = llm.score(PROMPT, adapter="a"), other.score(PROMPT)
        assert np.abs(got - expected).max() < 1e-5 * np.abs(expected).max()
        assert np.abs(got - plain.score(PROMPT)).max() > 0.1


def test_rows_of_one_batch(base: Path, adapters: list[Path]) -> None:
    """Requests with one adapter, with another, with both and with none, together as alone."""
    mixes: list[Any] = [None, "0", "1", {"0": 0.7, "1": 0.3}, None, "1", {"2": 1, "0": -0.5, "1": 0.25}, "0"]
    with toy(base, exact=True, kv="f32", ctx=64, batch_invariant=True) as llm:
        for i, path in enumerate(adapters):
            llm.load_adapter(str(i), path)
        alone = [llm.generate([3, i, 7, 9], adapter=mix, **GREEDY).tokens for i, mix in enumerate(mixes)]
        with ThreadPoolExecutor(8) as threads:
            for _ in range(3):
                found = threads.map(
                    lambda pair: llm.generate([3, pair[0], 7, 9], adapter=pair[1], **GREEDY).tokens, enumerate(mixes)
                )
                assert [*found] == alone
        assert len({tuple(tokens) for tokens in alone}) > 4


def test_pages_are_not_shared_between_adapters(base: Path, adapters: list[Path]) -> None:
    with toy(base, ctx=128) as llm:
        llm.load_adapter("a", adapters[0])
        llm.load_adapter("b", adapters[1])
        prompt = [*range(1, 41)] * 2
        for adapter, is_cached in ((None, False), ("a", False), ("b", False), ("a", True), (None, True)):
            assert bool(llm.generate(prompt, adapter=adapter, **GREEDY).cached_tokens) == is_cached
        llm.unload_adapter("a")
        llm.load_adapter("a", adapters[1])  # the values of b
        assert llm.generate(prompt, adapter="a", **GREEDY).cached_tokens
        llm.unload_adapter("a")
        llm.load_adapter("a", adapters[2])
        assert not llm.generate(prompt, adapter="a", **GREEDY).cached_tokens


def test_adapters_come_and_go_while_requests_run(base: Path, adapters: list[Path]) -> None:
    """16 requests with and without an adapter give the same while others are loaded and unloaded."""
    with toy(base, ctx=128, batch_invariant=True) as llm:
        llm.load_adapter("kept", adapters[0])
        names = [None, "kept"] * 8
        options = {**GREEDY, "max_tokens": 40}
        expected = [llm.generate([7, i], adapter=name, **options).tokens for i, name in enumerate(names)]
        over, errors = Event(), list[Exception]()

        def change() -> None:
            try:
                while not over.is_set():
                    llm.load_adapter("other", adapters[1])
                    llm.generate([3, 4], adapter={"other": 1, "kept": 0.5}, **GREEDY)
                    llm.unload_adapter("other")
            except Exception as error:
                errors.append(error)

        with ThreadPoolExecutor(17) as threads:
            changing = threads.submit(change)
            for _ in range(2):
                found = threads.map(
                    lambda pair: llm.generate([7, pair[0]], adapter=pair[1], **options).tokens, enumerate(names)
                )
                assert [*found] == expected
            over.set()
            changing.result()
        assert not errors


@pytest.mark.parametrize("replace", [False, True])
def test_a_request_ends_with_the_adapter_that_it_began_with(base: Path, adapters: list[Path], replace: bool) -> None:
    with toy(base, ctx=512) as llm:
        llm.load_adapter("a", adapters[0])
        expected = llm.generate([7, 8, 9], adapter="a", max_tokens=200, temperature=0.0).tokens
        stream = llm.stream([7, 8, 9], adapter="a", max_tokens=200, temperature=0.0)
        next(iter(stream))
        if replace:
            llm.load_adapter("a", adapters[1], replace=True)
        else:
            llm.unload_adapter("a")
            llm.load_adapter("a", adapters[1])
        for _ in stream:
            pass
        assert stream.completion.tokens == expected


def test_an_adapter_is_replaced(base: Path, adapters: list[Path]) -> None:
    """Requests from then on use the other one; None stands for the model alone."""
    with toy(base, ctx=128) as llm:
        for name, path in zip("ab", adapters, strict=False):
            llm.load_adapter(name, path)
        first, second, plain = (llm.generate([5, 6, 7], adapter=name, **GREEDY).tokens for name in ("a", "b", None))
        assert first != second
        with pytest.raises(fb.FewbitError):
            llm.load_adapter("a", base, replace=True)
        assert llm.generate([5, 6, 7], adapter="a", **GREEDY).tokens == first
        llm.load_adapter("a", adapters[1], replace=True)
        assert llm.generate([5, 6, 7], adapter="a", **GREEDY).tokens == second
        llm.load_adapter("a", None, replace=True)
        assert llm.adapters["a"] == ""
        assert llm.generate([5, 6, 7], adapter={"a": 1.0}, **GREEDY).tokens == plain


def test_two_models_with_two_adapters(base: Path, adapters: list[Path]) -> None:
    with toy(base, ctx=64) as one, toy(base, ctx=64) as two:
        one.load_adapter("a", adapters[0])
        two.load_adapter("a", adapters[1])
        first, second = (llm.generate(PROMPT, adapter="a", **GREEDY).tokens for llm in (one, two))
        assert first != second
        two.load_adapter("b", adapters[0])
        assert two.generate(PROMPT, adapter="b", **GREEDY).tokens == first
