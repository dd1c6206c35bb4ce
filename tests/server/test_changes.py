"""Models that clients add, load, unload and remove, where that is allowed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from fewbit.errors import MissingError
from fewbit.llm import LLM
from fewbit.server import changes
from fewbit.server.app import make_app
from fewbit.server.pool import Pool
from fewbit.server.settings import Settings

from .conftest import URL, client_of

CALLS = [
    ("POST", "/api/pull"),
    ("DELETE", "/api/delete"),
    ("POST", "/v1/models/load"),
    ("POST", "/v1/models/unload"),
]


@pytest.fixture
def client(tiny_path: Path) -> Iterator[TestClient]:
    pool = Pool({"tiny": str(tiny_path)}, lambda source: LLM(tiny_path, ctx=256, threads=1))
    with TestClient(make_app(Settings(allow_changes=True), pool), base_url=URL) as found:
        yield found


def names(client: TestClient) -> list[str]:
    return [model["id"] for model in client.get("/v1/models").json()["data"]]


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_changes_must_be_allowed(llm: LLM, method: str, path: str) -> None:
    answer = client_of(llm).request(method, path, json={"model": "tiny"})
    assert answer.status_code == 400
    assert "--allow-changes" in answer.text
    public = client_of(llm, host="0.0.0.0", allow_changes=True).request(method, path, json={"model": "tiny"})
    assert public.status_code == 403


def test_models_are_loaded_and_unloaded(client: TestClient) -> None:
    def is_loaded() -> bool:
        return bool(client.get("/v1/models/tiny").json()["loaded"])

    assert client.post("/v1/models/load", json={"model": "tiny"}).json() == {"success": True}
    assert is_loaded()
    assert client.post("/v1/models/unload", json={"model": "tiny"}).json() == {"success": True}
    assert not is_loaded()
    assert client.post("/v1/models/load", json={"model": "none"}).status_code == 404


def test_models_in_use_stay(llm: LLM) -> None:
    client = client_of(llm, allow_changes=True)
    assert client.post("/v1/models/unload", json={"model": "tiny"}).status_code == 409
    assert client.request("DELETE", "/api/delete", json={"model": "tiny"}).status_code == 409
    assert names(client) == ["tiny"]


def test_a_model_is_pulled_used_and_removed(
    client: TestClient, tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(source: str, progress: Any) -> Path:
        assert source == "hf:org/repo:Q8_0"
        progress("model.gguf", 5, 10)
        return tiny_path

    monkeypatch.setattr(changes, "find", find)
    name = "hf.co/org/repo:Q8_0"
    lines = [json.loads(line) for line in client.post("/api/pull", json={"model": name}).text.splitlines()]
    assert [line["status"] for line in lines] == ["pulling manifest", "pulling model.gguf", "success"]
    assert (lines[1]["completed"], lines[1]["total"]) == (5, 10)
    assert client.post("/api/pull", json={"model": name, "stream": False}).json() == {"status": "success"}
    assert names(client) == ["tiny", name]
    asked = {"model": name, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    assert client.post("/v1/chat/completions", json=asked).status_code == 200
    assert client.request("DELETE", "/api/delete", json={"model": name}).status_code == 200
    assert names(client) == ["tiny"]
    assert client.request("DELETE", "/api/delete", json={"model": name}).status_code == 404


def test_failures_are_told(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(source: str, progress: Any) -> Path:
        raise MissingError("there is no such repository")

    monkeypatch.setattr(changes, "find", find)
    lines = client.post("/api/pull", json={"model": "hf:org/none"}).text.splitlines()
    assert json.loads(lines[-1]) == {"error": "there is no such repository"}
    assert client.post("/api/pull", json={"model": "hf:org/none", "stream": False}).status_code == 500
    assert names(client) == ["tiny"]


@pytest.mark.parametrize("name", ["/etc/passwd", "../model.gguf", "http://127.0.0.1/x.gguf", "no-such-model"])
def test_paths_and_addresses_are_not_pulled(client: TestClient, name: str) -> None:
    assert client.post("/api/pull", json={"model": name}).status_code == 404
    assert client.post("/api/pull", json={}).status_code == 400
