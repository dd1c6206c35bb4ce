"""Requests that are wrong or slow get a 4xx at once, beside one that runs and is not disturbed, on a real port."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection

import httpx
import pytest

from fewbit.llm import LLM

from .conftest import Live
from .test_chat import CHAT, HELLO

RUNNING = {"messages": HELLO, "max_tokens": 40, "temperature": 0}
HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
JSON_BODIES = {
    "100,000 tokens": json.dumps({"messages": [{"role": "user", "content": "word " * 100_000}]}),
    "NaN": '{"messages": [{"role": "user", "content": "hi"}], "temperature": NaN}',
    "1e999": '{"messages": [{"role": "user", "content": "hi"}], "temperature": 1e999}',
    "no JSON": '{"messages": [',
    "no UTF-8": '{"messages": "\udcff"}',
    "deep lists": '{"messages": ' + "[" * 100_000,
    "deep objects": '{"messages": ' + '{"a":' * 50_000 + "1" + "}" * 50_000 + "}",
}


class Beside:
    """A request that waits in the engine until it may go on, and then is answered as if it were alone."""

    def __init__(self, live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
        self._live, self._gate, step = live, threading.Event(), live.llm.engine.step
        self._expected = live.llm.chat(HELLO, max_tokens=40, temperature=0).text
        self._answers: list[str] = []

        def gated() -> bool:
            assert self._gate.wait(60)
            return step()

        monkeypatch.setattr(live.llm.engine, "step", gated)
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()
        live.wait_until(lambda: live.app.state.fewbit.open_runs == 1)

    def _ask(self) -> None:
        found = httpx.post(self._live.url + CHAT, json=RUNNING, timeout=60)
        self._answers.append(found.json()["choices"][0]["message"]["content"])

    def check(self) -> None:
        """It is still there, and now it gets its answer."""
        assert not self._answers
        assert self._live.app.state.fewbit.open_runs == 1
        self._gate.set()
        self._thread.join()
        assert self._answers == [self._expected]
        self._live.wait_until(self._live.is_idle)

    def close(self) -> None:
        self._gate.set()
        self._thread.join()


@pytest.fixture
def patient(llm: LLM) -> Iterator[Live]:
    found = Live(llm, body_idle_seconds=0.3, head_seconds=0.3)
    yield found
    found.close()


@pytest.fixture
def beside(patient: Live, monkeypatch: pytest.MonkeyPatch) -> Iterator[Beside]:
    found = Beside(patient, monkeypatch)
    yield found
    found.close()


@pytest.mark.parametrize("name", JSON_BODIES)
def test_poisoned_bodies(patient: Live, beside: Beside, name: str) -> None:
    data = JSON_BODIES[name].encode("utf-8", "surrogateescape")
    found = httpx.post(patient.url + CHAT, content=data, timeout=60)
    assert found.status_code == 400, found.text
    assert found.json()["error"]["message"]
    beside.check()


def answer(connection: socket.socket) -> tuple[str, bytes]:
    """The status of what comes until the server closes the connection, and its body."""
    connection.settimeout(60)
    data = b""
    try:
        while part := connection.recv(1 << 16):
            data += part
    except ConnectionError:  # it was still being written to
        pass
    head, _, body = data.partition(b"\r\n\r\n")
    return head.split(b" ", 2)[1].decode(), body


class Writer:
    """Writes a little, again and again, for as long as the other side takes it."""

    def __init__(self, connection: socket.socket, part: bytes) -> None:
        self.sent, self._over = 0, threading.Event()
        self._connection, self._part = connection, part
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        try:
            while not self._over.wait(0.02):
                self._connection.sendall(self._part)
                self.sent += len(self._part)
        except OSError:  # the server closed it
            pass

    def close(self) -> None:
        self._over.set()
        self._thread.join()


SLOW: dict[str, tuple[str, bytes]] = {  # what is sent at once, and what follows slowly
    "a body that stalls": (f"{HEAD}Content-Length: 100\r\n\r\n{{", b""),
    "a body byte by byte": (f"{HEAD}Content-Length: 100000\r\n\r\n{{", b" "),
    "chunks byte by byte": (f"{HEAD}Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "a body after a good start": (f"{HEAD}Content-Length: 1000000\r\n\r\n{' ' * 9000}", b" "),
    "headers that stall": (HEAD, b""),
    "headers byte by byte": (HEAD + "X-Long: ", b"x"),
}


@pytest.mark.parametrize("name", SLOW)
def test_slow_clients(patient: Live, beside: Beside, name: str) -> None:
    begin, part = SLOW[name]
    with socket.create_connection(patient.socket.getsockname()) as slow:
        slow.sendall(begin.encode())
        writer = Writer(slow, part)  # it would go on for ever
        try:
            status, said = answer(slow)
        finally:
            writer.close()
    assert status == "408"
    assert b"too slowly" in said
    beside.check()


def test_a_busy_machine_is_given_time(patient: Live) -> None:
    patient.app.state.fewbit.pauses._recent = 60.0  # as if the event loop had been late
    data = json.dumps({"messages": HELLO, "max_tokens": 1}).encode()
    with socket.create_connection(patient.socket.getsockname()) as one:
        one.sendall(f"{HEAD}Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode())
        threading.Event().wait(0.6)  # longer than a body may stall
        one.sendall(data)
        assert answer(one)[0] == "200"


def test_a_body_that_nobody_wanted_ends_its_connection(llm: LLM) -> None:
    live = Live(llm, head_seconds=0.3, api_keys=("some-secret-key",))
    try:
        with socket.create_connection(live.socket.getsockname()) as one:
            one.sendall(f"{HEAD}Content-Length: 100000\r\n\r\n".encode())
            writer = Writer(one, b" ")
            try:
                assert answer(one)[0] == "401"
            finally:
                writer.close()
    finally:
        live.close()


def test_a_connection_may_wait_between_its_requests(patient: Live) -> None:
    connection = HTTPConnection(*patient.socket.getsockname(), timeout=60)
    connection.connect()
    for _ in range(2):
        threading.Event().wait(0.5)  # longer than headers may take
        connection.request("GET", "/health")
        found = connection.getresponse()
        assert (found.status, found.read()) == (200, b'{"status":"ok"}')
    connection.close()


def test_large_bodies_that_come_steadily_are_read(patient: Live) -> None:
    data = json.dumps({"messages": HELLO, "max_tokens": 1}).encode()

    def parts(size: int, pause: float) -> Iterator[bytes]:
        yield data[:-1]
        for _ in range(8):
            threading.Event().wait(pause)
            yield b" " * size
        yield b"}"

    for size, pause in ((1 << 20, 0.0), (64 << 10, 0.1)):  # in all longer than one pause may be
        found = httpx.post(patient.url + CHAT, content=parts(size, pause), timeout=60)
        assert found.status_code == 200, found.text
