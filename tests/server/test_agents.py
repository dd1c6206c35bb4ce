"""Requests of coding agents: Claude Code's and Codex's shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from fewbit.llm import LLM
from fewbit.server.ignored import HEADER

from .conftest import client_of
from .scripted import SCHEMA, events, says
from .tool_model import write_tool_model

CALL = '<tool_call>{"name": "Read", "arguments": {"city": "a.py"}}</tool_call>'
EPHEMERAL = {"type": "ephemeral"}
CLAUDE_HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,fine-grained-tool-streaming-2025-05-14",
    "x-api-key": "none",
    "user-agent": "claude-cli/2.0.0 (external, cli)",
}
CLAUDE: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 32000,
    "temperature": 1,
    "system": [
        {"type": "text", "text": "You are an agent.", "cache_control": EPHEMERAL},
        {"type": "text", "text": "You help with code.", "cache_control": {**EPHEMERAL, "ttl": "1h"}},
    ],
    "messages": [
        {"role": "user", "content": [
            {"type": "text", "text": "<system-reminder>today</system-reminder>"},
            {"type": "text", "text": "Fix it.", "cache_control": EPHEMERAL},
        ]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"city": "a.py"}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "x = 1"}],
             "is_error": False, "cache_control": EPHEMERAL},
        ]},
    ],
    "tools": [
        {"name": "Read", "description": "Reads a file.", "input_schema": {**SCHEMA, "$schema": "http://json-schema.org"}},
        {"name": "Bash", "description": "Runs.", "input_schema": SCHEMA, "cache_control": EPHEMERAL},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ],
    "thinking": {"type": "enabled", "budget_tokens": 31999},
    "metadata": {"user_id": "user_1_account__session_2"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "container": None,
    "stream": True,
}  # fmt: skip
CODEX: dict[str, Any] = {
    "model": "tiny",
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "sandbox"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix it."}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": "e"},
        {"type": "function_call", "name": "Read", "arguments": "{}", "call_id": "call_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": "x = 1"},
    ],
    "tools": [
        {"type": "function", "name": "Read", "description": "It.", "strict": False, "parameters": SCHEMA},
        {"type": "web_search", "external_web_access": False},
        {"type": "custom", "name": "apply_patch", "description": "p", "format": {"type": "grammar", "syntax": "lark"}},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199",
    "text": {"verbosity": "low"},
    "client_metadata": {"x": "y"},
}


@pytest.fixture(scope="module")
def tool_llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = write_tool_model(tmp_path_factory.mktemp("models") / "tiny.gguf")
    with LLM(path, ctx=2048, threads=1, batch_invariant=True) as found:
        yield found


@pytest.fixture
def client(tool_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    says(monkeypatch, tool_llm, "I look. ", CALL)
    return client_of(tool_llm)


def test_claude_code(client: TestClient) -> None:
    answer = client.post("/v1/messages?beta=true", json=CLAUDE, headers=CLAUDE_HEADERS)
    assert answer.status_code == 200, answer.text
    assert {"context_management", "container", "tools (web_search_20250305)"} <= {*answer.headers[HEADER].split(", ")}
    found = events(answer.text)
    blocks = [data["content_block"] for name, data in found if name == "content_block_start"]
    assert [block["type"] for block in blocks] == ["text", "tool_use"]
    assert blocks[1]["name"] == "Read"
    assert found[-2][1]["delta"]["stop_reason"] == "tool_use"


def test_claude_code_counts_tokens_and_asks_for_titles(client: TestClient, tool_llm: LLM) -> None:
    asked = {name: CLAUDE[name] for name in ("model", "messages", "system", "tools", "thinking")}
    answer = client.post("/v1/messages/count_tokens?beta=true", json=asked, headers=CLAUDE_HEADERS)
    assert answer.json()["input_tokens"] > 100
    asked = {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}]}
    assert client.post("/v1/messages", json=asked, headers=CLAUDE_HEADERS).status_code == 200
    prefilled = [{"role": "user", "content": "Title?"}, {"role": "assistant", "content": "{"}]
    asked = {"model": "tiny", "max_tokens": 8, "messages": prefilled, "temperature": 0}
    assert client.post("/v1/messages", json=asked, headers=CLAUDE_HEADERS).status_code == 200


def test_codex(client: TestClient) -> None:
    headers = {"openai-beta": "responses=experimental", "originator": "codex_cli_rs", "session_id": "0199"}
    answer = client.post("/v1/responses", json=CODEX, headers=headers)
    assert answer.status_code == 200, answer.text
    ignored = {*answer.headers[HEADER].split(", ")}
    assert {"client_metadata", "tools (web_search)", "tools (custom)"} <= ignored
    found = events(answer.text)
    assert found[0][0] == "response.created"
    (call,) = [item for item in found[-1][1]["response"]["output"] if item["type"] == "function_call"]
    assert (found[-1][0], call["name"]) == ("response.completed", "Read")
    assert client.get(f"/v1/responses/{found[-1][1]['response']['id']}").status_code == 404  # store is false
