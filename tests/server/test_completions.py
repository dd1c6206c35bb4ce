from __future__ import annotations

import numpy as np
import pytest
from starlette.testclient import TestClient

from fewbit.llm import LLM

from .conftest import GREEDY
from .test_chat import chunks

PATH = "/v1/completions"
TEXT = "The sky is blue"


def test_a_prompt_is_continued(client: TestClient, llm: LLM) -> None:
    found = client.post(PATH, json={"model": "tiny", "prompt": TEXT, **GREEDY}).json()
    assert found["choices"][0]["text"] == llm.generate(TEXT, **GREEDY).text


@pytest.mark.parametrize("as_ids", [False, True])
def test_several_prompts_and_outputs_keep_their_places(client: TestClient, llm: LLM, as_ids: bool) -> None:
    texts = ["one", "two two"]
    prompts = [llm.tokenize(text, add_special=True) for text in texts] if as_ids else texts
    found = client.post(PATH, json={"prompt": prompts, "n": 2, "seed": 7, "max_tokens": 5}).json()["choices"]
    expected = llm.generate(prompts, n=2, seed=7, max_tokens=5)
    assert [one["index"] for one in found] == [0, 1, 2, 3]
    assert [one["text"] for one in found] == [one.text for first in expected for one in first.outputs]


def test_token_ids_alone_are_one_prompt(client: TestClient, llm: LLM) -> None:
    ids = llm.tokenize(TEXT)
    found = client.post(PATH, json={"prompt": ids, **GREEDY}).json()
    assert found["choices"][0]["text"] == llm.generate(ids, **GREEDY).text
    assert found["usage"]["prompt_tokens"] == len(ids)


@pytest.mark.parametrize("most", [0, 1])
def test_echoed_log_probabilities_are_those_of_score(client: TestClient, llm: LLM, most: int) -> None:
    body = {"prompt": TEXT, "echo": True, "logprobs": 1, "max_tokens": most, "temperature": 0}
    choice = client.post(PATH, json=body).json()["choices"][0]
    found, count = choice["logprobs"], len(llm.tokenize(TEXT, add_special=True))
    assert choice["text"].startswith(TEXT)
    assert found["token_logprobs"][0] is None
    assert np.array(found["token_logprobs"][1:count], np.float32).tolist() == llm.score(TEXT).tolist()
    assert {len(found[name]) for name in found} == {count + most}
    assert "".join(found["tokens"]) == choice["text"]
    for offset, token in zip(found["text_offset"], found["tokens"], strict=True):
        assert choice["text"][offset : offset + len(token)] == token


def test_the_likeliest_token_in_each_place_of_the_prompt(client: TestClient, llm: LLM) -> None:
    """As lm-evaluation-harness asks whether a text is what the model would write by itself."""
    written = llm.tokenize(TEXT) + llm.generate(llm.tokenize(TEXT), **GREEDY).tokens
    body = {"prompt": [written], "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    found = client.post(PATH, json=body).json()["choices"][0]["logprobs"]
    for token, top in list(zip(found["tokens"], found["top_logprobs"], strict=True))[len(TEXT) :]:
        assert list(top) == [token]


def test_a_stream_gives_the_same(client: TestClient) -> None:
    body = {"prompt": ["a", "bc"], "n": 2, "seed": 3, "max_tokens": 6, "logprobs": 2, "echo": True}
    whole = client.post(PATH, json=body).json()["choices"]
    for index, choice in enumerate(whole):
        parts = [
            one["choices"][0]
            for one in chunks(client.post(PATH, json={**body, "stream": True}).text)
            if one["choices"][0]["index"] == index
        ]
        assert "".join(part["text"] for part in parts) == choice["text"]
        told = [part["logprobs"] for part in parts if part["logprobs"]]
        for name, values in choice["logprobs"].items():
            assert [one for part in told for one in part[name]] == values
        assert [part["finish_reason"] for part in parts][-1] == choice["finish_reason"]


def test_stop_ends_before_the_string(client: TestClient, llm: LLM) -> None:
    text = llm.generate(TEXT, temperature=0, max_tokens=12).text
    stop = text[4:6]
    found = client.post(PATH, json={"prompt": TEXT, "temperature": 0, "max_tokens": 12, "stop": [stop]}).json()
    assert found["choices"][0]["text"] == text[: text.index(stop)]
    assert found["choices"][0]["finish_reason"] == "stop"


def test_tokens_end_with_the_text_and_usage_counts_all(client: TestClient, llm: LLM) -> None:
    """The tokens of a stop string are paid for, and not shown, in an answer and in a stream."""
    (x,) = llm.tokenize("x")
    whole = llm.generate(TEXT, temperature=0, max_tokens=12, logit_bias={x: 100})
    assert whole.text == "x" * 12
    body = {
        "prompt": TEXT, "temperature": 0, "max_tokens": 12, "logit_bias": {str(x): 100}, "stop": ["xxx"],
        "logprobs": 1, "return_token_ids": True,
    }  # fmt: skip
    found = client.post(PATH, json=body).json()
    choice = found["choices"][0]
    assert (choice["text"], choice["token_ids"], choice["logprobs"]["tokens"]) == ("", [], [])
    assert found["usage"]["completion_tokens"] == 3
    for stop, shown in (("xxx", 0), ("y", 12)):
        asked = {**body, "stop": [stop], "stream": True, "stream_options": {"include_usage": True}}
        parts = chunks(client.post(PATH, json=asked).text)
        choices = [part["choices"][0] for part in parts if part["choices"]]
        assert "".join(one["text"] for one in choices) == "x" * shown
        assert [token for one in choices for token in one["token_ids"]] == [x] * shown
        assert [token for one in choices if one["logprobs"] for token in one["logprobs"]["tokens"]] == ["x"] * shown
        assert parts[-1]["usage"]["completion_tokens"] == max(shown, 3)


def test_logit_bias_forces_a_token(client: TestClient, llm: LLM) -> None:
    (token,) = llm.tokenize("x")
    body = {"prompt": TEXT, "temperature": 0, "max_tokens": 3, "logit_bias": {str(token): 100}}
    assert client.post(PATH, json=body).json()["choices"][0]["text"] == "xxx"


@pytest.mark.parametrize("prompt", [[], "", [[]], ["a", 1], [1, "a"], [1.5], [-1], [None], {"a": 1}, [[1, "a"]]])
def test_prompts_that_are_none(client: TestClient, prompt: object) -> None:
    found = client.post(PATH, json={"prompt": prompt})
    assert found.status_code == 400
    assert "prompt" in found.json()["error"]["message"]


@pytest.mark.parametrize(("field", "value"), [("suffix", "x"), ("best_of", 3)])
def test_what_is_not_supported_is_refused_by_name(client: TestClient, field: str, value: object) -> None:
    found = client.post(PATH, json={"prompt": "a", field: value})
    assert found.status_code == 400
    assert field in found.json()["error"]["message"]


def test_tokenize_and_detokenize(client: TestClient, llm: LLM) -> None:
    found = client.post("/tokenize", json={"prompt": TEXT, "return_token_strs": True}).json()
    assert found["tokens"] == llm.tokenize(TEXT, add_special=True)
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert client.post("/detokenize", json={"tokens": found["tokens"]}).json() == {"prompt": TEXT}
    said = [{"role": "user", "content": "hi"}]
    assert client.post("/tokenize", json={"messages": said}).json()["count"] == llm.count_tokens(said)
    assert client.post("/tokenize", json={}).status_code == 400
    assert client.post("/detokenize", json={"tokens": [10**6]}).status_code == 400
    assert client.get("/tokenizer_info").json()["vocab_size"] == llm.tokenizer.vocab_size
