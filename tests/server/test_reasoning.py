"""Thoughts apart from answers, in all APIs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from fewbit.llm import LLM

from ..cli.tiny import write_tiny
from .conftest import client_of
from .scripted import events, quick_ends, says
from .test_chat import chunks

HELLO = [{"role": "user", "content": "hello"}]
OPENS = (
    "{% for m in messages %}{{ m.role }}: "
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: <think>{% if enable_thinking is false %}"
    "</think>{% endif %}{% endif %}"
)
NUMBER = {"type": "integer", "minimum": 10, "maximum": 99}
CHAT, RESPONSES, MESSAGES, OLLAMA = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"
THINKS = {"type": "enabled", "budget_tokens": 1024}
PARTS = ("One and", " one.</th", "ink>\n\n", "It is", " 2.")


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", OPENS)
    with LLM(path, ctx=1024, threads=1, batch_invariant=True) as found:
        yield found


@pytest.fixture
def writer(thinker: LLM, monkeypatch: pytest.MonkeyPatch) -> LLM:
    says(monkeypatch, thinker, *PARTS)
    return thinker


def test_openai_chat(writer: LLM) -> None:
    client = client_of(writer)
    found = client.post(CHAT, json={"messages": HELLO}).json()
    message = found["choices"][0]["message"]
    assert (message["reasoning_content"], message["reasoning"]) == ("One and one.", "One and one.")
    assert message["content"] == "It is 2."
    assert found["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}
    without = client.post(CHAT, json={"messages": HELLO, "include_reasoning": False}).json()["choices"][0]["message"]
    assert "reasoning_content" not in without
    streamed = chunks(client.post(CHAT, json={"messages": HELLO, "stream": True}).text)
    deltas = [one["choices"][0]["delta"] for one in streamed]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "One and one."
    assert "".join(delta.get("content") or "" for delta in deltas) == "It is 2."
    assert len([delta for delta in deltas if "reasoning_content" in delta]) > 1


def test_responses(writer: LLM) -> None:
    client = client_of(writer)
    found = client.post(RESPONSES, json={"input": "hello"}).json()
    thought, message = found["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "One and one."}]
    assert message["content"][0]["text"] == "It is 2."
    assert found["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}
    streamed = events(client.post(RESPONSES, json={"input": "hello", "stream": True}).text)
    deltas = [data["delta"] for name, data in streamed if name == "response.reasoning_text.delta"]
    assert "".join(deltas) == "One and one."
    assert [data["output_index"] for name, data in streamed if name == "response.output_item.done"] == [0, 1]


def test_anthropic(writer: LLM) -> None:
    client, asked = client_of(writer), {"model": "tiny", "messages": HELLO, "max_tokens": 64, "thinking": THINKS}
    thought, text = client.post(MESSAGES, json=asked).json()["content"]
    assert (thought["type"], thought["thinking"], text["text"]) == ("thinking", "One and one.", "It is 2.")
    assert thought["signature"]
    streamed = events(client.post(MESSAGES, json={**asked, "stream": True}).text)
    deltas = [data["delta"] for name, data in streamed if name == "content_block_delta"]
    kinds = [*dict.fromkeys(delta["type"] for delta in deltas)]
    assert kinds == ["thinking_delta", "signature_delta", "text_delta"]
    assert "".join(delta.get("thinking", "") for delta in deltas) == "One and one."
    del asked["thinking"]  # clients that did not ask expect a text first
    (text,) = client.post(MESSAGES, json=asked).json()["content"]
    assert text == {"type": "text", "text": "It is 2.", "citations": None}


@pytest.mark.parametrize("path", [OLLAMA, "/api/generate"])
def test_ollama(writer: LLM, path: str) -> None:
    asked = {"model": "tiny", **({"messages": HELLO} if path == OLLAMA else {"prompt": "hello"})}
    found = client_of(writer).post(path, json={**asked, "stream": False}).json()
    record = found["message"] if path == OLLAMA else found
    assert record["thinking"] == "One and one."
    assert record["content" if path == OLLAMA else "response"] == "It is 2."
    lines = [json.loads(line) for line in client_of(writer).post(path, json=asked).text.splitlines()]
    records = [line["message"] if path == OLLAMA else line for line in lines]
    assert "".join(one.get("thinking", "") for one in records) == "One and one."


@pytest.mark.parametrize(("path", "more"), [
    (CHAT, {"reasoning_effort": "none"}), (CHAT, {"enable_thinking": False}),
    (CHAT, {"thinking": {"type": "disabled"}}),
    (RESPONSES, {"reasoning": {"effort": "none"}}), (MESSAGES, {"thinking": {"type": "disabled"}}),
    (OLLAMA, {"think": False}),
])  # fmt: skip
def test_thoughts_can_be_turned_off(thinker: LLM, monkeypatch: pytest.MonkeyPatch, path: str, more: Any) -> None:
    says(monkeypatch, thinker, "It is 2.")
    body = {"model": "tiny", "stream": False, **({"input": "hello"} if path == RESPONSES else {"messages": HELLO})}
    found = client_of(thinker).post(path, json={**body, **({"max_tokens": 9} if path == MESSAGES else {}), **more})
    assert "It is 2." in found.text
    assert "thinking" not in found.json().get("message", {})
    assert '"reasoning_content"' not in found.text
    assert "reasoning_text" not in found.text


FORMATS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": HELLO, "guided_json": NUMBER, "reasoning_budget": 5}),
    (CHAT, {"messages": HELLO, "guided_json": NUMBER, "thinking_token_budget": 5}),
    (RESPONSES, {"input": "hello", "reasoning": {"max_tokens": 5}, "text": {
        "format": {"type": "json_schema", "name": "n", "schema": NUMBER}}}),
    (MESSAGES, {"model": "tiny", "messages": HELLO, "max_tokens": 100, "thinking": {**THINKS, "budget_tokens": 5},
                "output_config": {"format": {"type": "json_schema", "schema": NUMBER}}}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), FORMATS)
def test_a_thought_is_ended_by_its_budget_and_the_format_begins_after_it(
    thinker: LLM, path: str, body: dict[str, Any]
) -> None:
    found = client_of(thinker).post(path, json=body).json()
    if path == CHAT:
        message = found["choices"][0]["message"]
        thought, text = message["reasoning_content"], message["content"]
        assert found["choices"][0]["finish_reason"] == "stop"
    elif path == RESPONSES:
        thought, text = (item["content"][0]["text"] for item in found["output"])
    else:
        thought, text = found["content"][0]["thinking"], found["content"][1]["text"]
    assert thought
    assert 10 <= int(text) <= 99


def test_a_model_that_may_think_may_answer_at_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The template only names the tag: a reply may begin with it, or with the answer in its format."""
    template = OPENS.replace("assistant: <think>", "assistant: ")
    path = write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", template)
    with LLM(path, ctx=1024, threads=1, batch_invariant=True) as llm:
        body = {"messages": HELLO, "guided_json": NUMBER, "reasoning_budget": 3, "max_tokens": 50}
        for seed in range(6):
            found = client_of(llm).post(CHAT, json={**body, "seed": seed, "temperature": 2}).json()["choices"][0]
            assert 10 <= int(found["message"]["content"]) <= 99
        begin = llm.grammars.vocabulary.marker("<think>")
        bias = {str(token): 100 for token in begin}
        found = client_of(llm).post(CHAT, json={**body, "logit_bias": bias, "temperature": 0}).json()["choices"][0]
        assert found["message"]["reasoning_content"]
        assert 10 <= int(found["message"]["content"]) <= 99


def test_what_was_thought_reaches_the_template(thinker: LLM) -> None:
    client = client_of(thinker)
    thought = {"role": "assistant", "content": "2", "reasoning_content": "one and one"}
    expected = thinker.count_tokens([*HELLO, thought, *HELLO])
    body: dict[str, Any] = {"messages": [*HELLO, thought, *HELLO]}
    assert len(client.post("/tokenize", json=body).json()["tokens"]) == expected
    blocks = [{"type": "thinking", "thinking": "one and one", "signature": "x"}, {"type": "text", "text": "2"}]
    body = {"model": "tiny", "messages": [*HELLO, {"role": "assistant", "content": blocks}, *HELLO]}
    assert client.post("/v1/messages/count_tokens", json=body).json()["input_tokens"] == expected
    items = [
        *HELLO,
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "one and one"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "2"}]},
        *HELLO,
    ]
    assert client.post(f"{RESPONSES}/input_tokens", json={"input": items}).json()["input_tokens"] == expected


HARMONY = (
    "{% for t in tools or [] %}tool: {{ t | tojson }}\n{% endfor %}{% for m in messages %}"
    "<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}<|start|>assistant{# <|channel|> #}"
)


@pytest.fixture(scope="module")
def harmony(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", HARMONY)
    with LLM(path, ctx=1024, threads=1, batch_invariant=True) as found:
        yield found


def test_channels_of_harmony(harmony: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "<|channel|>analysis<|message|>One and one.<|end|><|start|>assistant<|channel|>final<|message|>It is 2."
    says(monkeypatch, harmony, said[:40], said[40:])
    message = client_of(harmony).post(CHAT, json={"messages": HELLO}).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("One and one.", "It is 2.")


def test_a_format_begins_in_the_final_channel(harmony: LLM) -> None:
    body = {"messages": HELLO, "guided_json": NUMBER, "reasoning_budget": 0, "max_tokens": 100}
    choice = client_of(harmony).post(CHAT, json=body).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert 10 <= int(choice["message"]["content"][-2:]) <= 99


def test_a_call_that_must_come_in_a_channel(harmony: LLM) -> None:
    schema = {"type": "object", "properties": {"n": NUMBER}, "required": ["n"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    body = {"messages": HELLO, "tools": tools, "tool_choice": "required", "max_tokens": 200, "temperature": 0}
    ends = {str(token): bias for token, bias in quick_ends(harmony).items()}
    bias = {**ends, str(harmony.tokenize("a")[0]): -100}  # no analysis: random weights would not end it
    found = client_of(harmony).post(CHAT, json={**body, "logit_bias": bias}).json()["choices"][0]
    (call,) = found["message"]["tool_calls"]
    assert 10 <= json.loads(call["function"]["arguments"])["n"] <= 99
    assert client_of(harmony).post(CHAT, json={**body, "tool_choice": "auto", "max_tokens": 9}).status_code == 200
