"""Large texts hold up nobody: they are refused before they are tokenized, and what is not has threads of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from fewbit.llm import LLM
from fewbit.server import text_work
from fewbit.server.text_work import Lane, TextWork, in_daemon

from .conftest import Live, client_of
from .test_chat import CHAT, HELLO
from .test_connections import raw

ZOO = Path(__file__).parents[1] / "zoo"


@pytest.fixture(scope="module")
def bert() -> Iterator[LLM]:
    with LLM(ZOO / "bert" / "model.gguf", threads=1) as found:
        yield found


PATHS: dict[str, Any] = {
    "/v1/embeddings": {"input": "{text}"},
    "/tokenize": {"prompt": "{text}"},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": [{"role": "user", "content": "{text}"}]},
    "/v1/responses/input_tokens": {"input": "{text}"},
    "/v1/completions": {"prompt": "{text}"},
    "/api/generate": {"model": "tiny", "prompt": "{text}", "raw": True},
    CHAT: {"messages": [{"role": "system", "content": "{text}"}]},
    "/v1/messages": {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "{text}"}]},
}


def filled(value: Any, text: str) -> Any:
    if isinstance(value, dict):
        return {name: filled(one, text) for name, one in value.items()}
    if isinstance(value, list):
        return [filled(one, text) for one in value]
    return text if value == "{text}" else value


@pytest.mark.parametrize("path", PATHS)
def test_texts_that_cannot_fit_are_not_tokenized(
    client: TestClient, llm: LLM, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    lengths: list[int] = []
    encode = llm.tokenizer._encoder

    class Watched:
        adds_space, lost_bytes = encode.adds_space, encode.lost_bytes

        def __call__(self, text: str) -> list[int]:
            lengths.append(len(text))
            return encode(text)

    monkeypatch.setattr(llm.tokenizer, "_encoder", Watched())
    found = client.post(path, json=filled(PATHS[path], " " * 3_000_000))
    assert found.status_code == 400, found.text
    assert "too long" in found.text or "maximum context length" in found.text
    assert max(lengths, default=0) < 1_000_000


def test_an_encoder_reads_the_beginning_of_what_is_too_long(bert: LLM) -> None:
    client = client_of(bert)
    name, texts = bert.model_name, ["the cat " * 2_000_000, "x" * 4_000_000]
    found = client.post("/api/embed", json={"model": name, "input": texts[:1]})
    assert found.status_code == 200
    assert found.json()["prompt_eval_count"] == bert.engine.max_length
    found = client.post("/api/embed", json={"model": name, "input": texts[0], "truncate": False})
    assert found.status_code == 400
    found = client.post("/api/embed", json={"model": name, "input": texts[1]})  # one word
    assert found.json()["prompt_eval_count"] == bert.engine.max_length


def test_chats_go_on_while_large_texts_are_tokenized(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight of them, of one client, and then none of them has a reader any more."""
    begun, gate = threading.Semaphore(0), threading.Event()
    tokenize = LLM.tokenize

    def stuck(self: LLM, text: str, *more: Any, **options: Any) -> list[int]:
        begun.release()
        assert gate.wait(60)
        return tokenize(self, text, *more, **options)

    monkeypatch.setattr(LLM, "tokenize", stuck)
    large = [raw(live, {"prompt": "x " * 100_000}, "/tokenize") for _ in range(8)]
    assert begun.acquire(timeout=60)
    try:
        for _ in range(3):
            found = httpx.post(live.url + CHAT, json={"messages": HELLO, "max_tokens": 2}, timeout=60)
            assert found.status_code == 200
        assert not begun.acquire(blocking=False)  # one client has one thread for large texts
        for connection in large:
            connection.close()
        live.wait_until(lambda: not live.app.state.fewbit.bodies)  # nobody waits any more, though one is tokenized
    finally:
        gate.set()
    live.wait_until(lambda: not text_work.is_busy())
    assert not begun.acquire(blocking=False)  # those that nobody waits for never began


def test_a_client_gets_its_share_of_the_threads() -> None:
    order: list[str] = []

    async def main() -> None:
        lane = Lane(threads=2, per_client=1)
        await lane.enter("a")

        async def enter(client: str) -> None:
            await lane.enter(client)
            order.append(client)

        waiting = [asyncio.create_task(enter(client)) for client in ("a", "a", "b", "c")]
        await asyncio.sleep(0.05)
        assert order == ["b"]
        waiting[0].cancel()
        lane.leave("a")
        await asyncio.sleep(0.05)
        assert order == ["b", "a"]
        lane.leave("b")
        await asyncio.gather(*waiting[1:])
        assert order == ["b", "a", "c"]
        assert waiting[0].cancelled()

    asyncio.run(main())


def test_whoever_leaves_gives_the_thread_back_when_it_is_done() -> None:
    gate = threading.Event()

    async def main() -> None:
        work = TextWork()
        first = asyncio.create_task(work.run("a", 1 << 20, gate.wait))
        await asyncio.sleep(0.05)
        first.cancel()
        second = asyncio.create_task(work.run("a", 1 << 20, lambda: "done"))
        await asyncio.sleep(0.05)
        assert not second.done()
        gate.set()
        assert await second == "done"
        with pytest.raises(ZeroDivisionError):
            await in_daemon(lambda: 1 // 0)

    asyncio.run(main())


def test_many_messages_and_bodies_are_refused(llm: LLM) -> None:
    client = client_of(llm, max_messages=3, max_bodies_bytes=2000)
    found = client.post(CHAT, json={"messages": HELLO * 4})
    assert found.status_code == 400
    assert "at most 3" in found.text
    assert client.post("/v1/embeddings", json={"input": [1, 2, 3, 4]}).status_code == 200
    found = client.post(CHAT, json={"messages": [{"role": "user", "content": "x" * 1000}]})
    assert found.status_code == 503
    assert found.headers["retry-after"]
    assert client.post(CHAT, json={"messages": HELLO, "max_tokens": 1}).status_code == 200
