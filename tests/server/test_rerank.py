"""Rerankers and classifiers behind the endpoints of Cohere, Jina, vLLM and Hugging Face."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from fewbit.llm import LLM

from .conftest import client_of

FOLDER = Path(__file__).parents[1] / "golden/classifiers"
TEXTS = ["bamboo, mostly.", "paris is the capital of france", "cats"]


@pytest.fixture(scope="module")
def ranker() -> Iterator[LLM]:
    with LLM(FOLDER / "bert", batch_invariant=True, threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def judge() -> Iterator[LLM]:
    with LLM(FOLDER / "qwen3-judge", batch_invariant=True, threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def labeller() -> Iterator[LLM]:
    with LLM(FOLDER / "bert-labels", batch_invariant=True, threads=1) as llm:
        yield llm


def post(llm: LLM, path: str, status: int = 200, **settings: Any) -> Any:
    body = {key: value for key, value in settings.items() if key != "limits"}
    found = client_of(llm, **settings.get("limits", {})).post(path, json=body)
    assert found.status_code == status, found.text
    return found.json()


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_rerank(ranker: LLM, path: str) -> None:
    expected = ranker.rank("what do pandas eat", TEXTS)
    documents = [TEXTS[0], {"text": TEXTS[1]}, TEXTS[2]]
    found = post(ranker, path, query="what do pandas eat", documents=documents, top_n=2)
    assert [one["index"] for one in found["results"]] == [one.index for one in expected[:2]]
    for one, two in zip(found["results"], expected[:2], strict=True):
        assert one["relevance_score"] == pytest.approx(two.score, abs=1e-6)
        assert one["document"]["text"] == two.text
    assert found["usage"]["total_tokens"] == sum(len(ranker.encode_pair("what do pandas eat", t)) for t in TEXTS)
    assert found["model"] == ranker.model_name
    short = post(ranker, path, query="a", documents=TEXTS, return_documents=False)
    assert "document" not in short["results"][0]


def test_judges_take_instructions(judge: LLM) -> None:
    found = post(judge, "/v1/rerank", query="food", documents=TEXTS, instruction="find cars")
    expected = judge.rank("food", TEXTS, instruction="find cars")
    assert [one["index"] for one in found["results"]] == [one.index for one in expected]


def test_the_shape_of_hugging_face(ranker: LLM) -> None:
    found = post(ranker, "/rerank", query="a", texts=TEXTS, raw_scores=True, return_text=True)
    expected = ranker.rank("a", TEXTS)
    assert [(one["index"], one["text"]) for one in found] == [(one.index, one.text) for one in expected]
    assert found[0]["score"] == pytest.approx(expected[0].logit, abs=1e-5)


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_score(ranker: LLM, path: str) -> None:
    found = post(ranker, path, text_1="a", text_2=TEXTS)
    scores = {one.index: one.score for one in ranker.rank("a", TEXTS)}
    assert [one["score"] for one in found["data"]] == pytest.approx([scores[i] for i in range(3)], abs=1e-6)
    pairs = post(ranker, path, text_1=["a", "b"], text_2=TEXTS[:2])
    assert pairs["data"][1]["score"] == pytest.approx(ranker.rank("b", TEXTS[1:2])[0].score, abs=1e-6)
    assert "as many as text_2" in post(ranker, path, 400, text_1=["a", "b"], text_2=TEXTS)["error"]["message"]


@pytest.mark.parametrize("path", ["/classify", "/v1/classify"])
def test_classify(labeller: LLM, path: str) -> None:
    found = post(labeller, path, input=TEXTS)
    for text, one in zip(TEXTS, found["data"], strict=True):
        expected = labeller.classify(text)
        assert one["label"] == next(iter(expected))
        assert one["num_classes"] == 3
        assert dict(zip(found["labels"], one["probs"], strict=True)) == pytest.approx(expected, abs=1e-6)


def test_models_that_cannot_and_texts_that_do_not_fit(client: TestClient, ranker: LLM, labeller: LLM) -> None:
    for path, body in (("/v1/rerank", {"query": "a", "documents": ["b"]}), ("/v1/classify", {"input": "a"})):
        found = client.post(path, json=body)
        assert found.status_code == 400
        assert "neither a reranker nor a classifier" in found.json()["error"]["message"]
    assert "no reranker" in post(labeller, "/v1/rerank", 400, query="a", documents=["b"])["error"]["message"]
    long = ["b", "x " * 300]
    refused = post(ranker, "/v1/rerank", 400, query="a", documents=long, truncate=False)
    assert "document 1 has" in refused["error"]["message"]
    assert len(post(ranker, "/v1/rerank", query="a", documents=long)["results"]) == 2
    refused = post(ranker, "/v1/rerank", 400, query="a", documents=long, limits={"max_prompt_tokens": 16})
    assert "at most 16" in refused["error"]["message"]
    assert "at least one text" in post(ranker, "/v1/rerank", 400, query="a", documents=[])["error"]["message"]
