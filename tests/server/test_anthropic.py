from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from fewbit.errors import OutOfMemory
from fewbit.llm import LLM

from .conftest import client_of
from .scripted import CALL, SCHEMA, events, says

URL = "/v1/messages"
HELLO = [{"role": "user", "content": "hello"}]
ASKED: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 8, "temperature": 0}
TOOL = {"name": "weather", "description": "The weather.", "input_schema": SCHEMA}


def post(client: TestClient, status: int = 200, path: str = URL, **more: Any) -> dict[str, Any]:
    answer = client.post(path, json={**ASKED, **more})
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refused(client: TestClient, **more: Any) -> str:
    found = post(client, 400, **more)
    assert found["type"] == "error"
    assert found["error"]["type"] == "invalid_request_error"
    return str(found["error"]["message"])


def test_an_answer_is_that_of_the_model(client: TestClient, llm: LLM) -> None:
    found, expected = post(client), llm.chat(HELLO, max_tokens=8, temperature=0)
    assert found["content"] == [{"type": "text", "text": expected.text, "citations": None}]
    assert (found["type"], found["role"], found["model"]) == ("message", "assistant", "tiny")
    assert (found["stop_reason"], found["stop_sequence"]) == ("max_tokens", None)
    used = found["usage"]
    assert used["input_tokens"] + used["cache_read_input_tokens"] == expected.prompt_tokens
    assert used["output_tokens"] == 8


def test_a_stream_gives_the_same_text(client: TestClient, llm: LLM) -> None:
    found = events(client.post(URL, json={**ASKED, "stream": True}).text)
    names = [name for name, _ in found]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert all(data["type"] == name for name, data in found)
    text = "".join(data["delta"]["text"] for name, data in found if name == "content_block_delta")
    expected = llm.chat(HELLO, max_tokens=8, temperature=0)
    assert text == expected.text
    assert found[0][1]["message"]["usage"]["input_tokens"] == expected.prompt_tokens
    end = found[-2][1]
    assert end["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert end["usage"]["output_tokens"] == 8


def test_the_system_prompt_and_blocks_are_told(client: TestClient, llm: LLM) -> None:
    said = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]
    talk = [{"role": "user", "content": said}, {"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}]
    found = post(client, messages=talk, system=[{"type": "text", "text": "be brief"}])
    plain = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    assert found["content"][0]["text"] == llm.chat(plain, max_tokens=8, temperature=0).text


def test_a_stop_sequence_is_named(client: TestClient, llm: LLM) -> None:
    text = llm.chat(HELLO, max_tokens=8, temperature=0).text
    stop = text[3:6]
    found = post(client, stop_sequences=["never so", stop])
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", stop)
    assert "".join(block["text"] for block in found["content"]) == text[: text.index(stop)]


def test_tool_calls_become_blocks(tool_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, tool_llm, "Let me see. ", CALL[:20], CALL[20:])
    client = client_of(tool_llm)
    found = post(client, tools=[TOOL])
    text, call = found["content"]
    assert text["text"] == "Let me see."
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "weather", {"city": "Riga"})
    assert found["stop_reason"] == "tool_use"
    streamed = events(client.post(URL, json={**ASKED, "tools": [TOOL], "stream": True}).text)
    starts = [data["content_block"]["type"] for name, data in streamed if name == "content_block_start"]
    deltas = [data["delta"] for name, data in streamed if name == "content_block_delta"]
    assert starts == ["text", "tool_use"]
    parts = [delta["partial_json"] for delta in deltas if delta["type"] == "input_json_delta"]
    assert json.loads("".join(parts)) == {"city": "Riga"}
    assert streamed[-2][1]["delta"]["stop_reason"] == "tool_use"


def test_results_of_tools_are_told(tool_llm: LLM) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Riga"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]}
    talk = [
        *HELLO,
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"}, use]},
        {"role": "user", "content": [result, {"type": "text", "text": "so?"}]},
    ]
    found = post(client_of(tool_llm), messages=talk)
    call = {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Riga"}'}}
    plain = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "rain"},
        {"role": "user", "content": "so?"},
    ]
    assert found["content"][0]["text"] == tool_llm.chat(plain, max_tokens=8, temperature=0).text


def test_tokens_are_counted(client: TestClient, llm: LLM) -> None:
    answer = client.post(f"{URL}/count_tokens", json={"model": "tiny", "messages": HELLO, "system": "be brief"})
    plain = [{"role": "system", "content": "be brief"}, *HELLO]
    assert answer.json() == {"input_tokens": llm.count_tokens(plain)}


def test_no_tokens_only_fill_the_cache(client: TestClient) -> None:
    talk = [{"role": "user", "content": "a long prompt, so that pages of it are kept in the cache. " * 4}]
    found = post(client, max_tokens=0, messages=talk)
    assert (found["content"], found["stop_reason"], found["usage"]["output_tokens"]) == ([], "max_tokens", 0)
    assert post(client, messages=talk)["usage"]["cache_read_input_tokens"] > 100


def test_what_changes_nothing_is_accepted(client: TestClient) -> None:
    more: dict[str, Any] = {
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "thinking": {"type": "disabled"},
        "top_k": 5,
    }
    more |= {"speed": "standard", "cache_control": {"type": "ephemeral"}}
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    assert client.post(URL, json={**ASKED, **more}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"tool_choice": {"type": "any"}}, "there are no tools"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"mcp_servers": [{"type": "url", "url": "http://x"}]}, "mcp_servers is not supported"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "source is not supported"),
        ({"messages": []}, "messages"),
        ({"temperature": 1.5}, "temperature"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"stop_sequences": [""]}, "stop_sequences"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(client: TestClient, more: dict[str, Any], said: str) -> None:
    assert said in refused(client, **more)


def test_errors_have_their_status(client: TestClient, llm: LLM) -> None:
    assert post(client, 404, model="other")["error"]["type"] == "not_found_error"
    locked = client_of(llm, api_keys=("a-good-key",))
    assert post(locked, 401)["error"]["type"] == "authentication_error"
    assert locked.post(URL, json=ASKED, headers={"x-api-key": "a-good-key"}).status_code == 200
    small = client_of(llm, max_body_bytes=10)
    assert post(small, 413)["error"]["type"] == "request_too_large"
    ending = client_of(llm)
    ending.app.state.fewbit.is_draining = True  # type: ignore[attr-defined]
    assert post(ending, 529)["error"]["type"] == "overloaded_error"


def test_a_prompt_that_does_not_fit_is_refused(client: TestClient) -> None:
    assert "too long" in refused(client, messages=[{"role": "user", "content": "x" * 5000}])


def test_errors_in_a_stream_are_events(tool_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, tool_llm, "so", error=OutOfMemory("no pages"))
    found = events(client_of(tool_llm).post(URL, json={**ASKED, "stream": True}).text)
    assert found[-1] == ("error", {"type": "error", "error": {"type": "overloaded_error", "message": "no pages"}})
