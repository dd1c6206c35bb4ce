"""Tools that a template ignores, and answers that are continued, in all APIs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from fewbit.llm import LLM
from fewbit.server.ignored import HEADER
from fewbit.server.prompts import ChatInput, chat_prompt, count_tokens

from ..cli.tiny import write_tiny
from .conftest import client_of
from .scripted import CALL, SCHEMA, says

HELLO = [{"role": "user", "content": "hello"}]
GREEDY: dict[str, Any] = {"max_tokens": 8, "temperature": 0}
FUNCTION = {"name": "weather", "description": "It.", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "tools": [TOOL]},
    "/v1/responses": {"input": "hello", "tools": [{"type": "function", **FUNCTION}]},
    "/v1/messages": {
        "model": "tiny", "messages": HELLO, "max_tokens": 8, "tools": [{"name": "weather", "input_schema": SCHEMA}]
    },
    "/api/chat": {"model": "tiny", "messages": HELLO, "tools": [TOOL], "stream": False},
}  # fmt: skip


@pytest.mark.parametrize("path", ASKED)
def test_tools_that_the_template_ignores_are_left_out(client: TestClient, path: str) -> None:
    found = client.post(path, json=ASKED[path])
    assert found.status_code == 200, found.text
    assert found.headers[HEADER] == "tools"


@pytest.mark.parametrize("path", ASKED)
def test_tools_that_the_template_ignores_can_be_described(llm: LLM, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, llm, "Hm. ", CALL)
    found = client_of(llm, tools_without_template="prompt").post(path, json=ASKED[path])
    assert found.status_code == 200, found.text
    assert HEADER not in found.headers
    assert "Riga" in found.text
    assert "<tool_call>" not in found.text


def test_the_description_of_tools(llm: LLM) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Riga"}'}}
    talk = [
        {"role": "system", "content": "Be brief."},
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "rain"},
    ]
    asked = ChatInput(talk, [TOOL], policy="prompt")
    text = llm.detokenize(chat_prompt(llm, asked).tokens)
    assert text.startswith("system: You can call these functions:\n" + json.dumps(FUNCTION))
    assert "answer as usual.\n\nBe brief.\nuser: hello\n" in text
    assert CALL.replace(">{", ">\n{").replace("}<", "}\n<") in text
    assert "user: <tool_response>\nrain\n</tool_response>" in text
    assert count_tokens(llm, asked) == len(chat_prompt(llm, asked).tokens)
    left_out = ChatInput(talk, [TOOL], policy="omit")
    assert count_tokens(llm, left_out) == llm.count_tokens(talk)


def test_a_template_without_system_messages(tmp_path: Path) -> None:
    with LLM(write_tiny(tmp_path / "tiny.gguf", NO_SYSTEM), ctx=1024, threads=1) as llm:
        prompt = chat_prompt(llm, ChatInput(HELLO, [TOOL], policy="prompt"))
        assert llm.detokenize(prompt.tokens).startswith("user: You can call")


def test_tools_that_the_template_knows_are_its_own(tool_llm: LLM) -> None:
    prompt = chat_prompt(tool_llm, ChatInput(HELLO, [TOOL], policy="prompt"))
    assert prompt.tokens == tool_llm.chat_prompt(HELLO, tools=[TOOL])
    assert (prompt.tools, prompt.ignored) == ([TOOL], [])


@pytest.fixture(scope="module")
def chat_llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", NO_SYSTEM)
    with LLM(path, ctx=1024, threads=1, batch_invariant=True) as found:
        yield found


def test_the_last_message_of_the_assistant_is_continued(chat_llm: LLM) -> None:
    client, talk = client_of(chat_llm), [*HELLO, {"role": "assistant", "content": "I think"}]
    expected = chat_llm.chat(talk, continue_final_message=True, **GREEDY).text
    assert expected != chat_llm.chat(talk, **GREEDY).text
    found = client.post("/v1/chat/completions", json={"messages": talk, **GREEDY}).json()
    assert found["choices"][0]["message"]["content"] == expected
    found = client.post("/v1/messages", json={"model": "tiny", "messages": talk, **GREEDY}).json()
    assert found["content"][0]["text"] == expected
    options = {"num_predict": 8, "temperature": 0}
    asked = {"model": "tiny", "messages": talk, "options": options, "stream": False}
    assert client.post("/api/chat", json=asked).json()["message"]["content"] == expected
    asked = {"input": talk, "max_output_tokens": 8, "temperature": 0}
    assert client.post("/v1/responses", json=asked).json()["output"][0]["content"][0]["text"] == expected
    count = client.post("/v1/messages/count_tokens", json={"model": "tiny", "messages": talk}).json()
    assert count["input_tokens"] == len(chat_llm.chat_prompt(talk, continue_final_message=True))


def test_clients_can_say_whether_to_continue(chat_llm: LLM) -> None:
    client, talk = client_of(chat_llm), [*HELLO, {"role": "assistant", "content": "I think"}]

    def text(status: int = 200, messages: Any = talk, **more: Any) -> str:
        found = client.post("/v1/chat/completions", json={"messages": messages, **GREEDY, **more})
        assert found.status_code == status, found.text
        return "" if status != 200 else str(found.json()["choices"][0]["message"]["content"])

    new = chat_llm.chat(talk, **GREEDY).text
    assert text(continue_final_message=False) == text(add_generation_prompt=True) == new
    assert text(continue_final_message=True, add_generation_prompt=False) == text() != new
    text(400, continue_final_message=True, add_generation_prompt=True)
    text(400, messages=HELLO, continue_final_message=True)
    bare = chat_llm.chat(HELLO, template={"add_generation_prompt": False}, **GREEDY).text
    assert text(messages=HELLO, add_generation_prompt=False) == bare
    empty = [*HELLO, {"role": "assistant", "content": ""}]
    assert text(messages=empty) == chat_llm.chat(HELLO, **GREEDY).text
