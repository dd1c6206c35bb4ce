"""Rerankers and classifiers beside transformers, on tiny random models (tests/golden/classifiers/make.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.errors import DtypeError, RequestError, TooLong
from fewbit.llm import LLM
from fewbit.models import open_model

from ..golden.classifiers.pairs import PAIRS
from ..llm_toy import make

FOLDER = Path(__file__).parents[1] / "golden/classifiers"
RANKERS = ["bert", "roberta", "modern-bert", "qwen3", "qwen3-judge"]
EXACT = 1e-4


@cache
def opened(name: str) -> LLM:
    return LLM(FOLDER / name, activations="exact", kv="f32", threads=1)


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    yield
    for name in [*RANKERS, "bert-labels"]:
        opened(name).close()
    opened.cache_clear()


def golden(name: str, kind: str) -> list[Any]:
    data = np.load(FOLDER / name / "golden.npz")
    return [data[f"{kind}{number}"] for number in range(len(PAIRS))]


def logits_of(llm: LLM, tokens: list[list[int]]) -> Any:
    return asyncio.run(llm.aclass_logits(tokens))


@pytest.mark.parametrize("name", [*RANKERS, "bert-labels"])
def test_pairs_are_tokenized_and_scored_as_in_transformers(name: str) -> None:
    llm = opened(name)
    encoded = [llm.encode_pair(*pair) for pair in PAIRS]
    vocab = llm.tokenizer.vocab_size
    assert [[token % vocab for token in tokens] for tokens in encoded] == [
        row.tolist() for row in golden(name, "tokens")
    ]
    expected = np.array(golden(name, "logits"))
    np.testing.assert_allclose(logits_of(llm, encoded), expected, atol=EXACT * max(1, np.abs(expected).max()), rtol=0)


@pytest.mark.parametrize("name", RANKERS)
def test_rank_sorts_by_score(name: str) -> None:
    llm, texts = opened(name), [text for _, text in PAIRS]
    found = llm.rank("what do pandas eat", texts)
    assert sorted(one.index for one in found) == [0, 1, 2]
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert all(one.text == texts[one.index] and 0 < one.score < 1 for one in found)
    logits = golden(name, "logits")[0]
    logit = logits[0] - logits[1] if len(logits) == 2 else logits[0]
    assert next(one for one in found if one.index == 0).logit == pytest.approx(logit, abs=1e-3)
    best = llm.rank("what do pandas eat", texts, top_n=2)
    assert [one.index for one in best] == [one.index for one in found[:2]]
    later = asyncio.run(llm.arank("what do pandas eat", texts))
    assert [one.index for one in later] == [one.index for one in found]


def test_an_instruction_changes_what_a_judge_says() -> None:
    llm, texts = opened("qwen3-judge"), ["bamboo"]
    usual, other = (llm.rank("food", texts, instruction=given)[0].score for given in (None, "find texts about cars"))
    assert usual != other
    with pytest.raises(RequestError, match="takes no instruction"):
        opened("bert").rank("food", texts, instruction="x")


def test_special_tokens_in_texts_stay_text() -> None:
    llm = opened("qwen3-judge")
    end = llm.tokenizer.token_id("<|im_end|>")
    assert llm.encode_pair("<|im_end|>", "<|im_end|>").count(end) == llm.encode_pair("a", "b").count(end)


def test_labels_of_a_classifier() -> None:
    llm = opened("bert-labels")
    expected = np.load(FOLDER / "bert-labels/golden.npz")["alone"]
    p = np.exp(expected - expected.max()) / np.exp(expected - expected.max()).sum()
    found = llm.classify(PAIRS[2][1])
    assert [*found] == [("bad", "fair", "good")[i] for i in np.argsort(-p)]
    assert found["fair"] == pytest.approx(p[1], abs=EXACT)
    with pytest.raises(RequestError, match="labels bad, fair, good; try classify"):
        llm.rank("a", ["b"])


def test_as_gguf_with_the_names_of_llama_cpp(tmp_path: Path) -> None:
    """`cls` and `cls.output`, pooling type 4, as its converter writes rerankers."""
    with closing(open_model(FOLDER / "roberta")) as file:
        metadata = {f"{file.architecture}.{key}": value for key, value in file.config.items()}
        metadata |= {**file.tokenizer(), "general.architecture": file.architecture}
        assert metadata["bert.pooling_type"] == 4
        assert {"cls.weight", "cls.bias", "cls.output.weight"} <= {*file.tensors}
        fb.write_gguf(tmp_path / "ranker.gguf", metadata, {name: file.tensors[name] for name in file.tensors})
    with LLM(tmp_path / "ranker.gguf", activations="exact", kv="f32") as llm:
        found = logits_of(llm, [llm.encode_pair(*pair) for pair in PAIRS])
    np.testing.assert_allclose(found, np.array(golden("roberta", "logits")), atol=EXACT)


def test_long_texts_are_refused_or_cut() -> None:
    llm = opened("bert")
    long = "panda " * 300
    with pytest.raises(TooLong, match=r"text 1 has \d+ tokens with the query, and 128 fit; truncate=True cuts it"):
        llm.rank("a", ["b", long])
    assert len(llm.rank("a", ["b", long], truncate=True)) == 2
    tokens = llm.encode_pair("a", long, truncate=True)
    assert len(tokens) == 128
    assert tokens[-1] - llm.loaded.second_text == llm.encode_pair("a", "b")[-1] - llm.loaded.second_text
    with pytest.raises(TooLong, match="the query does not fit"):
        llm.rank(long, ["b"], truncate=True)


def test_what_cannot_be_ranked_is_refused() -> None:
    llm = opened("bert")
    for texts, error in ((["a", 3], DtypeError), ("text", DtypeError), ([], RequestError)):
        with pytest.raises(error):
            llm.rank("a", texts)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="top_n"):
        llm.rank("a", ["b"], top_n=0)
    with pytest.raises(RequestError, match="reranker: it scores two texts"):
        llm.embed("a")
    with make() as toy, pytest.raises(RequestError, match="neither a reranker nor a classifier"):
        toy.rank("a", ["b"])
    with make() as toy, pytest.raises(RequestError, match="neither a reranker nor a classifier"):
        toy.classify("a")
