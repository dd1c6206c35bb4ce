"""Images through `fewbit serve` in a process of its own, as clients of each API send them."""

from __future__ import annotations

import base64
import json
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from ..cli.tiny import start
from ..images.hostile import noise, saved
from ..models.vision.zoo import FOLDER
from .test_images import data_url, encoded
from .test_serve import address

MODEL = str(FOLDER / "gemma3" / "model.gguf")
GREEDY: dict[str, Any] = {"max_tokens": 8, "temperature": 0}


@contextmanager
def serving(*options: str) -> Iterator[httpx.Client]:
    process = start("serve", MODEL, "--port", "0", "--threads", "1", *options)
    try:
        with httpx.Client(base_url=address(process), timeout=300) as client:
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with serving() as found:
        yield found


def count(client: httpx.Client, name: str) -> int:
    found = re.search(rf"^fewbit_{name}_total\{{.*\}} (\S+)$", client.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def openai_image(key: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(key), "detail": "auto"}}


def anthropic_image(key: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded(key)}}


def test_each_image_of_a_conversation_is_encoded_once(client: httpx.Client) -> None:
    talk = [
        {"role": "user", "content": [openai_image("first"), {"type": "text", "text": "What is it?"}]},
        {"role": "assistant", "content": "A"},
        {"role": "user", "content": [{"type": "text", "text": "And"}, openai_image("second"), openai_image("first")]},
    ]
    before = [count(client, name) for name in ("images_encoded", "images_reused", "prefix_hits")]
    answers = [client.post("/v1/chat/completions", json={"messages": talk, **GREEDY}).json() for _ in range(2)]
    assert answers[0]["choices"][0]["message"] == answers[1]["choices"][0]["message"]
    assert answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16
    after = [count(client, name) for name in ("images_encoded", "images_reused", "prefix_hits")]
    assert after[0] - before[0] == 2
    assert after[1] - before[1] == 3
    assert after[2] > before[2]
    expected = answers[0]["choices"][0]["message"]["content"]
    lines = client.post("/v1/chat/completions", json={"messages": talk, "stream": True, **GREEDY}).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(one["choices"][0]["delta"].get("content") or "" for one in chunks if one["choices"]) == expected


def test_all_apis_give_the_same_answer(client: httpx.Client) -> None:
    question = "What is it?"
    chat = {"messages": [{"role": "user", "content": [openai_image("first"), {"type": "text", "text": question}]}]}
    parts = [{"type": "input_image", "image_url": data_url("first")}, {"type": "input_text", "text": question}]
    blocks = [anthropic_image("first"), {"type": "text", "text": question}]
    message = {"role": "user", "content": question, "images": [encoded("first")]}
    options = {"num_predict": 8, "temperature": 0}
    responses = {"input": [{"role": "user", "content": parts}], "max_output_tokens": 8, "temperature": 0}
    anthropic = {"model": "model", "messages": [{"role": "user", "content": blocks}], **GREEDY}
    ollama = {"model": "model", "messages": [message], "stream": False, "options": options}
    found = [
        client.post("/v1/chat/completions", json={**chat, **GREEDY}).json()["choices"][0]["message"]["content"],
        client.post("/v1/responses", json=responses).json()["output"][0]["content"][0]["text"],
        client.post("/v1/messages", json=anthropic).json()["content"][0]["text"],
        client.post("/api/chat", json=ollama).json()["message"]["content"],
    ]
    assert len({*found}) == 1
    assert "vision" in client.post("/api/show", json={"model": "model"}).json()["capabilities"]


def test_clients_at_once_share_an_encoding(client: httpx.Client) -> None:
    url = f"data:image/png;base64,{base64.b64encode(saved(noise(40, 30))).decode()}"
    body = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}], **GREEDY}
    before = count(client, "images_encoded")
    with ThreadPoolExecutor(3) as pool:
        answers = [*pool.map(lambda _: client.post("/v1/chat/completions", json=body).json(), range(3))]
    assert len({one["choices"][0]["message"]["content"] for one in answers}) == 1
    assert count(client, "images_encoded") == before + 1


def asked(image: str) -> list[tuple[str, dict[str, Any]]]:
    """A request of each API with the URL of an image."""
    chat = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": image}}]}]
    parts = [{"role": "user", "content": [{"type": "input_image", "image_url": image}]}]
    source = {"type": "url", "url": image}
    return [
        ("/v1/chat/completions", {"messages": chat, "max_tokens": 1}),
        ("/v1/responses", {"input": parts, "max_output_tokens": 1}),
        ("/v1/messages", {"model": "model", "messages": [
            {"role": "user", "content": [{"type": "image", "source": source}]}], "max_tokens": 1}),
    ]  # fmt: skip


def refused(client: httpx.Client, path: str, body: dict[str, Any], status: int = 400) -> str:
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    return str(error if isinstance(error, str) else error["message"])


def test_urls_are_fetched_where_that_is_allowed_and_never_from_inside(client: httpx.Client) -> None:
    for path, body in asked("https://example.com/a.png"):
        assert "--allow-image-urls" in refused(client, path, body)
    with serving("--allow-image-urls") as open_client:
        own = str(open_client.base_url).rstrip("/")
        for url in (f"{own}/health", "http://169.254.169.254/latest/meta-data/", "http://[64:ff9b::7f00:1]/"):
            for path, body in asked(url):
                assert "not public" in refused(open_client, path, body)


def test_a_model_without_an_encoder_says_so() -> None:
    with serving("--mmproj", "off") as blind:
        requests = asked(data_url("first"))
        requests.append(("/api/chat", {"model": "model", "messages": [
            {"role": "user", "content": "a", "images": [encoded("first")]}]}))  # fmt: skip
        for path, body in requests:
            assert "reads text only" in refused(blind, path, body)
        assert "vision" not in blind.post("/api/show", json={"model": "model"}).json()["capabilities"]


def test_bodies_have_a_limit(client: httpx.Client) -> None:
    large = "data:image/png;base64," + "A" * (17 << 20)
    for path, body in asked(large):
        assert "too large" in refused(client, path, body, 413)


def test_too_many_images_are_refused(client: httpx.Client) -> None:
    parts = [openai_image("first")] * 65
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 1}
    assert "64 images, not 65" in refused(client, "/v1/chat/completions", body)
