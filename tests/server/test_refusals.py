"""What is wrong gets a 4xx with one sentence, in the shape of the API, and disturbs nobody."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from fewbit.llm import LLM

from .conftest import client_of
from .test_chat import CHAT, HELLO

JSON = {"Content-Type": "application/json"}
KEY = "a-key-of-mine"


def refused(client: TestClient, body: dict[str, Any], path: str = CHAT) -> str:
    found = client.post(path, json=body)
    assert found.status_code == 400, found.text
    error = found.json()["error"]
    assert error["type"] == "invalid_request_error"
    return str(error["message"])


@pytest.mark.parametrize(
    "more",
    [
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "thing"}}}},
        {"response_format": {"type": "xml"}},
        {"functions": [{"name": "f"}]},
        {"grammar": "root ::= ("},
        {"guided_choice": []},
        {"guided_regex": "(?=a)b"},
        {"structured_outputs": {"structural_tag": "{}"}},
        {"mirostat": 1},
        {"samplers": ["infill"]},
        {"top_a": 0.5},
        {"best_of": 3},
        {"audio": {"voice": "alloy", "format": "wav"}},
        {"modalities": ["text", "audio"]},
        {"web_search_options": {}},
        {"tool_choice": "required"},
        {
            "tool_choice": {"type": "function", "function": {"name": "g"}},
            "tools": [{"type": "function", "function": {"name": "f"}}],
        },
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(client: TestClient, more: dict[str, Any]) -> None:
    assert next(iter(more)) in refused(client, {"messages": HELLO, **more})


@pytest.mark.parametrize(
    "more",
    [
        {"user": "me"},
        {"metadata": {"a": "b"}},
        {"store": False},
        {"service_tier": "auto"},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"safety_identifier": "x", "prompt_cache_key": "y"},
        {"tools": [], "tool_choice": "auto"},
        {"temperature": None, "stop": None, "n": None, "logit_bias": None, "stream": None},
        {"cache_salt": "mine"},
        {"seed": -1, "top_k": -1, "max_tokens": 2.0, "stop": []},
        {"store": True, "service_tier": "flex", "reasoning_effort": "low"},
        {"typical_p": 1, "mirostat": 0, "tfs_z": 1, "functions": [], "grammar": "", "best_of": 1},
        {"cache_prompt": True, "repeat_penalty": 1.1},
    ],
)
def test_what_changes_nothing_is_accepted(client: TestClient, more: dict[str, Any]) -> None:
    assert client.post(CHAT, json={"messages": HELLO, "max_tokens": 1, **more}).status_code == 200


@pytest.mark.parametrize(
    ("kind", "url", "reason"),
    [
        ("image_url", "data:image/png;base64,aGk=", "the model reads text only"),
        ("image_url", "x", "this server fetches no images"),
        ("input_audio", "x", "text only"),
        ("file", "x", "text only"),
    ],
)
def test_parts_that_are_not_text(client: TestClient, kind: str, url: str, reason: str) -> None:
    said = [{"role": "user", "content": [{"type": "text", "text": "look"}, {"type": kind, kind: {"url": url}}]}]
    assert reason in refused(client, {"messages": said})


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": -1},
        {"temperature": "warm"},
        {"top_p": 2},
        {"n": 0},
        {"n": 65},  # more than a batch
        {"max_tokens": 0},
        {"max_tokens": -2},
        {"max_tokens": 1.5},
        {"max_tokens": 10**30},
        {"seed": 2**64},
        {"stop": ""},
        {"stop": [""]},
        {"logit_bias": {"x": 1}},
        {"logit_bias": {"999999": 1}},
        {"logit_bias": {"1": 1000}},
        {"top_logprobs": 1},
        {"logprobs": True, "top_logprobs": 21},
        {"messages": []},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": "hello"},
        {"chat_template_kwargs": {"messages": []}},
        {"messages": [{"role": "user", "content": "x" * 5000}]},  # longer than the context
    ],
)
def test_numbers_and_messages_that_cannot_be(client: TestClient, llm: LLM, more: dict[str, Any]) -> None:
    refused(client, {"messages": HELLO, **more})
    assert llm.engine.stats().active == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"messages": NaN}',
        b'{"messages": [{"role": "user", "content": "hi"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "hi"}], "temperature": 1e999}',
        b"\xff\xfe",
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": ' + b"[" * 100_000,
        b'{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"a":' + b"[" * 900 + b"]" * 900 + b"}}",
    ],
)
def test_bodies_that_are_none(client: TestClient, data: bytes) -> None:
    found = client.post(CHAT, content=data, headers=JSON)
    assert found.status_code in (200, 400)
    if found.status_code == 400:
        assert found.json()["error"]["message"]


def test_deep_nesting_reaches_no_template(llm: LLM) -> None:
    deep: Any = "x"
    for _ in range(400):
        deep = {"a": deep}
    tools = [{"type": "function", "function": {"name": "f", "parameters": deep}}]
    found = client_of(llm, tools_without_template="refuse").post(CHAT, json={"messages": HELLO, "tools": tools})
    assert found.status_code == 400


def test_models_and_paths_that_are_not_there(client: TestClient) -> None:
    found = client.post(CHAT, json={"model": "none", "messages": HELLO})
    assert found.status_code == 404
    assert "tiny" in found.json()["error"]["message"]
    assert client.get("/v1/models/none").status_code == 404
    assert client.get("/nothing").json()["error"]["message"] == "there is no GET /nothing"
    assert client.get(CHAT).status_code == 405
    assert client.get("/v1/models/tiny").json()["id"] == "tiny"


def test_tools_that_the_template_ignores_may_be_refused(llm: LLM) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    client = client_of(llm, tools_without_template="refuse")
    assert "ignores tools" in refused(client, {"messages": HELLO, "tools": tools})


def test_large_bodies(llm: LLM) -> None:
    client = client_of(llm, max_body_bytes=100)
    assert client.post(CHAT, json={"messages": [{"role": "user", "content": "x" * 200}]}).status_code == 413


def test_limits_of_the_server(llm: LLM) -> None:
    client = client_of(llm, max_outputs=2, max_output_tokens=3, max_prompt_tokens=30)
    assert "3" in refused(client, {"messages": HELLO, "max_tokens": 4})
    assert "2" in refused(client, {"messages": HELLO, "n": 3})
    assert "30" in refused(client, {"prompt": "x" * 31}, "/v1/completions")
    usage = client.post(CHAT, json={"messages": HELLO}).json()["usage"]
    assert usage["completion_tokens"] == 3


def test_keys(llm: LLM) -> None:
    client = client_of(llm, api_keys=("another-key", KEY))
    body = {"messages": HELLO, "max_tokens": 1}
    assert client.get("/health").status_code == 200
    for headers in ({}, {"Authorization": "Bearer no"}, {"Authorization": KEY}, {"x-api-key": "ü"}):
        encoded = {name: value.encode() for name, value in headers.items()}
        found = client.post(CHAT, json=body, headers=encoded)
        assert found.status_code == 401
        assert found.headers["www-authenticate"] == "Bearer"
    for headers in ({"Authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}):
        assert client.post(CHAT, json=body, headers=headers).status_code == 200
    assert client.get("/metrics").status_code == 401


def test_salts_and_keys_keep_prefixes_apart(llm: LLM) -> None:
    client = client_of(llm, api_keys=("another-key", KEY))
    long = "tell me about the sea, " * 30

    def cached(key: str, salt: str | None) -> int:
        body = {"prompt": long, "max_tokens": 1, "cache_salt": salt}
        found = client.post("/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"}).json()
        return int(found["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached(KEY, "one") == 0
    assert cached(KEY, "one") > 0
    assert cached(KEY, "two") == cached(KEY, None) == cached("another-key", "one") == 0


def test_pages_of_others_may_not_ask(llm: LLM) -> None:
    client = client_of(llm)
    assert client.get("/health", headers={"Host": "evil.example"}).status_code == 403
    assert client.get("/health", headers={"Origin": "https://evil.example"}).status_code == 403
    assert client.get("/health", headers={"Origin": "null"}).status_code == 403
    assert client.get("/health", headers={"Origin": "http://127.0.0.1"}).status_code == 200


def test_cors_is_for_those_that_were_named(llm: LLM) -> None:
    page = "https://page.example"
    client = client_of(llm, cors_origins=(page,))
    found = client.get("/health", headers={"Origin": page})
    assert found.headers["access-control-allow-origin"] == page
    asked = {"Origin": page, "Access-Control-Request-Method": "POST"}
    assert client.options(CHAT, headers=asked).status_code == 200
    assert client.get("/health", headers={"Origin": "https://other.example"}).status_code == 403
