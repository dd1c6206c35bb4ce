"""One line at the handlers: what is tried again, and what ends a batch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from fewbit.errors import QueueFull
from fewbit.llm import LLM
from fewbit.server.batch import in_process
from fewbit.server.batch.in_process import MAX_TRIES, ShuttingDown, Submitter, answer
from fewbit.server.batch.lines import InputLine, Record
from fewbit.server.batch.local import local_app
from fewbit.server.bodies import JsonResponse
from fewbit.server.errors import ApiError, shutting_down
from fewbit.server.keys import ApiKey, Quota

LINE = InputLine(0, 1, json.dumps(
    {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
).encode())  # fmt: skip


def run(llm: LLM, monkeypatch: pytest.MonkeyPatch, act: Callable[[int], Any], **rights: Any) -> tuple[Record, int]:
    """The record of a line whose handler does something else each time, and how often it was called."""
    calls, waits = 0, []

    async def handler(request: Request) -> Response:
        nonlocal calls
        calls += 1
        assert json.loads(await request.body()) == {"prompt": "x"}
        return JsonResponse(act(calls))

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setitem(in_process.HANDLERS, "/v1/completions", handler)
    monkeypatch.setattr(in_process.asyncio, "sleep", sleep)
    found = asyncio.run(answer(local_app(llm, "tiny"), LINE, {}, Submitter(**rights), 5))
    assert len(waits) >= calls - 1
    return found, calls


def test_a_full_queue_is_tried_again(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(call: int) -> Any:
        if call < 4:
            raise QueueFull("full")
        return {"id": "cmpl-1", "choices": [], "created": 0}

    found, calls = run(llm, monkeypatch, act)
    assert (found.status, calls) == (200, 4)
    assert json.loads(found.line)["response"]["body"]["created"] == 5


def test_it_is_not_tried_for_ever(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(_: int) -> Any:
        raise ApiError(503, "no memory", code="overloaded", retry_after=5)

    found, calls = run(llm, monkeypatch, act)
    assert (found.status, calls) == (503, MAX_TRIES)


def test_a_defect_is_the_error_of_its_line(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(_: int) -> Any:
        raise ZeroDivisionError("private")

    found, calls = run(llm, monkeypatch, act)
    assert (found.status, calls) == (500, 1)
    assert b"ZeroDivisionError" in found.line
    assert b"private" not in found.line


def test_the_end_of_the_server_is_no_answer(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(_: int) -> Any:
        raise shutting_down()

    with pytest.raises(ShuttingDown):
        run(llm, monkeypatch, act)


def test_a_quota_is_waited_for(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 5.0
        return now

    quota = Quota(ApiKey("secret-key", requests_per_minute=1), clock)
    quota.admit()
    found, calls = run(llm, monkeypatch, lambda _: {"data": []}, quota=quota, key_id="k")
    assert (found.status, calls) == (200, 1)
    assert now > 60
