"""Hosts, origins, keys with quotas, request ids."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from fewbit.errors import ArgumentError
from fewbit.llm import LLM
from fewbit.server.app import make_app
from fewbit.server.errors import ApiError
from fewbit.server.keys import ApiKey, Quota, read_key_table
from fewbit.server.pool import Pool
from fewbit.server.settings import Settings

from .conftest import Live, client_of
from .test_chat import CHAT, HELLO
from .test_poisoned import HEAD, answer

ASKED = {"messages": HELLO, "max_tokens": 2}


def test_pages_of_other_sites_may_not_ask(llm: LLM) -> None:
    client = client_of(llm)
    foreign = {"Sec-Fetch-Site": "cross-site"}
    for path in ("/tokenizer_info", "/stats", "/v1/models"):
        assert client.get(path, headers=foreign).status_code == 403
        assert client.get(path, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
    assert client.post(CHAT, json=ASKED, headers=foreign).status_code == 403
    assert client.get("/", headers=foreign).status_code == 200  # a link leads there
    named = client_of(llm, cors_origins=("https://page.example",))
    asked = {**foreign, "Origin": "https://page.example"}
    assert named.post(CHAT, json=ASKED, headers=asked).status_code == 200


@pytest.mark.parametrize("origin", ["http://[::1", "http://[", "null", "\u00e9"])
def test_origins_that_are_none(llm: LLM, origin: str) -> None:
    assert client_of(llm).get("/health", headers={"Origin": origin.encode()}).status_code == 403


def test_a_get_loads_no_model() -> None:
    def load(source: str) -> Any:
        raise AssertionError("it was loaded")

    client = TestClient(make_app(Settings(), Pool({"a": "a.gguf"}, load)), base_url="http://127.0.0.1")
    found = client.get("/tokenizer_info")
    assert found.status_code == 503
    assert found.json()["error"]["code"] == "model_not_loaded"


@pytest.mark.parametrize(
    ("settings", "host", "status"),
    [
        ({}, "box.example", 403),
        ({"allowed_hosts": ("box.example",)}, "box.example:8000", 200),
        ({"host": "0.0.0.0"}, "10.0.0.5:8000", 200),
        ({"host": "0.0.0.0"}, "box.example", 403),
        ({"host": "box.example"}, "box.example", 200),
        ({"host": "0.0.0.0", "allowed_hosts": ("box.example",)}, "box.example", 200),
        ({"host": "0.0.0.0", "allowed_hosts": ("box.example",)}, "10.0.0.5", 403),
        ({"host": "0.0.0.0", "api_keys": ("some-good-key",)}, "box.example", 200),
        ({"host": "0.0.0.0"}, "[::1", 403),
    ],
)
def test_hosts(llm: LLM, settings: dict[str, Any], host: str, status: int) -> None:
    assert client_of(llm, **settings).get("/health", headers={"Host": host}).status_code == status


def test_two_lengths_of_a_body(live: Live) -> None:
    with socket.create_connection(live.socket.getsockname()) as one:
        one.sendall(f"{HEAD}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode())
        assert answer(one)[0] == "400"  # and the connection is closed


def test_long_names_come_back_short(llm: LLM) -> None:
    long_name = {**ASKED, "x" * 1_000_000: 1}
    for strict, body in ((True, long_name), (False, {**ASKED, "temperature": "y" * 100_000})):
        found = client_of(llm, strict=strict).post(CHAT, json=body)
        assert found.status_code == 400
        assert len(found.text) < 1000
    found = client_of(llm).post(CHAT, json=long_name)
    assert found.status_code == 200
    assert len(found.headers["x-fewbit-ignored"]) < 100


def test_stop_tokens_that_leave_no_token(llm: LLM) -> None:
    every = list(range(llm.engine.executor.vocab))
    body = {"prompt": "a", "max_tokens": 4, "min_tokens": 2, "stop_token_ids": every}
    found = client_of(llm).post("/v1/completions", json=body)
    assert found.status_code == 400
    assert "min_tokens" in found.text


def test_request_ids_and_reasons(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    client = client_of(llm, strict=True)
    assert client.get("/health", headers={"X-Request-Id": "mine-17"}).headers["x-request-id"] == "mine-17"
    for given in ("two words", "x" * 65, ""):
        made = client.get("/health", headers={"X-Request-Id": given}).headers["x-request-id"]
        assert len(made) == 32
        assert made != given
    capfd.readouterr()
    found = client.post(CHAT, json={**ASKED, "no_such_field": 1}, headers={"X-Request-Id": "mine-18"})
    assert found.headers["x-request-id"] == "mine-18"
    line = capfd.readouterr().err
    assert "id=mine-18" in line
    assert "unsupported_parameter: no_such_field is not supported" in line


KEYS = """
[[keys]]
name = "ada"
key = "the-key-of-ada"
requests_per_minute = 2
models = ["tiny"]

[[keys]]
name = "bob"
key = "the-key-of-bob"
tokens_per_minute = 8
models = ["other"]
"""


def test_keys_with_names_and_quotas(llm: LLM, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(KEYS)
    keys = read_key_table(path)
    client = client_of(llm, api_keys=keys)
    ada, bob = ({"Authorization": f"Bearer {one.key}"} for one in keys)
    assert [client.post(CHAT, json=ASKED, headers=ada).status_code for _ in range(3)] == [200, 200, 429]
    assert client.get("/v1/models", headers=ada).json()["data"][0]["id"] == "tiny"  # reading costs nothing
    assert client.get("/v1/models", headers=bob).json()["data"] == []
    assert client.post(CHAT, json=ASKED, headers=bob).status_code == 404
    assert client.post(CHAT, json={**ASKED, "model": "tiny"}, headers=bob).status_code == 404
    logged = capfd.readouterr().err
    assert "key=ada" in logged
    assert "the-key" not in logged


def test_tokens_are_counted_as_they_come(llm: LLM) -> None:
    key = ApiKey("the-key-of-eve", "eve", tokens_per_minute=20)
    client = client_of(llm, api_keys=(key,))
    head = {"Authorization": f"Bearer {key.key}"}
    found = client.post(CHAT, json={**ASKED, "max_tokens": 9}, headers=head)
    assert found.status_code == 200
    found = client.post(CHAT, json=ASKED, headers=head)
    assert found.status_code == 429
    assert "20 tokens per minute" in found.text
    assert int(found.headers["retry-after"]) >= 1


def test_quotas_fill_again() -> None:
    now = 0.0
    quota = Quota(ApiKey("x" * 8, requests_per_minute=2, tokens_per_minute=60), clock=lambda: now)
    quota.admit()
    quota.admit()
    with pytest.raises(ApiError):
        quota.admit()
    now = 30.0
    quota.admit()
    now = 1000.0
    quota.charge(90)
    with pytest.raises(ApiError, match="60 tokens per minute"):
        quota.admit()
    now = 1032.0
    quota.admit()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({}, "keys"),
        ({"keys": []}, "no API key"),
        ({"keys": [{"name": "a", "key": "short"}]}, "the key of 'a'"),
        ({"keys": [{"name": "a"}]}, "key"),
        ({"keys": [{"name": "a", "key": "long-enough", "quota": 1}]}, "quota"),
        ({"keys": [{"name": "a", "key": "long-enough", "tokens_per_minute": 0}]}, "at least 1"),
        ({"keys": [{"name": "a", "key": "long-enough"}] * 2}, "the same name"),
    ],
)
def test_files_of_keys_that_are_wrong(tmp_path: Path, value: Any, why: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(value))
    with pytest.raises(ArgumentError, match=why):
        read_key_table(path)
