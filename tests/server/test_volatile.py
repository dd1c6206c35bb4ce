"""Lines of system messages that change in every request, and where prompts leave the cache."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from fewbit.llm import LLM
from fewbit.server.ignored import HEADER
from fewbit.server.volatile import without_volatile

from .conftest import client_of
from .test_agents import CLAUDE_HEADERS
from .test_documents import metric

RULES = "You help with code. " * 20
USER = {"role": "user", "content": "Fix it."}


def system(*lines: str) -> dict[str, Any]:
    return {"role": "system", "content": "\n".join(lines)}


def billing(number: int) -> str:
    return f"x-anthropic-billing-header: cc_version=2.1.{number}; cc_entrypoint=cli; cch={number:05x};"


@pytest.mark.parametrize(
    "line",
    [
        "Current time: 12:30:59",
        "# Current Time 11/18/2026, 7:58:06 PM (UTC, UTC+0:00)",
        "- Today is Wednesday, 18 November 2026, 19:58:06.",
        "The current date and time is 2026-11-18T19:58:06Z",
        "Timestamp: 2026-11-18 19:58:06.123",
        "Request-ID: 0199a1b2-77",
        "message_id: msg_01abcdef",
    ],
)
def test_a_line_that_changes_goes_to_the_end_of_the_last_message(line: str) -> None:
    found, names = without_volatile([system(RULES, line, "Be kind."), USER])
    assert [message["content"] for message in found] == [f"{RULES}\nBe kind.", f"Fix it.\n\n{line}"]
    assert len(names) == 1
    result = {"role": "tool", "tool_call_id": "1", "content": "ok"}
    assert without_volatile([system(line), USER, result])[0] == [USER, {**result, "content": f"ok\n\n{line}"}]


@pytest.mark.parametrize(
    "line",
    [
        "Current date: 2026-11-18",  # it changes once a day
        "The alarm rings at 12:30:59 now and then",
        "Do not print request id: values",
        "time",
        "Current time: " + "x" * 200 + "12:30:59",
        "",
    ],
)
def test_other_lines_stay(line: str) -> None:
    talk = [system(RULES, line, "Be kind."), USER]
    assert without_volatile(talk) == (talk, [])


def test_lines_of_users_and_lines_that_cannot_move_stay() -> None:
    for talk in (
        [{"role": "user", "content": "Current time: 12:30:59"}],
        [system("Current time: 12:30:59"), USER, {"role": "assistant", "content": "I"}],
        [],
    ):
        assert without_volatile(talk) == (talk, [])


def ask(client: TestClient, number: int) -> Any:
    blocks = [{"type": "text", "text": billing(number)}, {"type": "text", "text": RULES}]
    body = {"model": "tiny", "system": blocks, "messages": [USER], "max_tokens": 4}
    return client.post("/v1/messages", json=body, headers=CLAUDE_HEADERS)


def test_a_billing_header_keeps_no_prefix_from_being_shared(llm: LLM) -> None:
    client = client_of(llm, api_keys=("one",))
    client.headers["x-api-key"] = "one"
    headers = {**CLAUDE_HEADERS, "x-api-key": "one"}
    blocks = [{"type": "text", "text": RULES}]

    def body(number: int) -> dict[str, Any]:
        said = [{"type": "text", "text": billing(number)}, *blocks]
        return {"model": "tiny", "system": said, "messages": [USER], "max_tokens": 4}

    first = client.post("/v1/messages", json=body(1), headers=headers)
    assert first.headers[HEADER] == "system (x-anthropic-billing-header)"
    usage = client.post("/v1/messages", json=body(2), headers=headers).json()["usage"]
    assert usage["cache_read_input_tokens"] > 8 * usage["input_tokens"]
    asked = {name: value for name, value in body(3).items() if name != "max_tokens"}
    count = client.post("/v1/messages/count_tokens", json=asked, headers=headers).json()["input_tokens"]
    assert count == usage["input_tokens"] + usage["cache_read_input_tokens"]
    text = client.get("/metrics").text
    assert metric(text, 'fewbit_prompt_cached_share_bucket{le="0.75",model="tiny"}') == 1
    assert metric(text, "fewbit_prompt_cached_share_count") == 2


def test_where_prompts_leave_the_cache_is_shown(llm: LLM) -> None:
    client = client_of(llm, keeps_volatile_lines=True)
    before = client.get("/metrics").text
    assert HEADER not in ask(client, 11).headers
    usage = ask(client, 12).json()["usage"]
    assert usage["cache_read_input_tokens"] < 64 < usage["input_tokens"]
    after = client.get("/metrics").text
    name = 'fewbit_prefix_divergence_tokens_bucket{le="64.0",model="tiny"}'
    assert metric(after, name) > metric(before, name)
