from __future__ import annotations

import sys

import pytest

from fewbit.llm import LLM
from fewbit.server import memory

from .conftest import client_of
from .test_chat import CHAT


@pytest.mark.skipif(sys.platform != "linux", reason="the C library of Linux")
def test_memory_of_large_requests_is_given_back(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.set_up()
    assert memory.trim()
    timers: list[float] = []

    class Timer:
        daemon = False

        def __init__(self, seconds: float, call: object) -> None:
            timers.append(seconds)

        def start(self) -> None:
            assert self.daemon

    monkeypatch.setattr(memory.threading, "Timer", Timer)
    client = client_of(llm)
    for size, count in ((1000, 0), (2_000_000, 1), (2_000_000, 1)):
        client.post(CHAT, json={"messages": [{"role": "user", "content": "x" * size}]})
        assert len(timers) == count
