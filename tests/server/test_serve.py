"""The commands: `fewbit serve` in a process of its own, and those that ask it."""

from __future__ import annotations

import json
import re
import select
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from fewbit.cli.printer import figures
from fewbit.cli.remote import RemoteModel, RemoteServer
from fewbit.errors import FetchError

from ..cli.tiny import start, write_tiny
from .test_chat import CHAT, HELLO

ADDRESS = re.compile(rb"at (https?://\S+);")


@pytest.fixture(scope="module")
def other_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "other.gguf", seed=1)


def serve(*args: str, port: int = 0) -> tuple[subprocess.Popen[bytes], str]:
    process = start("serve", *args, "--port", str(port), "--ctx", "512", "--threads", "1")
    return process, address(process)


def address(process: subprocess.Popen[bytes]) -> str:
    """Where it serves, when it does."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if found := ADDRESS.search(line):
            return found[1].decode()
    raise AssertionError(b"".join(lines))


def test_how_lenient_it_is_can_be_said(tiny_path: Path) -> None:
    process, url = serve(str(tiny_path), "--strict", "--tools-without-template", "refuse", "--allow-changes")
    try:
        unknown = httpx.post(f"{url}{CHAT}", json={"messages": HELLO, "fancy": 1})
        assert "fancy is not supported" in unknown.text
        tools = [{"type": "function", "function": {"name": "f"}}]
        assert "ignores tools" in httpx.post(f"{url}{CHAT}", json={"messages": HELLO, "tools": tools}).text
        assert httpx.post(f"{url}/v1/models/load", json={"model": "tiny"}).json() == {"success": True}
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


@pytest.mark.parametrize(
    ("options", "part", "pause", "status"),
    [
        (("--max-body", "1"), b"", 600.0, b" 413 "),
        (("--body-idle", "0.2", "--min-body-rate", "1"), b"", 600.0, b" 408 "),
        (("--body-idle", "1", "--min-body-rate", "1000000"), b" " * 1000, 0.05, b" 408 "),
    ],
)
def test_limits_of_uploads(tiny_path: Path, options: tuple[str, ...], part: bytes, pause: float, status: bytes) -> None:
    """A body that is too large, one that stops, and one that comes steadily and too slowly."""
    process, url = serve(str(tiny_path), *options)
    try:
        with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port)) as client:
            client.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2000000\r\n\r\n{{".encode())
            while not select.select([client], [], [], pause)[0]:
                client.sendall(part)
            assert status in client.recv(100)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def run(*args: str, given: bytes = b"") -> tuple[int, str, str]:
    process = start(*args)
    out, said = process.communicate(given, timeout=120)
    return process.returncode, out.decode(), said.decode()


@pytest.fixture(scope="module")
def server(tiny_path: Path, other_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    process, url = serve(str(tiny_path), f"second={other_path}", "--log-json", "--api-key-file", str(_keys(keys)))
    yield url
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    lines = [json.loads(line) for line in said.splitlines()]
    assert {"request"} == {line["event"] for line in lines}
    assert b"hello" not in said  # what was asked stays between the two
    assert not any("a-key" in json.dumps(line) for line in lines)


def _keys(path: Path) -> Path:
    path.write_text("# mine\na-key-of-mine\n")
    return path


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWBIT_API_KEY", "a-key-of-mine")


def test_models_come_when_they_are_asked_for(server: str) -> None:
    with httpx.Client(base_url=server, headers={"Authorization": "Bearer a-key-of-mine"}, timeout=60) as client:
        before = {one["id"]: one["loaded"] for one in client.get("/v1/models").json()["data"]}
        assert before == {"tiny": True, "second": False}
        texts = [
            client.post(CHAT, json={"model": name, "messages": HELLO, "temperature": 0, "max_tokens": 9}).json()
            for name in ("tiny", "second")
        ]
        assert [one["model"] for one in texts] == ["tiny", "second"]
        assert texts[0]["choices"][0]["message"] != texts[1]["choices"][0]["message"]
        assert all(one["loaded"] for one in client.get("/v1/models").json()["data"])


def test_ps(server: str) -> None:
    status, out, said = run("ps", "--server", server, "--seconds", "0.1", "--json")
    assert status == 0, said
    assert {model["model"] for model in json.loads(out)["models"]} == {"tiny", "second"}
    status, out, _ = run("ps", "--server", server, "--seconds", "0.1")
    assert status == 0
    assert "tokens/s" in out


def test_chat_with_a_server(server: str, tiny_path: Path) -> None:
    options = ("--json", "--temp", "0", "--max-tokens", "7")
    status, out, said = run("chat", "--server", server, *options, given=b"hello\nand more\n")
    assert status == 0, said
    _, here, _ = run("chat", str(tiny_path), *options, "--ctx", "512", given=b"hello\nand more\n")
    ours, theirs = ([json.loads(line) for line in text.splitlines()] for text in (here, out))
    assert [one["tokens"] for one in theirs] == [one["tokens"] for one in ours]
    assert [one["text"] for one in theirs] == [one["text"] for one in ours]


def test_run_asks_a_server(server: str, tiny_path: Path) -> None:
    options = ("--json", "--temp", "0", "-n", "7")
    for args in (("hello",), ("hello", "--system", "Be brief."), ("hello", "--raw"), ("hello", "--stop", "a")):
        status, out, said = run("run", "--server", server, *args, *options)
        assert status == 0, said
        _, here, _ = run("run", str(tiny_path), *args, *options, "--ctx", "512")
        names = ("model", "text", "tokens", "finish_reason", "prompt_tokens")
        assert [json.loads(out)[name] for name in names] == [json.loads(here)[name] for name in names]
    status, out, said = run("run", "--server", server, "second", "-q", "-n", "3", given=b"from a pipe")
    assert (status, said) == (0, "")
    assert out


def test_run_asks_a_server_that_only_speaks_openais_api(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fewbit's own endpoints tell is done without."""

    def get(self: RemoteServer, path: str, body: object = None) -> object:
        if path == "/tokenize":
            raise FetchError("the server answered with status 404")
        return whole(self, path, body)

    whole = RemoteServer.get
    monkeypatch.setattr(RemoteServer, "get", get)
    model = RemoteModel(RemoteServer(server))
    assert model.ctx is None
    stream = model.chat(HELLO, max_tokens=5, temperature=0)
    text = "".join(stream)
    assert text == stream.completion.text
    assert stream.completion.tokens == []
    assert figures(stream.completion).startswith("prompt: ")


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("run", "--server", "http://127.0.0.1:1", "hi"), "does not answer"),
        (("run", "--server", "{server}", "none", "hi"), "has no model 'none'"),
        (("run", "--server", "{server}", "hi", "--threads", "1"), "--threads is for models that are loaded here"),
        (("run", "--server", "{server}", "hi", "there", "you"), "needs quotes"),
        (("chat", "--server", "http://127.0.0.1:1"), "does not answer"),
        (("chat", "--server", "ftp://x"), "is not the address of a server"),
        (("chat", "--server", "{server}", "none"), "has no model 'none'"),
        (("chat", "--server", "{server}", "--ctx", "5"), "--ctx is for models that are loaded here"),
        (("ps", "--server", "http://127.0.0.1:1"), "is `fewbit serve` running?"),
        (("serve", "nothing.gguf"), "nothing.gguf"),
        (("serve", "a.gguf", "b/a.gguf"), "two models are called 'a'"),
        (("serve", "a.gguf", "--pin", "b"), "there is no model 'b'"),
        (("serve", "--api-key-file", "/nothing/here"), "No such file"),
        (("serve", "a.gguf", "--max-seconds", "nan"), "--max-seconds"),
    ],
)
def test_mistakes_get_one_sentence(server: str, args: tuple[str, ...], why: str) -> None:
    status, out, said = run(*(arg.format(server=server) for arg in args))
    assert status in (1, 2)
    assert out == ""
    assert said.count("\n") == 1
    assert why in said


def test_a_port_that_is_taken(tiny_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, _, said = run("serve", str(tiny_path), "--port", str(taken.getsockname()[1]))
    assert status == 1
    assert "try another --port" in said


def test_prompts_are_found_again_after_a_restart(tiny_path: Path, tmp_path: Path) -> None:
    body = {"prompt": "a long prompt, " * 28, "max_tokens": 1}
    cached = []
    for _ in range(2):
        process, url = serve(str(tiny_path), "--cache-dir", str(tmp_path / "kept"))
        found = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()
        cached.append(found["usage"]["prompt_tokens_details"]["cached_tokens"])
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert cached[0] == 0
    assert cached[1] > 0


@pytest.mark.parametrize("text", ["", "# only this\n", "short\n", "has a space in it\n"])
def test_key_files_that_hold_no_key(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys").write_text(text)
    status, _, said = run("serve", "--api-key-file", str(tmp_path / "keys"))
    assert status == 1
    assert "key" in said
