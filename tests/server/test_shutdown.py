"""The end: every request gets an answer or a last event, no traceback is written, and the process ends in time."""

from __future__ import annotations

import json
import logging
import signal
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from fewbit.llm import LLM
from fewbit.server.log import UvicornLog, use_json

from ..cli.tiny import environment, start, write_tiny
from .conftest import Live
from .test_chat import CHAT, HELLO
from .test_serve import address, serve

LONG: dict[str, Any] = {"messages": HELLO, "max_tokens": 400, "temperature": 0}
STREAMS: dict[str, tuple[dict[str, Any], str]] = {
    CHAT: ({**LONG, "stream": True}, "data: "),
    "/v1/messages": ({**LONG, "model": "tiny", "stream": True}, "data: "),
    "/v1/responses": ({"input": "hello", "max_output_tokens": 400, "stream": True}, "data: "),
    "/api/chat": ({"model": "tiny", "messages": HELLO, "options": {"num_predict": 400}}, ""),
}
SLOW_STEPS = """
import time
from fewbit.engine.engine import Engine
step = Engine.step
Engine.step = lambda self: (time.sleep(0.2), step(self))[1]
"""
SLOW_LOADS = """
import time
from fewbit.llm import llm
opened = llm.open_text_model
llm.open_text_model = lambda path: (time.sleep(600 if "late" in str(path) else 0), opened(path))[1]
"""
OPTIONS = ("--port", "0", "--ctx", "512", "--threads", "1", "--drain-seconds", "0.5")


def slow_server(how: str, *args: str) -> tuple[subprocess.Popen[bytes], str]:
    """A server in which something takes its time."""
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", f"{how}\nfrom fewbit.cli import main\nmain()", "serve", *args, *OPTIONS]
    process = subprocess.Popen(command, env=environment(), **pipes)
    return process, address(process)


def end(process: subprocess.Popen[bytes]) -> str:
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert b"Traceback" not in err, err
    return str(err.decode())


def test_running_requests_get_a_last_word(tiny_path: Path) -> None:
    process, url = slow_server(SLOW_STEPS, str(tiny_path))
    begun, answers = threading.Semaphore(0), dict[str, Any]()

    def stream(path: str) -> None:
        body, prefix = STREAMS[path]
        with httpx.stream("POST", url + path, json=body, timeout=60) as found:
            lines = []
            for line in found.iter_lines():
                lines += [line] if line.strip() else []
                if len(lines) == 1:
                    begun.release()
            answers[path] = json.loads([line for line in lines if line.startswith(prefix)][-1].removeprefix(prefix))

    def whole() -> None:
        begun.release()
        answers["whole"] = httpx.post(url + CHAT, json=LONG, timeout=60)

    threads = [threading.Thread(target=stream, args=(path,)) for path in STREAMS] + [threading.Thread(target=whole)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert begun.acquire(timeout=60)
    threading.Event().wait(0.5)  # until the last one was sent
    err = end(process)
    for thread in threads:
        thread.join()
    assert answers[CHAT]["error"]["code"] == "shutting_down"
    assert answers["/v1/messages"]["type"] == "error"
    assert answers["/v1/responses"]["type"] == "response.failed"
    assert "shutting down" in answers["/api/chat"]["error"]
    assert answers["whole"].status_code == 503
    assert answers["whole"].json()["error"]["code"] == "shutting_down"
    assert "ending requests" in err


def test_the_end_while_a_model_is_loaded(tiny_path: Path, tmp_path: Path) -> None:
    process, url = slow_server(SLOW_LOADS, str(tiny_path), str(write_tiny(tmp_path / "late.gguf")))
    answers: list[httpx.Response] = []
    waiting = threading.Thread(
        target=lambda: answers.append(httpx.post(url + CHAT, json={**LONG, "model": "late"}, timeout=60))
    )
    waiting.start()
    while httpx.get(url + "/stats").json()["requests"] == 0:
        pass
    end(process)
    waiting.join()
    assert answers[0].status_code == 503


def test_the_end_while_a_text_is_tokenized(tiny_path: Path) -> None:
    process, url = serve(str(tiny_path), "--drain-seconds", "0.5")
    body = {"prompt": "zq " * 340_000}
    answers: list[Any] = []

    def ask() -> None:
        try:
            answers.append(httpx.post(url + "/tokenize", json=body, timeout=60).status_code)
        except httpx.HTTPError as error:
            answers.append(error)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    threading.Event().wait(0.3)
    end(process)
    for thread in threads:
        thread.join()
    assert len(answers) == 6


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("--host", "0.0.0.0"), "without a key"),
        (("--tls-cert", "{file}"), "go together"),
        (("--no-key", "--api-key-file", "{keys}"), "--no-key"),
        (("--api-keys", "{keys}"), "keys"),
    ],
)
def test_options_that_are_refused(tmp_path: Path, args: tuple[str, ...], why: str) -> None:
    file, keys = tmp_path / "file", tmp_path / "keys"
    file.write_text("x")
    keys.write_text("a-key-of-mine\n")
    process = start("serve", "a.gguf", *(arg.format(file=file, keys=keys) for arg in args))
    _, err = process.communicate(timeout=60)
    assert process.returncode in (1, 2)
    assert why in err.decode()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]  # fmt: skip
    subprocess.run(made, check=True, capture_output=True)
    return cert, key


def test_tls(tiny_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    process = start(
        "serve", str(tiny_path), "--port", "0", "--ctx", "512", "--threads", "1", "--tls-cert", str(cert),
        "--tls-key", str(key),
    )  # fmt: skip
    url = address(process)
    assert url.startswith("https://")
    trusted = ssl.create_default_context(cafile=cert)
    assert httpx.get(url + "/health", verify=trusted).status_code == 200
    end(process)


def test_tls_handshakes_are_counted(llm: LLM, certificate: tuple[Path, Path]) -> None:
    cert, key = map(str, certificate)
    live = Live(llm, tls_cert=cert, tls_key=key, max_connections_per_address=2)
    try:
        silent = [socket.create_connection(live.socket.getsockname()) for _ in range(2)]
        live.wait_until(lambda: live.app.state.fewbit.connections.total() == 2)
        with socket.create_connection(live.socket.getsockname()) as one:
            one.settimeout(60)
            assert one.recv(1) == b""
        for connection in silent:
            connection.close()
        live.wait_until(lambda: not live.app.state.fewbit.connections.total())
        trusted = ssl.create_default_context(cafile=cert)
        assert httpx.get(live.url.replace("http:", "https:") + "/health", verify=trusted).status_code == 200
    finally:
        live.close()


@pytest.mark.parametrize("as_json", [False, True])
def test_what_uvicorn_says_is_in_the_log(capfd: pytest.CaptureFixture[str], as_json: bool) -> None:
    use_json(as_json)
    try:
        UvicornLog().handle(logging.makeLogRecord({"msg": "Cancel %s running task(s)", "args": (2,)}))
    finally:
        use_json(False)
    (line,) = capfd.readouterr().err.splitlines()
    if as_json:
        found = json.loads(line)
        assert (found["event"], found["reason"]) == ("uvicorn", "Cancel 2 running task(s)")
    else:
        assert line.endswith("uvicorn reason=Cancel 2 running task(s)")
