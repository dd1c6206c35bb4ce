"""The calls that Open WebUI makes in its first hour, to a model whose template knows no tools."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from fewbit.llm import LLM
from fewbit.server.ignored import HEADER

from .test_chat import chunks

TALK = [{"role": "user", "content": "Why is the sky blue?"}]
CHAT = "/v1/chat/completions"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_current_time",
        "description": "Get the current time.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}
METADATA = {
    "user_id": "0b1c", "chat_id": "c1", "message_id": "m1", "session_id": "s1", "tool_ids": None, "files": [],
    "features": {"image_generation": False, "code_interpreter": False, "web_search": False},
    "variables": {"{{USER_NAME}}": "Ada", "{{CURRENT_DATE}}": "2026-01-01"},
}  # fmt: skip
TASK = """### Task:
{what}
### Output:
JSON format: {{ "{name}": "" }}
### Chat History:
<chat_history>
USER: Why is the sky blue?
ASSISTANT: Light is scattered.
</chat_history>"""
TASKS = {
    "title_generation": "Generate a concise, 3-5 word title with an emoji summarizing the chat history.",
    "tags_generation": "Generate 1-3 broad tags categorizing the main themes of the chat history.",
    "follow_up_generation": "Suggest 3-5 relevant follow-up questions that the user might ask next.",
    "query_generation": "Analyze the chat history to determine the necessity of generating search queries.",
}


def ok(answer: Any) -> Any:
    assert answer.status_code == 200, answer.text
    return answer


def lines(answer: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ok(answer).text.splitlines()]


def test_a_connection_is_verified_and_models_are_listed(client: TestClient) -> None:
    version = ok(client.get("/api/version")).json()["version"]
    assert tuple(map(int, version.split("."))) > (0, 1, 0)
    (model,) = ok(client.get("/api/tags")).json()["models"]
    assert {"name", "model", "digest", "size", "modified_at", "details"} <= model.keys()
    assert ok(client.get("/api/ps")).json()["models"][0]["expires_at"]
    shown = ok(client.post("/api/show", json={"name": model["model"]})).json()
    assert shown["capabilities"] == ["completion"]
    listed = ok(client.get("/v1/models", headers={"Authorization": "Bearer none"})).json()
    assert listed["data"][0]["id"] == "tiny"


def test_a_chat_by_the_openai_connection(client: TestClient, llm: LLM) -> None:
    body = {
        "stream": True, "model": "tiny", "messages": TALK, "stream_options": {"include_usage": True},
        "temperature": 0, "max_tokens": 8, "params": {}, "metadata": METADATA,
        "user": {"name": "Ada", "id": "0b1c", "email": "ada@localhost", "role": "admin"},
    }  # fmt: skip
    found = chunks(ok(client.post(CHAT, json=body)).text)
    text = "".join(choice["delta"].get("content") or "" for chunk in found for choice in chunk["choices"])
    assert text == llm.chat(TALK, temperature=0, max_tokens=8).text
    assert found[-1]["usage"]["completion_tokens"] == 8


def test_a_chat_by_the_ollama_connection(client: TestClient, llm: LLM) -> None:
    options = {
        "temperature": 0, "num_predict": 8, "num_ctx": 8192, "seed": 0, "repeat_last_n": 64, "tfs_z": 1, "num_keep": 24,
        "top_k": 40, "top_p": 0.9, "min_p": 0, "mirostat": 0, "mirostat_eta": 0.1, "mirostat_tau": 5.0, "stop": [],
        "num_thread": 2, "num_gpu": 0, "use_mmap": True, "repeat_penalty": 1.0, "num_batch": 512,
    }  # fmt: skip
    body = {
        "model": "tiny:latest", "messages": TALK, "options": options, "stream": True, "keep_alive": "5m", "format": "",
        "metadata": METADATA, "think": None, "tools": None,
    }  # fmt: skip
    found = lines(client.post("/api/chat", json=body))
    text = "".join(one["message"]["content"] for one in found)
    assert text == llm.chat(TALK, temperature=0, max_tokens=8).text
    assert found[-1]["done"] is True


def test_tools_do_not_stop_a_chat(client: TestClient) -> None:
    body = {"model": "tiny", "messages": TALK, "max_tokens": 4, "stream": True, "tools": [TOOL], "metadata": METADATA}
    answer = ok(client.post(CHAT, json=body))
    assert "tools" in answer.headers[HEADER].split(", ")
    assert chunks(answer.text)[-1]["choices"][0]["finish_reason"] == "length"
    asked = {"model": "tiny", "messages": TALK, "tools": [TOOL], "options": {"num_predict": 4}}
    assert lines(client.post("/api/chat", json=asked))[-1]["eval_count"] == 4


def test_titles_tags_and_follow_ups(client: TestClient) -> None:
    for name, what in TASKS.items():
        text = TASK.format(what=what, name=name.partition("_")[0])
        metadata = {"task": name, "task_body": {"model": "tiny", "messages": TALK}, **METADATA}
        asked = {"model": "tiny", "messages": [{"role": "user", "content": text}], "stream": False}
        body = {**asked, "metadata": metadata, "max_completion_tokens": 8, "chat_id": "c1"}
        assert ok(client.post(CHAT, json=body)).json()["usage"]["completion_tokens"] == 8
        options = {"num_predict": 8}
        answer = ok(client.post("/api/chat", json={**asked, "metadata": metadata, "options": options}))
        assert answer.json()["eval_count"] == 8


def test_a_stopped_answer_is_continued(client: TestClient, llm: LLM) -> None:
    talk = [*TALK, {"role": "assistant", "content": "Because light"}]
    with pytest.MonkeyPatch.context() as patch:
        given: list[Any] = []
        chat_prompt = llm.chat_prompt
        patch.setattr(llm, "chat_prompt", lambda *a, **b: given.append(b) or chat_prompt(*a, **b))
        ok(client.post(CHAT, json={"model": "tiny", "messages": talk, "max_tokens": 2}))
    assert given[0]["continue_final_message"] is True


def test_documents_are_embedded(client: TestClient, llm: LLM) -> None:
    texts = ["The sky is blue.", "Grass is green."]
    found = ok(client.post("/api/embed", json={"input": texts, "model": "tiny", "truncate": True})).json()
    assert [len(row) for row in found["embeddings"]] == [llm.embed("x").size] * 2
    found = ok(client.post("/v1/embeddings", json={"input": texts, "model": "tiny"})).json()
    assert [one["index"] for one in found["data"]] == [0, 1]


def test_models_are_unloaded_and_pulled_or_that_is_refused(client: TestClient) -> None:
    answer = client.post("/api/pull", json={"model": "llama3.2", "stream": True})
    assert answer.status_code == 400
    assert "--allow-changes" in answer.json()["error"]
    asked = {"model": "tiny", "keep_alive": 0, "prompt": ""}
    assert client.post("/api/generate", json=asked).status_code == 400  # a model of this server is pinned
