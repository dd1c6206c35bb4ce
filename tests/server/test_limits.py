"""Connections: how many there may be, how long they may be idle, and how they are answered at once."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from fewbit.llm import LLM
from fewbit.server import serving
from fewbit.server.app import make_app
from fewbit.server.pool import Pool
from fewbit.server.serving import AcceptErrors, raise_file_limit
from fewbit.server.settings import Settings

from ..cli.tiny import write_tiny
from .conftest import Live
from .test_chat import CHAT, HELLO
from .test_connections import LONG, raw
from .test_poisoned import answer

ASKED = {"messages": HELLO, "max_tokens": 2, "temperature": 0}


def test_small_writes_are_sent_at_once(live: Live) -> None:
    with socket.create_connection(live.socket.getsockname()) as one:
        one.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert one.recv(100)
        sockets = [connection.transport.get_extra_info("socket") for connection in live.server.server_state.connections]
        assert [found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for found in sockets] == [1]


def test_too_many_connections(llm: LLM) -> None:
    live = Live(llm, max_connections=3)
    try:
        idle = [socket.create_connection(live.socket.getsockname()) for _ in range(3)]
        live.wait_until(lambda: live.app.state.fewbit.connections.total() == 3)
        with socket.create_connection(live.socket.getsockname()) as one:
            status, text = answer(one)
        assert (status, text) == ("503", b"too many connections are open; try again later")
        for connection in idle:
            connection.close()
        live.wait_until(lambda: not live.app.state.fewbit.connections.total())
        assert httpx.get(live.url + "/health").status_code == 200
    finally:
        live.close()


def test_too_many_connections_of_one_address(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    live = Live(llm, max_connections_per_address=1)
    try:
        with socket.create_connection(live.socket.getsockname()):
            live.wait_until(lambda: live.app.state.fewbit.connections.total() == 1)
            for _ in range(3):
                with socket.create_connection(live.socket.getsockname()) as one:
                    assert answer(one)[0] == "503"
            there = ("127.0.0.2", 0)
            with socket.create_connection(live.socket.getsockname(), source_address=there) as other:
                other.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                assert b"200 OK" in other.recv(100)
    finally:
        live.close()
    assert capfd.readouterr().err.count("too many connections") == 1


def test_a_connection_without_a_request_is_closed(llm: LLM) -> None:
    live = Live(llm, first_request_seconds=0.1)
    try:
        with socket.create_connection(live.socket.getsockname()) as one:
            one.settimeout(60)
            assert one.recv(1) == b""
    finally:
        live.close()


def test_accept_errors_are_logged_once_a_minute(capfd: pytest.CaptureFixture[str]) -> None:
    handler, loop = AcceptErrors(), asyncio.new_event_loop()
    for _ in range(1000):
        handler(loop, {"exception": OSError(errno.EMFILE, "Too many open files"), "message": "x"})
    loop.close()
    assert capfd.readouterr().err.count("\n") == 1


def test_file_descriptors_for_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[Any] = []
    monkeypatch.setattr(serving.resource, "getrlimit", lambda _: (256, 4096))
    monkeypatch.setattr(serving.resource, "setrlimit", lambda _, given: limits.append(given))
    raise_file_limit(100)
    assert limits == []
    raise_file_limit(1000)
    assert limits == [(1128, 4096)]

    def refuse(*_: Any) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(serving.resource, "setrlimit", refuse)
    with pytest.raises(serving.ArgumentError, match="--max-connections 128"):
        raise_file_limit(1000)


def test_outputs_that_nobody_waits_for_are_counted(live: Live) -> None:
    def cancelled() -> float:
        counted = live.app.state.fewbit.metrics.registry.get_sample_value
        return counted("fewbit_outputs_total", {"model": "tiny", "reason": "cancelled"}) or 0.0

    with raw(live, {**LONG, "stream": True, "n": 2}) as connection:
        assert connection.recv(100)
    live.wait_until(lambda: cancelled() == 2)
    assert httpx.post(live.url + CHAT, json={**ASKED, "temperature": -1}).status_code == 400
    assert cancelled() == 2


def client_for(pool: Pool) -> TestClient:
    return TestClient(make_app(Settings(), pool), base_url="http://127.0.0.1", raise_server_exceptions=False)


def test_a_model_whose_file_changes_is_loaded_anew(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    paths = {name: str(write_tiny(tmp_path / f"{name}.gguf")) for name in ("a", "b")}

    def load(source: str) -> LLM:
        return LLM(source, ctx=256, threads=1, repack=False)

    with client_for(Pool(paths, load)) as client:
        first = [client.post(CHAT, json={**ASKED, "model": name}).json() for name in "ab"]
        whole = Path(paths["a"]).read_bytes()
        os.truncate(paths["a"], 4096)
        for stream in (True, False):  # the file is still damaged when it is loaded anew
            found = client.post(CHAT, json={**ASKED, "model": "a", "stream": stream})
            assert "model_failed" in found.text
            assert str(tmp_path) not in found.text
        assert client.post(CHAT, json={**ASKED, "model": "b"}).json()["choices"] == first[1]["choices"]
        Path(paths["a"]).write_bytes(whole)
        client.app.state.fewbit.pool.entries["a"].failed = None
        assert client.post(CHAT, json={**ASKED, "model": "a"}).json()["choices"] == first[0]["choices"]
    assert "the file changed while it was in use" in capfd.readouterr().err


def test_a_cache_folder_that_fails_is_reported_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder, path = tmp_path / "kept", write_tiny(tmp_path / "tiny.gguf")

    with LLM(path, ctx=1024, threads=1, cache_dir=folder) as llm, client_for(Pool.of(llm)) as client:
        folder.rmdir()
        for number in range(3):
            prompt = f"{number} a long prompt, " * 28
            assert client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1}).status_code == 200
            llm.flush()
            llm.loaded.cache.disk.flush()
        lines = client.get("/metrics").text.splitlines()
        errors = next(line for line in lines if line.startswith("fewbit_disk_errors_total"))
        assert float(errors.split()[-1]) > 0
    assert capfd.readouterr().err.count("cache-dir failed") == 1
