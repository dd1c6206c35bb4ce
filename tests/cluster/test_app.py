"""The application on Ray Serve."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fewbit.llm import LLM

from .deployed import LOADING, deployed, stats, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]

GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def url(cluster: Any, path: Path) -> Iterator[str]:
    with deployed(path) as found:
        yield found


def test_answers_are_those_of_the_model(url: str, path: Path) -> None:
    with LLM(path, **LOADING) as llm:  # type: ignore[arg-type]
        for text in ("hello", "another"):
            found = httpx.post(f"{url}/v1/completions", json={"prompt": text, **GREEDY}, timeout=60)
            assert found.json()["choices"][0]["text"] == llm.generate(text, temperature=0, max_tokens=8).text


def test_metrics_are_summed_and_per_replica(url: str) -> None:
    before = stats()["generated_tokens"]
    httpx.post(f"{url}/v1/completions", json={"prompt": ["a", "b"], **GREEDY}, timeout=60)
    lines = httpx.get(f"{url}/metrics", timeout=60).text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    whole = float(values['fewbit_generated_tokens_total{model="tiny"}'])
    parts = [float(one) for name, one in values.items() if name.startswith("fewbit_replica_generated_tokens_total")]
    assert len(parts) == 2
    assert whole == sum(parts) == before + 16


def test_a_client_that_disconnects_ends_its_job(url: str) -> None:
    prompts = [f"long {number}" for number in range(32)]
    body = {"prompt": prompts, **GREEDY, "max_tokens": 2000, "n": 8, "stream": True}
    before = stats()["generated_tokens"]
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        next(answer.iter_bytes())
    wait_until(lambda: bool(stats()["running"] == stats()["pages_used"] == 0))
    assert stats()["generated_tokens"] - before < 32 * 8 * 2000


def test_limits_and_errors_pass_through(url: str) -> None:
    for change, status in (({"temperature": -3}, 400), ({"prompt": "x" * 4000}, 400), ({"model": "none"}, 404)):
        found = httpx.post(f"{url}/v1/completions", json={"prompt": "a", **GREEDY, **change}, timeout=60)
        assert found.status_code == status, found.text
        assert found.json()["error"]["message"]
