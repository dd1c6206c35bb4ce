"""Tools over the chat API: what the template is told, and calls in what the model writes."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from fewbit.llm import LLM, Completion, TextDelta

from ..cli.tiny import write_tiny
from .conftest import client_of
from .test_chat import CHAT, HELLO, chunks

TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}\n{% endfor %}"
)
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
WRITTEN = 'Let me see. <tool_call>{"name": "add", "arguments": {"x": 1}}</tool_call>'


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = write_tiny(tmp_path_factory.mktemp("models") / "caller.gguf", TEMPLATE)
    with LLM(path, ctx=1024, threads=1) as found:
        yield found


@pytest.fixture
def writer(caller: LLM, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """A server whose model writes a tool call."""

    async def parts() -> AsyncGenerator[TextDelta, None]:
        for letter in WRITTEN:
            yield TextDelta(0, letter, [1])
        yield TextDelta(0, "", [], completion=Completion(WRITTEN, [1] * len(WRITTEN), "stop"))

    async def aparts(self: LLM, prompts: Any, **options: Any) -> AsyncGenerator[TextDelta, None]:
        return parts()

    monkeypatch.setattr(LLM, "aparts", aparts)
    return client_of(caller)


def test_a_call_is_found(writer: TestClient) -> None:
    choice = writer.post(CHAT, json={"messages": HELLO, "tools": TOOLS}).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    (call,) = choice["message"]["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "add")
    assert json.loads(call["function"]["arguments"]) == {"x": 1}


def test_a_call_in_a_stream(writer: TestClient) -> None:
    found = chunks(writer.post(CHAT, json={"messages": HELLO, "tools": TOOLS, "stream": True}).text)
    deltas = [chunk["choices"][0]["delta"] for chunk in found]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Let me see."
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert {call["index"] for call in calls} == {0}
    assert [call["function"].get("name") for call in calls].count("add") == 1
    assert json.loads("".join(call["function"]["arguments"] for call in calls)) == {"x": 1}
    assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("more", [{}, {"tools": TOOLS, "tool_choice": "none"}])
def test_without_tools_it_is_text(writer: TestClient, more: dict[str, Any]) -> None:
    choice = writer.post(CHAT, json={"messages": HELLO, **more}).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == WRITTEN
    assert "tool_calls" not in choice["message"]


def test_the_template_is_told_of_tools_calls_and_results(caller: LLM) -> None:
    client = client_of(caller)
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
    said = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "41"},
    ]
    found = client.post("/tokenize", json={"messages": said, "tools": TOOLS}).json()["tokens"]
    text = client.post("/detokenize", json={"tokens": found}).json()["prompt"]
    assert '"name": "add"' in text
    assert "tool: 41" in text
    assert text.index("parameters") < text.index("hello") < text.index("41")
    assert client.post(CHAT, json={"messages": said, "tools": TOOLS, "max_tokens": 2}).status_code == 200


def test_a_model_that_cannot_chat_says_so(tmp_path: Path) -> None:
    with LLM(write_tiny(tmp_path / "plain.gguf", None), ctx=256, threads=1) as llm:
        found = client_of(llm).post(CHAT, json={"messages": HELLO})
    assert found.status_code == 400
    assert "/v1/completions" in found.json()["error"]["message"]
