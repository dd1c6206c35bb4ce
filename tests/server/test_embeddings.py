from __future__ import annotations

from base64 import b64decode
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from fewbit.llm import LLM
from fewbit.llm.pooling import quantize_embeddings

URL = "/v1/embeddings"


def rows(answer: Any) -> Any:
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert [one["index"] for one in data] == list(range(len(data)))
    return np.array([one["embedding"] for one in data], np.float32)


@pytest.mark.parametrize("given", ["hello", ["hello", "you there"], [5, 6, 7], [[5, 6], [7]]])
def test_vectors_are_those_of_the_model(client: TestClient, llm: LLM, given: Any) -> None:
    expected = np.atleast_2d(llm.embed(given))
    answer = client.post(URL, json={"model": "tiny", "input": given})
    np.testing.assert_allclose(rows(answer), expected, rtol=1e-5)
    several = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    used = sum(len(llm.encode_prompt(one)) for one in several)
    assert answer.json()["usage"] == {"prompt_tokens": used, "total_tokens": used}


def test_base64_is_float32(client: TestClient, llm: LLM) -> None:
    body = {"model": "tiny", "input": "hello", "encoding_format": "base64", "dimensions": llm.embed("hello").size}
    found = client.post(URL, json=body).json()["data"][0]["embedding"]
    np.testing.assert_allclose(np.frombuffer(b64decode(found), "<f4"), llm.embed("hello"), rtol=1e-5)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"dimensions": 4096}, "dimensions must be at most"),
        ({"input": []}, "input"),
        ({"input": ["a", 5]}, "input is a text"),
        ({"input": ""}, "no tokens"),
        ({"input": "x" * 5000}, "maximum context length is 1024 tokens"),
        ({"input": [1] * 2000}, "your messages resulted in 2000 tokens"),
        ({"input": [10**9]}, "token"),
        ({"encoding_format": "int8"}, "encoding_format"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(client: TestClient, more: dict[str, Any], said: str) -> None:
    answer = client.post(URL, json={"model": "tiny", "input": "hello", **more})
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


def test_ollama_embeds(client: TestClient, llm: LLM) -> None:
    found = client.post("/api/embed", json={"model": "tiny:latest", "input": ["a", "b"], "keep_alive": "5m"}).json()
    np.testing.assert_allclose(found["embeddings"], llm.embed(["a", "b"]), rtol=1e-5)
    assert found["prompt_eval_count"] == 2
    assert found["total_duration"] > 0
    old = client.post("/api/embeddings", json={"model": "tiny", "prompt": "a"}).json()
    np.testing.assert_allclose(old["embedding"], llm.embed("a"), rtol=1e-5)
    assert client.post("/api/embed", json={"model": "tiny", "input": []}).json()["embeddings"] == []


def test_ollama_cuts_long_texts_unless_told_not_to(client: TestClient, llm: LLM) -> None:
    body = {"model": "tiny", "input": "x" * 5000}
    found = client.post("/api/embed", json=body).json()
    np.testing.assert_allclose(found["embeddings"][0], llm.embed("x" * 1024), rtol=1e-5)
    refused = client.post("/api/embed", json={**body, "truncate": False})
    assert refused.status_code == 400
    assert "too long" in refused.json()["error"]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "binary", "ubinary"])
def test_vectors_in_few_bits(client: TestClient, llm: LLM, dtype: str) -> None:
    expected = quantize_embeddings(llm.embed(["hello"]), dtype)[0]
    body = {"input": "hello", "output_dtype": dtype}
    found = client.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]
    assert found == expected.tolist()
    packed = client.post("/v1/embeddings", json={**body, "encoding_format": "base64"}).json()["data"][0]["embedding"]
    assert b64decode(packed) == expected.tobytes()


def test_instructions_come_before_texts(client: TestClient, llm: LLM) -> None:
    found = client.post("/v1/embeddings", json={"input": "hello", "instruction": "find: "}).json()
    assert found["data"][0]["embedding"] == pytest.approx(llm.embed("find: hello").tolist(), abs=1e-6)
    for body, what in (
        ({"input": "a", "prompt_name": "query"}, "no prompt 'query'"),
        ({"input": [5, 6], "instruction": "x"}, "not before token ids"),
    ):
        found = client.post("/v1/embeddings", json=body)
        assert found.status_code == 400
        assert what in found.json()["error"]["message"]
