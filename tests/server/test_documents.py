"""Health, counts, and the OpenAPI document."""

from __future__ import annotations

import msgspec
from starlette.routing import Route
from starlette.testclient import TestClient

from fewbit.llm import LLM
from fewbit.server.app import ROUTES
from fewbit.server.openapi import OPERATIONS

from .conftest import client_of
from .test_chat import CHAT, HELLO


def test_health_and_stats(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    before = client.get("/stats").json()["models"][0]
    client.post(CHAT, json={"messages": HELLO, "max_tokens": 5})
    after = client.get("/stats").json()["models"][0]
    assert after["model"] == "tiny"
    assert after["generated_tokens"] == before["generated_tokens"] + 5
    assert after["pages_total"] == after["pages_free"] + after["pages_used"] + after["pages_cached"]
    assert after["pages_used"] == after["running"] == 0


def metric(text: str, name: str) -> float:
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


def test_metrics(client: TestClient) -> None:
    client.post(CHAT, json={"messages": HELLO, "max_tokens": 5})
    found = client.get("/metrics")
    assert found.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert metric(found.text, "fewbit_time_to_first_token_seconds_count") == 1
    assert metric(found.text, "fewbit_inter_token_seconds_count") > 0
    assert metric(found.text, 'fewbit_outputs_total{model="tiny",reason="length"}') == 1
    assert metric(found.text, "fewbit_prompt_tokens_total") == 22
    assert metric(found.text, f'fewbit_http_requests_total{{path="{CHAT}",status="200"}}') == 1
    for name in ("requests_waiting", "requests_running", "pages_used", "pages_shared", "pages_free", "prefix_hit_rate"):
        assert f"fewbit_{name}{{" in found.text


def test_the_document_names_every_route(client: TestClient, llm: LLM) -> None:
    found = client.get("/openapi.json").json()
    assert found["openapi"].startswith("3.1")
    paths = {route.path.replace(":path", "") for route in ROUTES if isinstance(route, Route)} - {"/openapi.json"}
    assert paths >= {path for _, path, *_ in OPERATIONS}
    assert {path for path in paths if path.startswith(("/v1/c", "/v1/models", "/tok"))} <= set(found["paths"])
    assert "additionalProperties" not in found["components"]["schemas"]["ChatRequest"]
    strict = client_of(llm, strict=True).get("/openapi.json").json()
    assert strict["components"]["schemas"]["ChatRequest"]["additionalProperties"] is False
    assert found["components"]["schemas"]["ChatRequest"]["properties"]["model"]["enum"] == ["tiny", None]


def test_answers_are_as_the_document_says(client: TestClient) -> None:
    kinds = {path: (body, answer) for _, path, _, body, answer, _ in OPERATIONS}
    for path, body in (
        (CHAT, {"messages": HELLO, "max_tokens": 3, "logprobs": True, "top_logprobs": 2}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 3, "logprobs": 2, "echo": True}),
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": [1]}),
    ):
        msgspec.convert(client.post(path, json=body).json(), kinds[path][1])
    for path in ("/health", "/stats", "/v1/models", "/tokenizer_info"):
        msgspec.convert(client.get(path).json(), kinds[path][1])
