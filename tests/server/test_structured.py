"""Formats of answers in all APIs: JSON, schemas, regexes, texts to choose from and grammars."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import validate
from starlette.testclient import TestClient

from fewbit.llm import LLM

from .conftest import Live, client_of
from .scripted import events, says
from .test_chat import chunks

HELLO = [{"role": "user", "content": "hello"}]
PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Alan"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
UNIQUE = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2, "uniqueItems": True}
BROKEN = "has non-unique elements"
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, OLLAMA, GENERATE, INFILL = "/v1/messages", "/api/chat", "/api/generate", "/infill"

Answer = tuple[str, str, str | None]  # text, why it ended, and what was wrong with it


def body_of(path: str, **more: Any) -> dict[str, Any]:
    """A request of any API."""
    if path.startswith("/api/"):
        asked = {"prompt": "hello"} if path == GENERATE else {"messages": HELLO}
        return {"model": "tiny", **asked, "stream": False, "options": {"num_predict": 64, "seed": 1}, **more}
    if path == RESPONSES:
        return {"input": "hello", "max_output_tokens": 64, **more}
    if path == COMPLETIONS:
        return {"prompt": "hello", "max_tokens": 64, "seed": 1, **more}
    return {"model": "tiny", "messages": HELLO, "max_tokens": 64, **more}


def read_openai(found: dict[str, Any]) -> Answer:
    choice = found["choices"][0]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    return text, choice["finish_reason"], choice.get("error", {}).get("message")


def read_responses(found: dict[str, Any]) -> Answer:
    return found["output"][-1]["content"][0]["text"], found["status"], (found["error"] or {}).get("message")


def read_anthropic(found: dict[str, Any]) -> Answer:
    return found["content"][0]["text"], found["stop_reason"], found.get("error", {}).get("message")


def read_ollama(found: dict[str, Any]) -> Answer:
    text = found["message"]["content"] if "message" in found else found["response"]
    return text, found["done_reason"], found.get("error")


READERS: dict[str, Callable[[dict[str, Any]], Answer]] = {
    CHAT: read_openai, COMPLETIONS: read_openai, RESPONSES: read_responses, MESSAGES: read_anthropic,
    OLLAMA: read_ollama, GENERATE: read_ollama,
}  # fmt: skip
NAMED = {"name": "person", "schema": PERSON}
SCHEMAS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": NAMED}}),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {**NAMED, "strict": True}}}),
    (CHAT, {"response_format": {"type": "json_object", "schema": PERSON}}),
    (CHAT, {"structured_outputs": {"json": PERSON}}),
    (CHAT, {"guided_json": json.dumps(PERSON)}),
    (CHAT, {"json_schema": PERSON}),
    (COMPLETIONS, {"response_format": {"type": "json_schema", "json_schema": NAMED}}),
    (RESPONSES, {"text": {"format": {"type": "json_schema", **NAMED, "strict": True}}}),
    (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": PERSON}}}),
    (MESSAGES, {"output_format": {"type": "json_schema", "schema": PERSON}}),
    (OLLAMA, {"format": PERSON}),
    (GENERATE, {"format": PERSON}),
]


@pytest.mark.parametrize(("path", "more"), SCHEMAS)
def test_answers_match_their_schema(client: TestClient, path: str, more: dict[str, Any]) -> None:
    found = client.post(path, json=body_of(path, **more))
    assert found.status_code == 200, found.text
    text, reason, error = READERS[path](found.json())
    validate(json.loads(text), PERSON)
    assert reason in ("stop", "completed", "end_turn")
    assert error is None


@pytest.mark.parametrize("more", [
    {"structured_outputs": {"regex": "[ab]{5}"}}, {"guided_regex": "[ab]{5}"}, {"grammar": 'root ::= [ab]{5}'},
    {"structured_outputs": {"grammar": "start: /[ab]{5}/"}}, {"guided_grammar": 'root ::= ("a" | "b"){5}'},
])  # fmt: skip
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_answers_follow_their_grammar(client: TestClient, path: str, more: dict[str, Any]) -> None:
    text, reason, _ = READERS[path](client.post(path, json=body_of(path, **more)).json())
    assert len(text) == 5
    assert {*text} <= {"a", "b"}
    assert reason == "stop"


@pytest.mark.parametrize("more", [{"guided_choice": ["yes", "no"]}, {"structured_outputs": {"choice": ["yes", "no"]}}])
def test_one_of_some_texts(client: TestClient, more: dict[str, Any]) -> None:
    found = chunks(client.post(CHAT, json=body_of(CHAT, stream=True, **more)).text)
    assert "".join(one["choices"][0]["delta"].get("content") or "" for one in found) in ("yes", "no")


@pytest.mark.parametrize(("path", "more"), [
    (CHAT, {"response_format": {"type": "json_object"}}), (RESPONSES, {"text": {"format": {"type": "json_object"}}}),
    (OLLAMA, {"format": "json"}), (CHAT, {"structured_outputs": {"json_object": True}}),
])  # fmt: skip
def test_json_mode_begins_an_object(client: TestClient, path: str, more: dict[str, Any]) -> None:
    text, reason, _ = READERS[path](client.post(path, json=body_of(path, **more)).json())
    if reason in ("length", "incomplete"):  # random weights seldom end an object
        assert text.startswith("{")
    else:
        assert isinstance(json.loads(text), dict)


UNHELD: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"guided_json": UNIQUE}),
    (COMPLETIONS, {"guided_json": UNIQUE}),
    (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "x", "schema": UNIQUE}}}),
    (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": UNIQUE}}}),
    (OLLAMA, {"format": UNIQUE}),
    (GENERATE, {"format": UNIQUE}),
]


@pytest.mark.parametrize(("path", "more"), UNHELD)
def test_an_answer_that_breaks_what_was_not_held_is_no_success(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, path: str, more: dict[str, Any]
) -> None:
    says(monkeypatch, llm, "[1, ", "1]")
    client = client_of(llm)
    text, reason, error = READERS[path](client.post(path, json=body_of(path, **more)).json())
    assert (text, reason) == ("[1, 1]", "failed" if path == RESPONSES else "invalid")
    assert error is not None
    assert BROKEN in error
    streamed = client.post(path, json=body_of(path, **{**more, "stream": True})).text
    assert BROKEN in streamed
    if path == MESSAGES:
        assert events(streamed)[-2][1]["delta"]["stop_reason"] == "invalid"
    if path == RESPONSES:
        assert events(streamed)[-1][0] == "response.failed"
    says(monkeypatch, llm, "[1, 2]")
    assert READERS[path](client.post(path, json=body_of(path, **more)).json())[2] is None


def test_invalid_answers_are_counted(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, llm, "[1, 1]")
    client = client_of(llm)
    found = client.post(CHAT, json=body_of(CHAT, guided_json=UNIQUE)).json()
    assert found["choices"][0]["message"]["refusal"] == found["choices"][0]["error"]["message"]
    assert 'fewbit_outputs_total{model="tiny",reason="invalid"} 1.0' in client.get("/metrics").text


@pytest.mark.parametrize(("path", "more"), [
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"schema": UNIQUE, "strict": True}}}),
    (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "x", "schema": UNIQUE, "strict": True}}}),
])  # fmt: skip
def test_strict_refuses_what_cannot_be_held_by_name(client: TestClient, path: str, more: dict[str, Any]) -> None:
    found = client.post(path, json=body_of(path, **more))
    assert found.status_code == 400
    assert "uniqueItems" in found.json()["error"]["message"]
    assert found.json()["error"]["code"] == "invalid_grammar"


def test_two_formats_do_not_go_together(client: TestClient) -> None:
    found = client.post(CHAT, json=body_of(CHAT, guided_regex="a", response_format={"type": "json_object"}))
    assert found.status_code == 400
    assert "guided_regex and response_format do not go together" in found.json()["error"]["message"]


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        found = {"type": "array", "items": found}
    return found


def exponential(depth: int) -> dict[str, Any]:
    """Each definition refers to the next one many times."""
    definitions: dict[str, Any] = {
        f"d{level}": {"anyOf": [{"type": "array", "items": {"$ref": f"#/$defs/d{level + 1}"}, "minItems": count}
                                for count in range(1, 9)]}
        for level in range(depth)
    }  # fmt: skip
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{depth}": {"type": "integer"}}}


HOSTILE: dict[str, dict[str, Any]] = {
    "deep": {"guided_json": nested(200)},
    "large": {"guided_json": {"enum": ["x" * 1000 + str(number) for number in range(9000)]}},
    "exponential": {"guided_json": exponential(12)},
    "cycle": {"guided_json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}},
    "regex": {"guided_regex": "(a{1,1000}){1,1000}b{1000}"},
    "pattern": {"guided_json": {"type": "string", "pattern": "^(a+)+$" * 50}},
    "many": {"guided_json": {"type": "object", "properties": {f"p{n}": {} for n in range(5000)}}},
    "grammar": {"grammar": "root ::= " + "(" * 3000 + '"a"' + ")" * 3000},
    "recursive": {"grammar": "root ::= root root | root"},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_formats_are_refused_or_bounded(live: Live, kind: str) -> None:
    """A client that asks beside them is answered meanwhile."""
    import threading

    import httpx

    answers: list[int] = []

    def attack() -> None:
        body = body_of(CHAT, **{**HOSTILE[kind], "max_tokens": 4})
        answers.append(httpx.post(f"{live.url}{CHAT}", json=body, timeout=60).status_code)

    attacker = threading.Thread(target=attack)
    attacker.start()
    while attacker.is_alive():
        found = httpx.post(f"{live.url}{CHAT}", json=body_of(CHAT, max_tokens=2), timeout=60)
        assert found.status_code == 200
        time.sleep(0.01)
    assert answers[0] in (200, 400)
    assert live.llm.generate("x", max_tokens=2).finish_reason == "length"
