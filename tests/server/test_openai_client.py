"""OpenAI's own client, where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from fewbit.llm import LLM

from .conftest import Live
from .test_chat import HELLO

openai: Any = pytest.importorskip("openai")

GREEDY: Any = {"model": "tiny", "temperature": 0, "max_tokens": 10}


@pytest.fixture(scope="module")
def live_server(llm: LLM) -> Iterator[Live]:
    found = Live(llm)
    yield found
    found.close()


@pytest.fixture
def client(live_server: Live) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{live_server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def test_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("none")


def test_chat(client: Any, llm: LLM) -> None:
    expected = llm.chat(HELLO, temperature=0, max_tokens=10)
    found = client.chat.completions.create(messages=HELLO, logprobs=True, top_logprobs=3, **GREEDY)
    assert found.choices[0].message.content == expected.text
    assert found.usage.total_tokens == expected.prompt_tokens + 10
    assert len(found.choices[0].logprobs.content) == 10
    assert all(len(one.top_logprobs) == 3 for one in found.choices[0].logprobs.content)
    raw = client.chat.completions.with_raw_response.create(messages=HELLO, **GREEDY)
    assert raw.parse().choices[0].message.content == expected.text


def test_chat_stream(client: Any, llm: LLM) -> None:
    expected = llm.chat(HELLO, temperature=0, max_tokens=10)
    with client.chat.completions.create(
        messages=HELLO, stream=True, stream_options={"include_usage": True}, **GREEDY
    ) as stream:
        found = list(stream)
    text = "".join(choice.delta.content or "" for chunk in found for choice in chunk.choices)
    assert text == expected.text
    assert found[-1].usage.completion_tokens == 10
    stop = expected.text[4]
    with client.chat.completions.stream(messages=HELLO, stop=stop, **GREEDY) as helper:
        final = helper.get_final_completion().choices[0]
    assert (final.finish_reason, final.message.content) == ("stop", expected.text.partition(stop)[0])


def test_several_answers(client: Any) -> None:
    found = client.chat.completions.create(model="tiny", messages=HELLO, n=3, seed=1, max_completion_tokens=8)
    again = client.chat.completions.create(model="tiny", messages=HELLO, n=3, seed=1, max_completion_tokens=8)
    texts = [choice.message.content for choice in found.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert len(set(texts)) == 3


def test_completions(client: Any, llm: LLM) -> None:
    found = client.completions.create(prompt=["a", "b"], **GREEDY)
    assert [choice.text for choice in found.choices] == [
        llm.generate(text, temperature=0, max_tokens=10).text for text in "ab"
    ]
    text = "".join(chunk.choices[0].text for chunk in client.completions.create(prompt="a", stream=True, **GREEDY))
    assert text == found.choices[0].text
    scored = client.completions.create(prompt="abc", echo=True, logprobs=0, **{**GREEDY, "max_tokens": 1})
    assert scored.choices[0].logprobs.token_logprobs[1:3] == llm.score("abc").tolist()


def test_errors(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as found:
        client.chat.completions.create(messages=HELLO, functions=[{"name": "f"}], **GREEDY)
    assert found.value.code == "unsupported_parameter"
    assert "functions" in found.value.message
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="none", messages=HELLO)
    for prompt in ("x" * 100_000, [1] * 1024, [1] * 1025):
        with pytest.raises(openai.BadRequestError, match="This model's maximum context length is 1024 tokens") as found:
            client.completions.create(model="tiny", prompt=prompt)
        assert found.value.code == "context_length_exceeded"


def test_the_async_client_and_a_stream_that_is_left(live_server: Live) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{live_server.url}/v1", api_key="none") as client:
            answers = await asyncio.gather(
                *(client.chat.completions.create(messages=HELLO, **GREEDY) for _ in range(8))
            )
            assert len({answer.choices[0].message.content for answer in answers}) == 1
            stream = await client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=900, stream=True)
            async for _ in stream:
                break
            await stream.close()

    asyncio.run(main())
    live_server.wait_until(live_server.is_idle)
