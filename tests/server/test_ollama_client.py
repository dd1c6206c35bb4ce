"""Ollama's own client, where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from .conftest import Live
from .scripted import CALL, says

ollama: Any = pytest.importorskip("ollama")

HELLO = [{"role": "user", "content": "hello"}]
OPTIONS = {"num_predict": 10, "temperature": 0}
CHAT: Any = {"model": "tiny", "messages": HELLO, "options": OPTIONS}


@pytest.fixture
def client(server: Live) -> Iterator[Any]:
    with ollama.Client(host=server.url) as found:
        yield found


def expected(server: Live) -> str:
    return server.llm.chat(HELLO, max_tokens=10, temperature=0).text


def test_chat(client: Any, server: Live) -> None:
    found = client.chat(**CHAT, keep_alive="5m", think=False)
    assert found.message.content == expected(server)
    assert (found.done_reason, found.eval_count) == ("length", 10)
    parts = list(client.chat(**CHAT, stream=True))
    assert "".join(part.message.content for part in parts) == expected(server)
    assert parts[-1].done


def test_generate(client: Any, server: Live) -> None:
    asked: Any = {"model": "tiny:latest", "prompt": "hello", "options": OPTIONS}
    found = client.generate(**asked)
    assert found.response == expected(server)
    assert "".join(part.response for part in client.generate(**asked, stream=True)) == expected(server)
    again = client.generate(model="tiny", prompt="more", context=found.context, options=ollama.Options(**OPTIONS))
    assert again.prompt_eval_count > found.prompt_eval_count
    raw = client.generate(**asked, raw=True, logprobs=True, top_logprobs=1)
    assert raw.response == server.llm.generate("hello", max_tokens=10, temperature=0).text
    assert len(raw.logprobs) == 10


def test_asynchronous_chat(server: Live) -> None:
    async def ask() -> str:
        async with ollama.AsyncClient(host=server.url) as client:
            return "".join([part.message.content async for part in await client.chat(**CHAT, stream=True)])

    assert asyncio.run(ask()) == expected(server)


def weather(city: str) -> str:
    """The weather.

    Args:
        city: where
    """
    return f"rain in {city}"


def test_tools(client: Any, server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        says(patch, server.llm, CALL)
        message = client.chat(**CHAT, tools=[weather]).message
    (call,) = message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", {"city": "Riga"})
    talk = [*HELLO, message, {"role": "tool", "tool_name": "weather", "content": weather(**call.function.arguments)}]
    assert client.chat(**{**CHAT, "messages": talk}, tools=[weather]).eval_count == 10


def test_models(client: Any) -> None:
    (listed,) = client.list().models
    assert listed.model == "tiny:latest"
    assert client.show("tiny").modelinfo["general.architecture"] == "llama"
    assert client.show("tiny").capabilities == ["completion", "tools"]
    (running,) = client.ps().models
    assert running.context_length == 1024


def test_embeddings(client: Any, server: Live) -> None:
    found = client.embed(model="tiny", input=["a", "b"])
    np.testing.assert_allclose(found.embeddings, server.llm.embed(["a", "b"]), rtol=1e-5)
    np.testing.assert_allclose(client.embeddings("tiny", "a").embedding, server.llm.embed("a"), rtol=1e-5)


def test_errors(client: Any) -> None:
    for call in (
        lambda: client.pull("other"),
        lambda: client.push("other"),
        lambda: client.create("new", from_="tiny"),
        lambda: client.copy("tiny", "new"),
        lambda: client.delete("tiny"),
    ):
        with pytest.raises(ollama.ResponseError, match="is not supported"):
            call()
    with pytest.raises(ollama.ResponseError, match="there is no model"):
        client.chat(model="none", messages=HELLO)
