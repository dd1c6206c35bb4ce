"""Calls that are forced, named, single or strict, in all APIs: grammars alone hold a model with random weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from jsonschema import validate
from starlette.testclient import TestClient

from fewbit.llm import LLM

from .conftest import client_of
from .scripted import events, says
from .test_chat import chunks
from .tool_model import write_tool_model

HELLO = [{"role": "user", "content": "hello"}]
MONTHS = {
    "type": "object",
    "properties": {"city": {"enum": ["Riga", "Oslo"]}, "month": {"type": "integer", "minimum": 1, "maximum": 12}},
    "required": ["city", "month"],
    "additionalProperties": False,
}
UNIQUE = {**MONTHS, "properties": {**MONTHS["properties"], "days": {"type": "array", "uniqueItems": True}}}  # type: ignore[dict-item]
NAMES = ("rain", "snow")
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"

Calls = list[tuple[str, dict[str, Any]]]


def asked(path: str, choice: Any = None, schema: dict[str, Any] = MONTHS, **more: Any) -> dict[str, Any]:
    """A request of an API with two tools."""
    strict = {"strict": more.pop("strict")} if "strict" in more else {}
    if path == MESSAGES:
        tools: list[dict[str, Any]] = [{"name": name, "input_schema": schema, **strict} for name in NAMES]
        body: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 200}
    else:
        described = [{"name": name, "parameters": schema, **strict} for name in NAMES]
        tools = [{"type": "function", **({"function": one} if path == CHAT else one)} for one in described]
        body = {"messages": HELLO, "max_tokens": 200, "seed": 3} if path == CHAT else {"input": "hello"}
    return {**body, "tools": tools, **({} if choice is None else {"tool_choice": choice}), **more}


def openai_calls(found: dict[str, Any]) -> Calls:
    message = found["choices"][0]["message"]
    functions = [call["function"] for call in message.get("tool_calls", ())]
    return [(one["name"], json.loads(one["arguments"])) for one in functions]


def response_calls(found: dict[str, Any]) -> Calls:
    calls = [item for item in found["output"] if item["type"] == "function_call"]
    return [(one["name"], json.loads(one["arguments"])) for one in calls]


def anthropic_calls(found: dict[str, Any]) -> Calls:
    return [(one["name"], one["input"]) for one in found["content"] if one["type"] == "tool_use"]


READERS: dict[str, Callable[[dict[str, Any]], Calls]] = {
    CHAT: openai_calls, RESPONSES: response_calls, MESSAGES: anthropic_calls
}  # fmt: skip


@pytest.fixture(scope="module")
def tool_llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = write_tool_model(tmp_path_factory.mktemp("models") / "tiny.gguf")
    with LLM(path, ctx=2048, threads=1, batch_invariant=True) as found:
        yield found


@pytest.fixture
def tool_client(tool_llm: LLM) -> TestClient:
    return client_of(tool_llm)


def calls_of(client: TestClient, path: str, body: dict[str, Any]) -> Calls:
    found = client.post(path, json=body)
    assert found.status_code == 200, found.text
    return READERS[path](found.json())


REQUIRED: list[tuple[str, Any]] = [(CHAT, "required"), (RESPONSES, "required"), (MESSAGES, {"type": "any"})]
SINGLE: dict[str, dict[str, Any]] = {
    CHAT: {"parallel_tool_calls": False},
    RESPONSES: {"parallel_tool_calls": False},
    MESSAGES: {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
}


@pytest.mark.parametrize(("path", "choice"), REQUIRED)
def test_one_call_that_must_come(tool_client: TestClient, path: str, choice: Any) -> None:
    ((name, arguments),) = calls_of(tool_client, path, asked(path, choice) | SINGLE[path])
    assert name in NAMES
    validate(arguments, MONTHS)


@pytest.mark.parametrize(("path", "choice"), [
    (CHAT, {"type": "function", "function": {"name": "snow"}}),
    (CHAT, {"type": "allowed_tools", "allowed_tools": {
        "mode": "required", "tools": [{"type": "function", "function": {"name": "snow"}}]}}),
    (RESPONSES, {"type": "function", "name": "snow"}),
    (RESPONSES, {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "snow"}]}),
    (MESSAGES, {"type": "tool", "name": "snow", "disable_parallel_tool_use": True}),
])  # fmt: skip
def test_a_call_by_name(tool_client: TestClient, path: str, choice: Any) -> None:
    single = {} if path == MESSAGES else SINGLE[path]
    ((name, arguments),) = calls_of(tool_client, path, asked(path, choice) | single)
    assert name == "snow"
    validate(arguments, MONTHS)


def test_several_calls_are_all_held(tool_client: TestClient) -> None:
    for name, arguments in calls_of(tool_client, CHAT, asked(CHAT, "required", max_tokens=400)):
        assert name in NAMES
        validate(arguments, MONTHS)


def test_arguments_are_streamed(tool_client: TestClient) -> None:
    body = asked(CHAT, "required", stream=True, parallel_tool_calls=False)
    deltas = [one["choices"][0]["delta"] for one in chunks(tool_client.post(CHAT, json=body).text)]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert len(calls) > 1
    assert [bool(call.get("id")) for call in calls].count(True) == 1
    validate(json.loads("".join(call["function"]["arguments"] for call in calls)), MONTHS)
    body = asked(MESSAGES, {"type": "any", "disable_parallel_tool_use": True}, stream=True)
    found = [data["delta"] for name, data in events(tool_client.post(MESSAGES, json=body).text)
             if name == "content_block_delta"]  # fmt: skip
    assert len(found) > 1
    validate(json.loads("".join(delta["partial_json"] for delta in found)), MONTHS)


@pytest.mark.parametrize("path", READERS)
def test_a_call_that_may_come_is_held_from_its_beginning(
    tool_llm: LLM, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The grammar begins when the model has begun a call: here the bias makes it begin one at once."""
    token = tool_llm.tokenize("<tool_call>")
    found: list[Any] = []
    generation = tool_llm.engine.generation

    def watched(*given: Any, **options: Any) -> Any:
        constraint = options["constraint"]()
        for one in token:
            constraint.accept(one)
        found.append(constraint.mask())
        return generation(*given, **options)

    monkeypatch.setattr(tool_llm.engine, "generation", watched)
    assert client_of(tool_llm).post(path, json=asked(path)).status_code == 200
    (mask,) = found
    allowed = {token for token in range(tool_llm.tokenizer.vocab_size) if int(mask[token // 32]) >> (token % 32) & 1}
    texts = {tool_llm.tokenizer.token_text(one) for one in allowed}
    assert "x" not in texts
    assert any(text.startswith(("{", "Ċ", "Ġ")) for text in texts)


@pytest.mark.parametrize("path", READERS)
def test_a_strict_tool_with_what_cannot_be_held_is_refused_by_name(tool_client: TestClient, path: str) -> None:
    found = tool_client.post(path, json=asked(path, schema=UNIQUE, strict=True))
    assert found.status_code == 400
    assert "uniqueItems" in found.json()["error"]["message"]
    assert "rain" in found.json()["error"]["message"]
    assert tool_client.post(path, json=asked(path, schema=UNIQUE)).status_code == 200
    assert tool_client.post(path, json=asked(path, strict=True)).status_code == 200


def test_no_call_where_one_must_come_is_no_success(tool_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, tool_llm, "I will not.")
    found = client_of(tool_llm).post(CHAT, json=asked(CHAT, "required")).json()["choices"][0]
    assert found["finish_reason"] == "invalid"
    assert "call" in found["error"]["message"]


def test_a_call_that_must_come_is_told_where_the_template_ignores_tools(client: TestClient) -> None:
    ((name, arguments),) = calls_of(client, CHAT, asked(CHAT, "required") | SINGLE[CHAT])
    assert name in NAMES
    validate(arguments, MONTHS)


def test_a_format_and_tools(tool_llm: LLM, tool_client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model may call, or answer in the format."""
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": MONTHS}}
    body = asked(CHAT, "auto", response_format=schema, temperature=2)
    for seed in range(5):
        found = tool_client.post(CHAT, json={**body, "seed": seed}).json()["choices"][0]
        assert found["finish_reason"] in ("stop", "tool_calls")
        for call in found["message"].get("tool_calls", ()):
            validate(json.loads(call["function"]["arguments"]), MONTHS)
        if found["finish_reason"] == "stop":
            validate(json.loads(found["message"]["content"]), MONTHS)


@pytest.mark.parametrize("schema", [
    {"type": "thing"}, {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}},
    {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)b"}}},
    {"type": "object", "not": {"required": ["a"]}, "properties": {"a": {"oneOf": [{"type": "null"}, {"not": {}}]}}},
])  # fmt: skip
def test_a_schema_that_is_wrong_or_too_hard_keeps_no_answer_from_being_written(
    tool_client: TestClient, schema: dict[str, Any]
) -> None:
    """Agents bring tools of others."""
    assert tool_client.post(CHAT, json=asked(CHAT, schema=schema, max_tokens=4)).status_code == 200
