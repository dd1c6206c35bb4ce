"""Responses and embeddings by OpenAI's own client, where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from .conftest import Live
from .scripted import CALL, SCHEMA, says

openai: Any = pytest.importorskip("openai")

HELLO = [{"role": "user", "content": "hello"}]
ASKED: Any = {"model": "tiny", "input": "hello", "temperature": 0, "max_output_tokens": 10}
TOOL: Any = {"type": "function", "name": "weather", "description": "It.", "parameters": SCHEMA, "strict": False}


@pytest.fixture
def client(server: Live) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def expected(server: Live) -> str:
    return server.llm.chat(HELLO, max_tokens=10, temperature=0).text


def test_responses(client: Any, server: Live) -> None:
    found = client.responses.create(**ASKED)
    assert found.output_text == expected(server)
    assert (found.status, found.usage.output_tokens) == ("incomplete", 10)
    assert client.responses.retrieve(found.id).output_text == found.output_text
    (item,) = client.responses.input_items.list(found.id)
    assert item.content[0].text == "hello"
    after = client.responses.create(**{**ASKED, "input": "more"}, previous_response_id=found.id)
    plain = [*HELLO, {"role": "assistant", "content": found.output_text}, {"role": "user", "content": "more"}]
    assert after.output_text == server.llm.chat(plain, max_tokens=10, temperature=0).text
    client.responses.delete(found.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(found.id)
    with pytest.raises(openai.BadRequestError, match="to go on from"):
        client.responses.create(**ASKED, previous_response_id=found.id)


def test_output_goes_back_as_input(client: Any) -> None:
    found = client.responses.create(**ASKED, store=False)
    said = [*HELLO, *found.output, {"role": "user", "content": "more"}]
    assert client.responses.create(**{**ASKED, "input": said}).usage.output_tokens == 10


def test_raw_stream(client: Any, server: Live) -> None:
    found = list(client.responses.create(**ASKED, stream=True))
    assert [found[0].type, found[-1].type] == ["response.created", "response.incomplete"]
    assert "".join(one.delta for one in found if one.type == "response.output_text.delta") == expected(server)
    assert [one.sequence_number for one in found] == list(range(len(found)))


def test_stream_helper(client: Any, server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, server.llm, "Hm. ", CALL)
    with client.responses.stream(**ASKED, tools=[TOOL]) as stream:
        kinds = {one.type for one in stream}
        response = stream.get_final_response()
    assert {"response.output_text.done", "response.function_call_arguments.done", "response.completed"} <= kinds
    message, call = response.output
    assert message.content[0].text == "Hm."
    assert (call.name, call.arguments) == ("weather", '{"city": "Riga"}')


def test_asynchronous_responses(server: Live) -> None:
    async def ask() -> str:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            return str((await client.responses.create(**ASKED)).output_text)

    assert asyncio.run(ask()) == expected(server)


def test_input_tokens(client: Any, server: Live) -> None:
    found = client.responses.input_tokens.count(model="tiny", input="hello")
    assert found.input_tokens == server.llm.count_tokens(HELLO)


def test_embeddings(client: Any, server: Live) -> None:
    for more in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        found = client.embeddings.create(model="tiny", input=["a", "b"], **more)
        assert found.usage.total_tokens == 2
        if "base64" not in more.values():
            rows = [one.embedding for one in found.data]
            np.testing.assert_allclose(rows, server.llm.embed(["a", "b"]), rtol=1e-5)


def test_errors(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="tool_choice asks for a call, and there are no tools"):
        client.responses.create(**ASKED, tool_choice="required")
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model="tiny", input="a", dimensions=4096)
