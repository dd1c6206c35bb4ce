"""A backend whose replica ends while a job runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from starlette.testclient import TestClient

from fewbit.llm import LLM
from fewbit.server.app import make_app
from fewbit.server.backend import Asker
from fewbit.server.errors import Interrupted
from fewbit.server.jobs import Job, OutputDelta, RunEvent
from fewbit.server.local import LocalBackend
from fewbit.server.pool import Pool
from fewbit.server.settings import Settings

from .conftest import GREEDY, URL


class Failing(LocalBackend):
    """Is interrupted after the first output, so many times."""

    times = 0

    async def run(self, job: Job, asker: Asker) -> AsyncGenerator[RunEvent, None]:
        async for event in super().run(job, asker):
            yield event
            if isinstance(event, OutputDelta) and self.times:
                self.times -= 1
                raise Interrupted


def client_of(llm: LLM, times: int) -> TestClient:
    backend = Failing(llm, "tiny")
    backend.times = times
    app = make_app(Settings(), Pool.of_backends({"tiny": backend}))
    return TestClient(app, base_url=URL, raise_server_exceptions=False)


def body(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "hello", **GREEDY, **more}


def test_an_answer_that_nobody_saw_is_made_again(llm: LLM) -> None:
    expected = llm.generate("hello", **GREEDY)
    found = client_of(llm, 2).post("/v1/completions", json=body())
    assert found.status_code == 200, found.text
    assert found.json()["choices"][0]["text"] == expected.text
    assert found.json()["usage"]["completion_tokens"] == len(expected.tokens)


def test_one_that_is_interrupted_again_and_again_is_an_error(llm: LLM) -> None:
    found = client_of(llm, 9).post("/v1/completions", json=body())
    assert found.status_code == 503
    assert found.json()["error"]["code"] == "replica_lost"
    assert found.headers["retry-after"] == "1"


def test_a_stream_that_had_begun_ends_with_the_error(llm: LLM) -> None:
    lines = client_of(llm, 1).post("/v1/completions", json=body(stream=True)).text.split("\n\n")
    assert '"replica_lost"' in lines[-2]
    assert not any("[DONE]" in line for line in lines)
