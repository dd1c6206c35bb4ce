"""Images in requests, in the shape of each API."""

from __future__ import annotations

import base64
import io
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from PIL import Image
from starlette.testclient import TestClient

import fewbit as fb
from fewbit.server import anthropic_types, image_fetch, openai_responses_types
from fewbit.server.app import make_app
from fewbit.server.image_fetch import fetch_image
from fewbit.server.images import RequestImage
from fewbit.server.local import LocalBackend
from fewbit.server.pool import Pool
from fewbit.server.settings import Settings

from ..models.vision.zoo import golden, opened, question

NAME = "gemma3"


@pytest.fixture(scope="module")
def llm() -> Iterator[fb.LLM]:
    with opened(f"{NAME}/model.gguf") as found:
        yield found


def client_of(llm: fb.LLM, **settings: Any) -> TestClient:
    pool = Pool({"tiny": "tiny.gguf"}, lambda source: llm)
    pool.entries["tiny"].backend = LocalBackend(llm, "tiny")
    return TestClient(make_app(Settings(**settings), pool), base_url="http://127.0.0.1:8000")


@pytest.fixture(scope="module")
def client(llm: fb.LLM) -> Iterator[TestClient]:
    with client_of(llm) as found:
        yield found


def encoded(key: str, kind: str = "PNG") -> str:
    out = io.BytesIO()
    Image.fromarray(golden(NAME)[key]).save(out, kind)
    return base64.b64encode(out.getvalue()).decode()


def data_url(key: str) -> str:
    return f"data:image/png;base64,{encoded(key)}"


@pytest.fixture(scope="module")
def expected(llm: fb.LLM) -> str:
    return str(llm.chat(question(NAME), max_tokens=12, temperature=0).text)


def test_openai_chat(client: TestClient, expected: str) -> None:
    parts = [
        {"type": "text", "text": "One:"},
        {"type": "image_url", "image_url": {"url": data_url("first"), "detail": "high"}},
        {"type": "image_url", "image_url": {"url": data_url("second")}},
        {"type": "text", "text": "What is it?"},
    ]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 12, "temperature": 0}
    found = client.post("/v1/chat/completions", json=body).json()
    assert found["choices"][0]["message"]["content"] == expected
    assert found["usage"]["prompt_tokens"] == len(golden(NAME)["tokens"])
    again = client.post("/v1/chat/completions", json=body).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32
    count = client.post("/tokenize", json={"messages": body["messages"]}).json()
    assert count["tokens"] == golden(NAME)["tokens"].tolist()


def test_responses(client: TestClient, expected: str) -> None:
    parts = [
        {"type": "input_text", "text": "One:"},
        {"type": "input_image", "image_url": data_url("first")},
        {"type": "input_image", "image_url": data_url("second"), "detail": "low"},
        {"type": "input_text", "text": "What is it?"},
    ]
    body = {"input": [{"role": "user", "content": parts}], "max_output_tokens": 12, "temperature": 0}
    found = client.post("/v1/responses", json=body).json()
    assert found["output"][0]["content"][0]["text"] == expected
    items = client.get(f"/v1/responses/{found['id']}/input_items").json()["data"]
    assert items[0]["content"][1] == {"type": "input_image", "image_url": data_url("first"), "detail": "auto"}
    later = {"input": "And?", "previous_response_id": found["id"], "max_output_tokens": 4, "temperature": 0}
    assert client.post("/v1/responses", json=later).status_code == 200


def test_anthropic_messages(client: TestClient, expected: str) -> None:
    source = {"type": "base64", "media_type": "image/png"}
    blocks = [
        {"type": "text", "text": "One:"},
        {"type": "image", "source": {**source, "data": encoded("first")}},
        {"type": "image", "source": {**source, "data": encoded("second")}},
        {"type": "text", "text": "What is it?"},
    ]
    body = {"model": "tiny", "messages": [{"role": "user", "content": blocks}], "max_tokens": 12, "temperature": 0}
    found = client.post("/v1/messages", json=body).json()
    assert found["content"][0]["text"] == expected
    count = {"model": "tiny", "messages": body["messages"]}
    tokens = client.post("/v1/messages/count_tokens", json=count).json()["input_tokens"]
    assert tokens == len(golden(NAME)["tokens"])


def test_images_in_results_of_tools_follow_them(llm: fb.LLM) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": encoded("first")}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": source}]}
    text = {**result, "content": [{"type": "text", "text": "a.png"}, *result["content"]]}
    messages = msgspec.convert(
        [{"role": "user", "content": [result]}, {"role": "user", "content": [text, {"type": "text", "text": "Look."}]}],
        list[anthropic_types.InputMessage],
    )
    found = anthropic_types.template_messages(None, messages)
    image = RequestImage(encoded("first"), is_url=False)
    assert found == [
        {"role": "tool", "tool_call_id": "t", "content": "The image follows."},
        {"role": "user", "content": [{"type": "image", "image": image}]},
        {"role": "tool", "tool_call_id": "t", "content": "a.png"},
        {"role": "user", "content": [{"type": "image", "image": image}, "Look."]},
    ]
    part = {"type": "input_image", "image_url": data_url("first")}
    item = {"type": "function_call_output", "call_id": "t", "output": [{"type": "input_text", "text": "a.png"}, part]}
    items = openai_responses_types.items_of(msgspec.convert([item], list[openai_responses_types.Item]))
    assert openai_responses_types.template_messages(items) == [
        {"role": "tool", "tool_call_id": "t", "content": "a.png"},
        {"role": "user", "content": [{"type": "image", "image": RequestImage(data_url("first"))}]},
    ]
    assert len(llm.take_images(found)) == 4


def test_ollama(client: TestClient, llm: fb.LLM) -> None:
    images, options = [encoded("first"), encoded("second")], {"num_predict": 12, "temperature": 0}
    message = {"role": "user", "content": "What is it?", "images": images}
    found = client.post("/api/chat", json={"model": "tiny", "messages": [message], "stream": False, "options": options})
    parts = [golden(NAME)["first"], golden(NAME)["second"], "What is it?"]
    answer = llm.chat([{"role": "user", "content": parts}], max_tokens=12, temperature=0)
    assert found.json()["message"]["content"] == answer.text
    body = {"model": "tiny", "prompt": "What is it?", "images": images, "stream": False, "options": options}
    assert client.post("/api/generate", json=body).json()["response"] == answer.text


def post_image(client: TestClient, url: Any) -> Any:
    parts = [{"type": "image_url", "image_url": {"url": url}}]
    return client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": parts}], "max_tokens": 2})


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://example.com/a.png", "--allow-image-urls"),
        ("file:///etc/passwd", "--allow-image-urls"),
        ("/etc/passwd", "--allow-image-urls"),
        ("data:image/png,abc", "base64"),
        ("data:image/png;base64,%%%", "base64"),
        ("data:image/png;base64,aGVsbG8=", "no image of a known format"),
        ("", "needs a URL"),
    ],
)
def test_what_is_no_image_is_refused(client: TestClient, url: str, reason: str) -> None:
    answer = post_image(client, url)
    assert answer.status_code == 400
    assert reason in answer.json()["error"]["message"]


def test_a_model_that_reads_text_only_says_so(llm: fb.LLM) -> None:
    with opened(f"{NAME}/model.gguf", mmproj="off") as blind, client_of(blind) as client:
        answer = post_image(client, data_url("first"))
    assert answer.status_code == 400
    assert "reads text only" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/a.png", "http://localhost:8000/a", "http://[::1]/", "http://169.254.169.254/latest/meta-data/",
        "http://10.0.0.1/", "http://192.168.1.1/a.png", "http://[::ffff:127.0.0.1]/", "http://0.0.0.0/", "http://0/",
        "http://2130706433/", "http://100.64.0.1/", "http://[fe80::1]/", "http://224.0.0.1/", "http://[2002:7f00:1::]/",
        "http://[64:ff9b::10.0.0.1]/", "http://[::127.0.0.1]/", "http://[fd00::1]/", "http://0x7f.1/", "http://127.1/",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public_are_not_asked(llm: fb.LLM, url: str) -> None:
    answer = post_image(client_of(llm, allow_image_urls=True), url)
    assert answer.status_code == 400
    assert "public" in answer.json()["error"]["message"] or "not known" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "url", ["ftp://example.com/a", "http://user@example.com/", "http://", "http://a b/", "http://x:99999/"]
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(fb.ImageError, match="URL"):
        fetch_image(url)


class Web:
    """Stands for the web: what each host answers, all of them on this machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, addresses: dict[str, str]) -> None:
        self.asked: list[str] = []
        self.addresses = addresses
        monkeypatch.setattr(image_fetch.socket, "getaddrinfo", self.resolve)
        monkeypatch.setattr(image_fetch, "_connect", self.connect)
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}

    def resolve(self, host: str, port: int, **_: Any) -> Any:
        return [(2, 1, 6, "", (self.addresses[host], port))]

    def connect(self, scheme: str, host: str, port: int, end: float) -> Any:
        image_fetch.public_address(host, port)
        return Connection(self, f"{scheme}://{host}")


class Connection:
    sock = None

    def __init__(self, web: Web, base: str) -> None:
        self.web, self.base = web, base

    def request(self, method: str, target: str, headers: dict[str, str]) -> None:
        self.web.asked.append(self.base + target)
        self.status, self.headers, body = self.web.answers[self.base + target]
        self.body = io.BytesIO(body)

    def getresponse(self) -> Any:
        return self

    def read1(self, size: int) -> bytes:
        return self.body.read(size)

    def close(self) -> None:
        pass


def test_images_are_fetched_where_that_is_allowed(llm: fb.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    web = Web(monkeypatch, {"a.example": "1.1.1.1", "b.example": "9.9.9.9"})
    web.answers["https://a.example/x?y=1"] = 302, {"Location": "http://b.example/z"}, b""
    web.answers["http://b.example/z"] = 200, {}, base64.b64decode(encoded("first"))
    assert post_image(client_of(llm, allow_image_urls=True), "https://a.example/x?y=1").status_code == 200
    assert web.asked == ["https://a.example/x?y=1", "http://b.example/z"]


def test_redirects_are_checked_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    web = Web(monkeypatch, {"a.example": "1.1.1.1", "inside.example": "10.1.2.3"})
    web.answers["http://a.example/"] = 302, {"Location": "http://inside.example/"}, b""
    with pytest.raises(fb.ImageError, match="not public"):
        fetch_image("http://a.example/")
    web.answers["http://a.example/loop"] = 307, {"Location": "/loop"}, b""
    with pytest.raises(fb.ImageError, match="redirects more than 3 times"):
        fetch_image("http://a.example/loop")
    assert web.asked == ["http://a.example/"] + ["http://a.example/loop"] * 4


def test_what_is_fetched_has_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    web = Web(monkeypatch, {"a.example": "1.1.1.1"})
    monkeypatch.setattr(image_fetch, "MAX_BYTES", 1000)
    web.answers["http://a.example/large"] = 200, {}, bytes(1001)
    web.answers["http://a.example/gone"] = 404, {}, b""
    with pytest.raises(fb.ImageError, match="larger than"):
        fetch_image("http://a.example/large")
    with pytest.raises(fb.ImageError, match="status 404"):
        fetch_image("http://a.example/gone")
    web.answers["http://a.example/small"] = 200, {}, bytes(10)
    with pytest.raises(fb.ImageError, match="took longer"):
        fetch_image("http://a.example/small", seconds=0)


def test_an_address_is_public_only_if_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(2, 1, 6, "", ("1.1.1.1", 80)), (2, 1, 6, "", ("127.0.0.1", 80))]
    monkeypatch.setattr(image_fetch.socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(fb.ImageError, match="not public"):
        image_fetch.public_address("mixed.example", 80)


def test_a_name_that_changes_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: the address that was checked is the one that is connected to."""
    answers, connected = iter(["1.1.1.1", "127.0.0.1"]), []

    def connect(address: Any, timeout: float) -> Any:
        connected.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(image_fetch.socket, "getaddrinfo", lambda *_, **__: [(2, 1, 6, "", (next(answers), 80))])
    monkeypatch.setattr(image_fetch.socket, "create_connection", connect)
    with pytest.raises(fb.ImageError, match="could not be fetched: ConnectionRefusedError"):
        fetch_image("http://changes.example/a.png")
    with pytest.raises(fb.ImageError, match="not public"):
        fetch_image("http://changes.example/a.png")
    assert connected == [("1.1.1.1", 80)]


class Host:
    """A server of this machine that stands for one of the web: it reads a request, and answers with parts of bytes."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self.parts, self.asked = parts, b""
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.answer, daemon=True).start()

    def answer(self) -> None:
        with self.socket, suppress(OSError), self.socket.accept()[0] as client:
            self.asked = client.recv(1 << 16)
            for part in self.parts:
                client.sendall(part)


@pytest.fixture
def open_web(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_fetch, "is_public", lambda address: True)


@pytest.mark.usefixtures("open_web")
def test_images_come_over_http() -> None:
    host = Host([b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", b"ab", b"cd"])
    assert fetch_image(f"http://127.0.0.1:{host.port}/\u00e9 b".replace(" ", "%20") + "?q=1") == b"abcd"
    assert host.asked.startswith(b"GET /%C3%A9%20b?q=1 HTTP/1.1\r\n")
    assert f"Host: 127.0.0.1:{host.port}".encode() in host.asked


def drip(head: bytes) -> Iterator[bytes]:
    yield head
    while True:
        time.sleep(0.02)
        yield b"x"


@pytest.mark.usefixtures("open_web")
@pytest.mark.parametrize("head", [b"HT", b"HTTP/1.1 200 OK\r\nA: ", b"HTTP/1.1 200 OK\r\n\r\n"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_what_comes_drop_by_drop_has_an_end(head: bytes, scheme: str) -> None:
    host = Host(drip(head))
    with pytest.raises(fb.ImageError, match=r"took longer|could not be fetched: SSLError"):
        fetch_image(f"{scheme}://127.0.0.1:{host.port}/", seconds=0.3)


def test_all_images_of_a_request_share_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    clock = iter([0.0, 9.0, 9.0, 18.0, 18.0, 27.0, 27.0, 30.0])

    def fetch(url: str, seconds: float) -> bytes:
        given.append(seconds)
        return b""

    monkeypatch.setattr(image_fetch, "fetch_image", fetch)
    monkeypatch.setattr(image_fetch, "time", SimpleNamespace(monotonic=lambda: next(clock)))  # not of all threads
    shared = image_fetch.FetchTime()
    for _ in range(4):
        shared.fetch("http://a.example/")
    assert given == [10.0, 10.0, 10.0, 3.0]
