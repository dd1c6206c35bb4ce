"""Requests that take longer than `--max-seconds` end as their APIs end what is cut off. The clock is the test's."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from starlette.testclient import TestClient

from fewbit.llm import LLM

from .conftest import client_of
from .test_chat import CHAT, HELLO

STEPS = 5  # each takes a second of the test's clock
PROMPT: dict[str, Any] = {"messages": HELLO, "max_tokens": 60, "temperature": 0}


class Clock:
    """Time that passes when the engine makes a step."""

    def __init__(self, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.seconds_per_step, step = 0.0, 1.0, llm.engine.step

        def ticking() -> bool:
            self.now += self.seconds_per_step
            return step()

        monkeypatch.setattr(llm.engine, "_clock", lambda: self.now)
        monkeypatch.setattr(llm.engine._scheduler, "_clock", lambda: self.now)
        monkeypatch.setattr(llm.engine, "step", ticking)
        monkeypatch.setattr(llm.engine, "_speculation", None)  # a step gives one token


@pytest.fixture
def clock(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(llm, monkeypatch)


@pytest.fixture
def client(llm: LLM, clock: Clock) -> TestClient:
    return client_of(llm, request_seconds=STEPS + 0.5)


def test_chat_ends_as_if_it_were_full(client: TestClient) -> None:
    found = client.post(CHAT, json=PROMPT).json()
    assert found["choices"][0]["finish_reason"] == "length"
    assert 0 < found["usage"]["completion_tokens"] <= STEPS
    text = client.post(CHAT, json={**PROMPT, "stream": True}).text
    assert '"finish_reason":"length"' in text
    assert "error" not in text


def test_the_other_apis_too(client: TestClient) -> None:
    found = client.post("/v1/completions", json={"prompt": "hello", "max_tokens": 60, "temperature": 0}).json()
    assert found["choices"][0]["finish_reason"] == "length"
    found = client.post("/v1/responses", json={"input": "hello", "max_output_tokens": 60, "temperature": 0}).json()
    assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    found = client.post("/v1/messages", json={"model": "tiny", **PROMPT}).json()
    assert found["stop_reason"] == "max_tokens"
    body = {"model": "tiny", "messages": HELLO, "stream": False, "options": {"temperature": 0, "num_predict": 60}}
    assert client.post("/api/chat", json=body).json()["done_reason"] == "length"


def test_what_wrote_nothing_is_an_error(client: TestClient, clock: Clock) -> None:
    clock.seconds_per_step = 100.0
    found = client.post(CHAT, json=PROMPT)
    assert found.status_code == 503
    assert found.json()["error"]["code"] == "request_timeout"
    assert "retry-after" in found.headers
    assert "request_timeout" in client.post(CHAT, json={**PROMPT, "stream": True}).text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "hello"}),
        ("/v1/completions", {"prompt": "hello", "echo": True, "logprobs": 1, "max_tokens": 1}),
    ],
)
def test_what_has_no_parts_is_an_error(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    gate, step = threading.Event(), llm.engine.step

    def gated() -> bool:
        assert gate.wait(60)
        return step()

    monkeypatch.setattr(llm.engine, "step", gated)
    found = client_of(llm, request_seconds=0.2).post(path, json=body)
    gate.set()
    assert found.status_code == 503
    assert found.json()["error"]["code"] == "request_timeout"
