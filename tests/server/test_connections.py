"""Clients that come, go, stall and lie, on a real port."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import httpx
import pytest

from fewbit.llm import LLM

from .conftest import Live
from .test_chat import CHAT, HELLO

LONG = {"messages": HELLO, "max_tokens": 900, "temperature": 0}
SHORT = {"messages": HELLO, "max_tokens": 4, "temperature": 0}


def raw(live: Live, body: dict[str, Any], path: str = CHAT, receive_bytes: int | None = None) -> socket.socket:
    """A request that was sent; whoever has the socket reads, or goes."""
    data = json.dumps(body).encode()
    found = socket.socket()
    if receive_bytes is not None:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    found.connect(live.socket.getsockname())
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
    found.sendall(head.encode() + data)
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_ends_its_request(live: Live, stream: bool) -> None:
    with raw(live, {**LONG, "stream": stream, "n": 3}):
        live.wait_until(lambda: live.llm.engine.stats().active == 3)
    live.wait_until(live.is_idle)


def test_a_client_that_goes_while_its_prompt_is_scored(live: Live) -> None:
    body = {"prompt": ["x" * 900] * 8, "echo": True, "logprobs": 1, "max_tokens": 1}
    with raw(live, body, "/v1/completions"):
        live.wait_until(lambda: live.llm.engine.stats().active > 0)
    live.wait_until(live.is_idle)


def test_many_clients_and_some_that_go(live: Live, llm: LLM) -> None:
    expected = llm.chat(HELLO, max_tokens=24, temperature=0).text
    answers: list[str] = []

    def ask(leaves: bool) -> None:
        if leaves:
            with raw(live, {**LONG, "stream": True}) as connection:
                connection.recv(100)
            return
        found = httpx.post(live.url + CHAT, json={**SHORT, "max_tokens": 24}, timeout=60)
        answers.append(found.json()["choices"][0]["message"]["content"])

    threads = [threading.Thread(target=ask, args=(number % 4 == 3,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [expected] * 12
    live.wait_until(live.is_idle)


def test_a_slow_reader_stalls_nobody(live: Live) -> None:
    body = {**LONG, "stream": True, "n": 4, "logprobs": True, "top_logprobs": 20}
    with raw(live, body, receive_bytes=16384) as slow:  # it reads nothing
        live.wait_until(lambda: live.llm.engine.stats().active == 4)
        for _ in range(3):
            assert httpx.post(live.url + CHAT, json=SHORT, timeout=60).status_code == 200
        live.wait_until(lambda: live.llm.engine.stats().active == 0)
        assert live.app.state.fewbit.open_runs == 1  # all was written, and most of it waits for its reader
        slow.settimeout(60)
        text = bytearray()
        while b"[DONE]" not in text[-100:]:
            text += slow.recv(1 << 20)
    assert text.count(b'"finish_reason":"length"') == 4
    live.wait_until(live.is_idle)


def test_a_reader_that_takes_nothing_is_dropped(llm: LLM) -> None:
    live = Live(llm, write_seconds=0.2)
    try:
        many = {**LONG, "n": 8, "stream": True, "logprobs": True, "top_logprobs": 20}
        with raw(live, many, receive_bytes=4096):
            live.wait_until(lambda: llm.engine.stats().active > 0)
            live.wait_until(live.is_idle)
    finally:
        live.close()


def test_a_quiet_stream_has_pings(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    step = live.llm.engine.step

    def slow() -> bool:
        time.sleep(0.3)
        return step()

    monkeypatch.setattr(live.llm.engine, "step", slow)
    with httpx.stream("POST", live.url + CHAT, json={**SHORT, "max_tokens": 1, "stream": True}, timeout=60) as found:
        assert ": ping" in found.read().decode()


def test_an_endless_body_is_refused(live: Live) -> None:
    with socket.create_connection(live.socket.getsockname()) as one:
        one.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {10**12}\r\n\r\n".encode())
        assert b"413" in one.recv(1000).splitlines()[0]


def test_a_connection_serves_again_after_whatever_it_served(live: Live) -> None:
    ports = set()
    with httpx.Client(base_url=live.url, timeout=60) as client:
        for body in ({**SHORT, "stream": True}, SHORT, {"messages": []}, {**SHORT, "stream": True, "n": 2}, SHORT):
            with raw(live, {**LONG, "stream": True}) as other:  # a client that goes beside it
                other.recv(100)
                with client.stream("POST", CHAT, json=body) as found:
                    ports.add(found.extensions["network_stream"].get_extra_info("client_addr"))
                    found.read()
                    assert "close" not in found.headers.get("connection", "")
    assert len(ports) == 1
    live.wait_until(live.is_idle)


def test_a_full_queue_says_when_to_come_again(llm: LLM) -> None:
    live = Live(llm, max_queue=0)
    try:
        width = llm.loaded.max_seqs
        with raw(live, {**LONG, "stream": True, "n": width}):
            live.wait_until(lambda: live.app.state.fewbit.open_runs == 1)
            found = httpx.post(live.url + CHAT, json=SHORT)
            assert found.status_code == 429
            assert int(found.headers["retry-after"]) > 0
        live.wait_until(live.is_idle)
        assert httpx.post(live.url + CHAT, json=SHORT, timeout=60).status_code == 200
    finally:
        live.close()


def test_it_drains_before_it_ends(llm: LLM) -> None:
    live = Live(llm)
    answers: list[httpx.Response] = []
    body = {**SHORT, "max_tokens": 300}
    running = threading.Thread(target=lambda: answers.append(httpx.post(live.url + CHAT, json=body, timeout=60)))
    running.start()
    live.wait_until(lambda: live.app.state.fewbit.open_runs == 1)
    live.server.handle_exit(15, None)
    late = httpx.post(live.url + CHAT, json=SHORT)
    assert late.status_code == 503
    assert "retry-after" in late.headers
    running.join()
    assert answers[0].json()["usage"]["completion_tokens"] == 300
    live.close()
