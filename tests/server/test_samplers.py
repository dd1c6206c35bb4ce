"""Samplers by the names of llama.cpp, vLLM and Ollama."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from fewbit.llm import LLM

PROMPT = "Once upon a time"
WARM: dict[str, Any] = {"temperature": 1.5, "top_k": 0, "min_p": 0, "top_p": 1, "seed": 7, "max_tokens": 12}
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"typical_p": 0.5}, {"typical_p": 0.5}),
    ({"top_n_sigma": 1.0}, {"top_n_sigma": 1.0}),
    ({"mirostat_mode": 2, "mirostat_tau": 2}, {"mirostat": 2, "mirostat_tau": 2}),
    ({"xtc_probability": 1, "xtc_threshold": 0.01}, {"xtc_probability": 1, "xtc_threshold": 0.01}),
    ({"samplers": "temperature;top_k", "top_k": 3}, {"samplers": ["temperature", "top_k"], "top_k": 3}),
    ({"samplers": "tk", "top_k": 3}, {"samplers": ["temperature", "top_k"], "top_k": 3}),
    ({"samplers": ["typ_p", "temp"], "typical_p": 0.5}, {"samplers": ["typical_p", "temperature"], "typical_p": 0.5}),
    ({"dry_multiplier": 99, "dry_base": 0, "dry_allowed_length": 1, "dry_sequence_breakers": ["x"],
      "allowed_token_ids": [5, 6]},
     {"dry_multiplier": 99, "dry_allowed_length": 1, "dry_sequence_breakers": ["x"], "allowed_token_ids": [5, 6]}),
    ({"dynatemp_range": 1.4}, {"dynatemp_range": 1.4}),
    ({"bad_words": ["e", " "], "no_repeat_ngram_size": 1}, {"bad_words": ["e", " "], "no_repeat_ngram_size": 1}),
    ({"allowed_token_ids": [5, 6, 7]}, {"allowed_token_ids": [5, 6, 7]}),
]  # fmt: skip


@pytest.mark.parametrize(("theirs", "ours"), CASES)
def test_fields_are_the_options_of_generate(
    client: TestClient, llm: LLM, theirs: dict[str, Any], ours: dict[str, Any]
) -> None:
    body = {"prompt": PROMPT, **WARM, **theirs, "return_token_ids": True}
    found = client.post("/v1/completions", json=body).json()["choices"][0]
    expected = llm.generate(PROMPT, **{**WARM, **ours})
    assert found["token_ids"] == expected.tokens
    assert expected.tokens != llm.generate(PROMPT, **WARM).tokens


def test_ollama(client: TestClient, llm: LLM) -> None:
    options = {"temperature": 1.5, "top_k": 0, "min_p": 0, "top_p": 1, "seed": 7, "num_predict": 12}
    for more in ({"typical_p": 0.3}, {"mirostat": 2, "mirostat_tau": 1.0, "mirostat_eta": 0.5}):
        body = {"model": llm.model_name, "prompt": PROMPT, "raw": True, "stream": False, "options": {**options, **more}}
        found = client.post("/api/generate", json=body).json()
        assert found["response"] == llm.generate(PROMPT, **{**WARM, **more}).text  # type: ignore[call-overload]


def test_chat_takes_them_too(client: TestClient) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "allowed_words": ["no"], "strict": False}
    answer = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    assert set(answer) <= set(" no")


@pytest.mark.parametrize(
    "more",
    [
        {"samplers": ["what"]},
        {"mirostat": 1},
        {"typical_p": 2},
        {"bad_words": ["a"] * 1000},
        {"no_repeat_ngram_size": 1000},
        {"allowed_token_ids": [1 << 30]},
        {"dry_sequence_breakers": [""]},
        {"logits_processors": ["os.system"]},
    ],
)
def test_what_is_wrong_is_refused(client: TestClient, more: dict[str, Any]) -> None:
    found = client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 2, **more})
    assert found.status_code == 400
    assert next(iter(more)).split("_")[0] in found.json()["error"]["message"]


def test_beams(client: TestClient, llm: LLM) -> None:
    options: dict[str, Any] = {"max_tokens": 6, "length_penalty": 0.5}
    expected = llm.generate(PROMPT, beams=3, n=3, **options).outputs
    body = {"prompt": PROMPT, **options, "return_token_ids": True}
    found = client.post("/v1/completions", json={**body, "use_beam_search": True, "n": 3}).json()["choices"]
    assert [one["token_ids"] for one in found] == [one.tokens for one in expected]
    found = client.post("/v1/completions", json={**body, "beams": 3}).json()["choices"]
    assert [one["token_ids"] for one in found] == [expected[0].tokens]
    messages = [{"role": "user", "content": "hi"}]
    found = client.post("/v1/chat/completions", json={"messages": messages, "beams": 2, "max_tokens": 4}).json()
    best = llm.chat(messages, beams=2, max_tokens=4)
    assert found["choices"][0]["message"]["content"] == best.text
    for more in ({"beams": 1000}, {"beams": 2, "n": 3}, {"beams": 2, "logit_bias": {"5": 1}}):
        refused = client.post("/v1/completions", json={**body, **more})
        assert refused.status_code == 400
        assert "beams" in refused.json()["error"]["message"]
