"""Anthropic's own client, where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import Live
from .scripted import CALL, SCHEMA, says

anthropic: Any = pytest.importorskip("anthropic")

HELLO = [{"role": "user", "content": "hello"}]
ASKED: Any = {"model": "tiny", "max_tokens": 10, "messages": HELLO, "extra_body": {"temperature": 0}}
TOOL: Any = {"name": "weather", "description": "It.", "input_schema": SCHEMA}


@pytest.fixture
def client(server: Live) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as found:
        yield found


def expected(server: Live) -> str:
    return server.llm.chat(HELLO, max_tokens=10, temperature=0).text


def test_messages(client: Any, server: Live) -> None:
    found = client.messages.create(**ASKED, system="", metadata={"user_id": "u"})
    assert found.content[0].text == expected(server)
    assert found.stop_reason == "max_tokens"
    assert found.usage.output_tokens == 10


def test_raw_stream(client: Any, server: Live) -> None:
    found = list(client.messages.create(**ASKED, stream=True))
    assert [found[0].type, found[-1].type] == ["message_start", "message_stop"]
    text = "".join(one.delta.text for one in found if one.type == "content_block_delta")
    assert text == expected(server)


def test_stream_helper(client: Any, server: Live) -> None:
    with client.messages.stream(**ASKED) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text == message.content[0].text == expected(server)
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 10


def test_asynchronous_stream(server: Live) -> None:
    async def ask() -> str:
        client = anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0)
        async with client, client.messages.stream(**ASKED) as stream:
            return "".join([text async for text in stream.text_stream])

    assert asyncio.run(ask()) == expected(server)


def test_tools(client: Any, server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        says(patch, server.llm, "Hm. ", CALL)
        found = client.messages.create(**ASKED, tools=[TOOL], tool_choice={"type": "auto"})
        with client.messages.stream(**ASKED, tools=[TOOL]) as stream:
            streamed = stream.get_final_message()
    for message in (found, streamed):
        assert message.stop_reason == "tool_use"
        assert (message.content[1].name, message.content[1].input) == ("weather", {"city": "Riga"})
    result = {"type": "tool_result", "tool_use_id": found.content[1].id, "content": "rain"}
    talk = [*HELLO, {"role": "assistant", "content": found.content}, {"role": "user", "content": [result]}]
    after = client.messages.create(**{**ASKED, "messages": talk}, tools=[TOOL])
    assert after.usage.output_tokens == 10


def test_count_tokens(client: Any, server: Live) -> None:
    found = client.messages.count_tokens(model="tiny", messages=HELLO)
    assert found.input_tokens == server.llm.count_tokens(HELLO)


def test_errors(client: Any) -> None:
    with pytest.raises(anthropic.NotFoundError, match="there is no model"):
        client.messages.create(**{**ASKED, "model": "none"})
    with pytest.raises(anthropic.BadRequestError, match="there are no tools"):
        client.messages.create(**ASKED, tool_choice={"type": "any"})
