from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from starlette.testclient import TestClient

from fewbit.errors import FewbitError
from fewbit.llm import LLM
from fewbit.server.openai_responses_store import Store

from .conftest import client_of
from .scripted import CALL, SCHEMA, events, says

URL = "/v1/responses"
HELLO = [{"role": "user", "content": "hello"}]
ASKED: dict[str, Any] = {"model": "tiny", "input": "hello", "max_output_tokens": 8, "temperature": 0}
GREEDY: dict[str, Any] = {"max_tokens": 8, "temperature": 0}
TOOL = {"type": "function", "name": "weather", "description": "It.", "parameters": SCHEMA, "strict": False}


def post(client: TestClient, status: int = 200, path: str = URL, **more: Any) -> dict[str, Any]:
    answer = client.post(path, json={**ASKED, **more})
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


def text_of(response: dict[str, Any]) -> str:
    return str(response["output"][0]["content"][0]["text"])


def test_an_answer_is_that_of_the_model(client: TestClient, llm: LLM) -> None:
    found, expected = post(client, metadata={"a": "b"}), llm.chat(HELLO, **GREEDY)
    assert text_of(found) == expected.text
    assert (found["object"], found["status"]) == ("response", "incomplete")
    assert found["incomplete_details"] == {"reason": "max_output_tokens"}
    assert found["metadata"] == {"a": "b"}
    assert found["usage"]["input_tokens"] == expected.prompt_tokens
    assert found["usage"]["output_tokens"] == 8
    assert found["usage"]["total_tokens"] == expected.prompt_tokens + 8


def test_instructions_and_items_are_told(client: TestClient, llm: LLM) -> None:
    items = [
        {"role": "developer", "content": "in English"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
        {"type": "reasoning", "summary": []},
        {"role": "user", "content": "c"},
    ]
    found = post(client, input=items, instructions="be brief")
    plain = [
        {"role": "system", "content": "be brief\n\nin English"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    assert text_of(found) == llm.chat(plain, **GREEDY).text


def test_a_stream_tells_of_items(client: TestClient, llm: LLM) -> None:
    found = events(client.post(URL, json={**ASKED, "stream": True}).text)
    names = [name.removeprefix("response.") for name, _ in found]
    start = ["created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"]
    end = ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert names[:5] == start
    assert names[-4:] == end
    assert set(names[5:-4]) <= {"output_text.delta"}
    assert [data["sequence_number"] for _, data in found] == list(range(len(found)))
    assert all(data["type"] == name for name, data in found)
    text = "".join(data["delta"] for name, data in found if name.endswith("text.delta"))
    last = found[-1][1]["response"]
    assert text == text_of(last) == llm.chat(HELLO, **GREEDY).text
    assert len({data["item_id"] for _, data in found if "item_id" in data}) == 1
    assert client.get(f"{URL}/{last['id']}").json() == last


def test_a_response_goes_on_from_one_before(client: TestClient, llm: LLM) -> None:
    first = post(client, instructions="be brief")
    second = post(client, input="more", previous_response_id=first["id"])
    plain = [*HELLO, {"role": "assistant", "content": text_of(first)}, {"role": "user", "content": "more"}]
    assert text_of(second) == llm.chat(plain, **GREEDY).text  # instructions are not carried over
    assert second["previous_response_id"] == first["id"]
    assert client.delete(f"{URL}/{first['id']}").json()["deleted"] is True
    third = post(client, input="and", previous_response_id=second["id"])
    plain += [{"role": "assistant", "content": text_of(second)}, {"role": "user", "content": "and"}]
    assert text_of(third) == llm.chat(plain, **GREEDY).text


def test_stored_responses_are_told_and_deleted(client: TestClient) -> None:
    found = post(client, input=[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    at = f"{URL}/{found['id']}"
    assert client.get(at).json() == found
    listed = client.get(f"{at}/input_items").json()
    assert [item["content"][0]["text"] for item in listed["data"]] == ["b", "a"]
    page = client.get(f"{at}/input_items", params={"limit": 1, "order": "asc"}).json()
    assert (page["data"][0]["content"][0]["text"], page["has_more"]) == ("a", True)
    page = client.get(f"{at}/input_items", params={"order": "asc", "after": page["last_id"]}).json()
    assert (page["data"][0]["content"][0]["text"], page["has_more"]) == ("b", False)
    assert "cancelled" in client.post(f"{at}/cancel").json()["error"]["message"]
    assert client.delete(at).json() == {"id": found["id"], "deleted": True, "object": "response"}
    assert client.get(at).status_code == client.delete(at).status_code == 404
    error = post(client, 400, previous_response_id=found["id"])["error"]
    assert error["code"] == "previous_response_not_found"


def test_store_false_keeps_nothing(client: TestClient) -> None:
    found = post(client, store=False)
    assert client.get(f"{URL}/{found['id']}").status_code == 404


def test_responses_belong_to_a_key(llm: LLM) -> None:
    client = client_of(llm, api_keys=("first-key", "second-key"))
    mine, other = ({"Authorization": f"Bearer {key}"} for key in ("first-key", "second-key"))
    found = client.post(URL, json=ASKED, headers=mine).json()
    assert client.get(f"{URL}/{found['id']}", headers=mine).status_code == 200
    assert client.get(f"{URL}/{found['id']}", headers=other).status_code == 404
    asked = {**ASKED, "previous_response_id": found["id"]}
    assert client.post(URL, json=asked, headers=other).status_code == 400


def test_the_store_is_bounded() -> None:
    store = Store(max_responses=100, max_bytes=1000)
    for number in range(50):
        store.add(f"resp_{number}", "", {"text": "x" * 90}, [], [])
    assert store.nbytes <= 1000
    assert 5 < len(store) < 11
    assert store.get("resp_0", "") is None
    store.add("large", "", {"text": "x" * 2000}, [], [])
    assert (len(store), store.nbytes) == (0, 0)


def test_tool_calls_become_items(tool_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(tool_llm)
    with monkeypatch.context() as patch:
        says(patch, tool_llm, "Let me see. ", CALL)
        found = post(client, tools=[TOOL])
        streamed = events(client.post(URL, json={**ASKED, "tools": [TOOL], "stream": True}).text)
    message, call = found["output"]
    assert message["content"][0]["text"] == "Let me see."
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "weather", '{"city": "Riga"}')
    assert found["status"] == "completed"
    names = [name.removeprefix("response.") for name, _ in streamed]
    assert [name for name, after in pairwise([*names, ""]) if name != after][-5:] == [
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    after = post(client, input=[output], previous_response_id=found["id"])
    function = {"name": "weather", "arguments": call["arguments"]}
    calls = [{"id": call["call_id"], "type": "function", "function": function}]
    plain = [
        *HELLO,
        {"role": "assistant", "content": "Let me see.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": call["call_id"], "content": "rain"},
    ]
    assert text_of(after) == tool_llm.chat(plain, **GREEDY).text


def test_log_probabilities(client: TestClient) -> None:
    found = post(client, include=["message.output_text.logprobs"], top_logprobs=2)
    told = found["output"][0]["content"][0]["logprobs"]
    assert len(told) == 8
    assert len(told[0]["top_logprobs"]) == 2


def test_tokens_are_counted(client: TestClient, llm: LLM) -> None:
    asked = {"model": "tiny", "input": "hello", "instructions": "be brief"}
    found = client.post(f"{URL}/input_tokens", json=asked).json()
    plain = [{"role": "system", "content": "be brief"}, *HELLO]
    assert found == {"object": "response.input_tokens", "input_tokens": llm.count_tokens(plain)}


def test_errors_in_a_stream_are_events(tool_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, tool_llm, "so", error=FewbitError("it broke"))
    found = events(client_of(tool_llm).post(URL, json={**ASKED, "stream": True}).text)
    assert found[-1][0] == "response.failed"
    assert found[-1][1]["response"]["error"] == {"code": "server_error", "message": "it broke"}


def test_what_changes_nothing_is_accepted(client: TestClient, llm: LLM) -> None:
    found = post(
        client, truncation="disabled", background=False, service_tier="auto", user="u", safety_identifier="s",
        prompt_cache_key="k", text={"format": {"type": "text"}}, reasoning={"effort": "none"}, tool_choice="auto",
        include=["reasoning.encrypted_content"], parallel_tool_calls=True, max_tool_calls=3,
    )  # fmt: skip
    assert text_of(found) == llm.chat(HELLO, **GREEDY).text


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation is not supported"),
        ({"prompt": {"id": "p"}}, "prompt is not supported"),
        ({"text": {"format": {"type": "json_schema"}}}, "needs schema"),
        ({"tools": [{"type": "web_search"}]}, "'web_search' is not supported"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"tool_choice": {"type": "file_search"}}, "'file_search' is not supported"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "fetches no images"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "'item_reference' is not supported"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "needs call_id"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(client: TestClient, more: dict[str, Any], said: str) -> None:
    assert said in post(client, 400, **more)["error"]["message"]


def test_questions_about_stored_responses_are_checked(client: TestClient) -> None:
    at = f"{URL}/{post(client)['id']}"
    for path, name in (
        ("?stream=true", "stream"), ("/input_items?limit=0", "limit"),
        ("/input_items?order=up", "order"), ("/input_items?after=x", "after"),
    ):  # fmt: skip
        answer = client.get(at + path)
        assert answer.status_code == 400
        assert name in answer.json()["error"]["message"]
