"""Feedback: nothing is kept that a client did not ask for, votes are kept, and can be forgotten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from fewbit.files.feedback import FeedbackStore
from fewbit.llm import LLM

from .conftest import GREEDY, client_of

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def rated(llm: LLM, tmp_path: Path) -> TestClient:
    return client_of(llm, feedback=str(tmp_path / "votes.db"))


def ask(client: TestClient, **body: Any) -> Any:
    return client.post("/v1/chat/completions", json={"messages": HI, **GREEDY, **body})


def kept(tmp_path: Path) -> list[tuple[str, str, str | None]]:
    store = FeedbackStore(tmp_path / "votes.db")
    found = [(one.answer, one.vote, one.correction) for one in store.rated()]
    store.close()
    return found


def test_votes_are_kept(rated: TestClient, tmp_path: Path) -> None:
    answer = ask(rated, feedback=True, n=2, temperature=1).json()
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    first = rated.post("/v1/feedback", json={"id": answer["id"], "vote": "good"})
    assert first.json() == {"id": answer["id"], "index": 0, "vote": "good", "object": "feedback"}
    rated.post("/v1/feedback", json={"id": answer["id"], "index": 1, "text": "hello"})
    assert kept(tmp_path) == [(texts[0], "good", None), (texts[1], "corrected", "hello")]
    assert rated.delete(f"/v1/feedback/{answer['id']}").json()["deleted"] is True
    assert kept(tmp_path) == []


def test_streams_are_kept(rated: TestClient, tmp_path: Path) -> None:
    lines = [line for line in ask(rated, feedback=True, stream=True).text.split("\n") if line.startswith("data: {")]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    text = "".join(one["choices"][0]["delta"].get("content") or "" for one in chunks if one["choices"])
    assert rated.post("/v1/feedback", json={"id": chunks[0]["id"], "vote": "bad"}).status_code == 200
    assert kept(tmp_path) == [(text, "bad", None)]


def test_nothing_is_kept_that_nobody_asked_for(rated: TestClient, tmp_path: Path) -> None:
    for body in ({}, {"feedback": False}):
        answer = ask(rated, **body).json()
        refused = rated.post("/v1/feedback", json={"id": answer["id"], "vote": "good"})
        assert refused.status_code == 404
        assert "feedback: true" in refused.json()["error"]["message"]
    assert kept(tmp_path) == []


def test_a_server_without_a_file_refuses(client: TestClient) -> None:
    for refused in (ask(client, feedback=True), client.post("/v1/feedback", json={"id": "x", "vote": "good"}),
                    client.delete("/v1/feedback/x")):  # fmt: skip
        assert refused.status_code == 403
        assert "--feedback FILE" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [{"id": "x"}, {"id": "x", "vote": "good", "text": "y"}, {"id": "x", "vote": "fine"}, {"vote": "good"},
     {"id": "", "vote": "good"}, {"id": "x", "text": ""}, {"id": "x", "vote": "good", "index": -1}],
)  # fmt: skip
def test_wrong_votes(rated: TestClient, body: dict[str, Any]) -> None:
    assert rated.post("/v1/feedback", json=body).status_code in (400, 422)
