from __future__ import annotations

import json
from typing import Any

from starlette.testclient import TestClient

from fewbit.llm import LLM

from .conftest import GREEDY

HELLO = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"


def chunks(text: str) -> list[dict[str, Any]]:
    """The events of a stream, which ends with [DONE]."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_an_answer_is_that_of_the_model(client: TestClient, llm: LLM) -> None:
    answer = client.post(CHAT, json={"model": "tiny", "messages": HELLO, **GREEDY})
    assert answer.status_code == 200, answer.text
    found, expected = answer.json(), llm.chat(HELLO, **GREEDY)
    assert found["choices"][0]["message"]["content"] == expected.text
    assert found["choices"][0]["finish_reason"] == "length"
    assert found["usage"]["completion_tokens"] == 8
    assert found["usage"]["prompt_tokens"] == expected.prompt_tokens


def test_a_stream_gives_the_same_text(client: TestClient, llm: LLM) -> None:
    body = {"model": "tiny", "messages": HELLO, "stream": True, "stream_options": {"include_usage": True}, **GREEDY}
    found = chunks(client.post(CHAT, json=body).text)
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in found[:-1])
    assert text == llm.chat(HELLO, **GREEDY).text
    assert found[-1]["usage"]["completion_tokens"] == 8
    assert found[-2]["choices"][0]["finish_reason"] == "length"
