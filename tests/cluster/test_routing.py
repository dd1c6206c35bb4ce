"""Which replica runs what, and how many there are."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from .deployed import URL, deployed, num_replicas, stats, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]

NUM_CLIENTS, NUM_GROUPS, PREFIX_TOKENS, NUM_REQUESTS = 32, 8, 1024, 4


def test_clients_that_share_a_prefix_share_a_replica(cluster: Any, path: Path) -> None:
    def ask(number: int, request: int) -> int:
        """Tokens of the prompt that were known."""
        group = number % NUM_GROUPS
        prompt = f"group {group} " * PREFIX_TOKENS
        body = {"prompt": f"{prompt[:PREFIX_TOKENS]}client {number}, {request}", "max_tokens": 16, "temperature": 0}
        found = httpx.post(f"{URL}/v1/completions", json=body, timeout=120).json()
        cached: int = found["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached

    def client(number: int) -> list[int]:
        return [ask(number, request) for request in range(NUM_REQUESTS)]

    with deployed(path), ThreadPoolExecutor(NUM_CLIENTS) as threads:
        found = [*threads.map(client, range(NUM_CLIENTS))]
        tokens = [one["generated_tokens"] for one in stats()["replicas"]]
    later = [cached >= PREFIX_TOKENS - 64 for one in found for cached in one[1:]]
    print(f"hits of later requests: {sum(later)}/{len(later)}, tokens of the replicas: {tokens}")
    assert sum(later) >= 0.9 * len(later)
    assert max(tokens) <= 0.65 * sum(tokens)


def test_replicas_come_when_tokens_are_queued(cluster: Any, path: Path) -> None:
    def ask(_: int) -> None:
        httpx.post(f"{URL}/v1/completions", json={"prompt": "a", "max_tokens": 1800}, timeout=300)

    with deployed(path, replicas=1, max_replicas=2, tokens_per_replica=1000.0):
        assert num_replicas() == 1
        end = time.monotonic() + 90
        with ThreadPoolExecutor(8) as threads:
            while num_replicas() == 1 and time.monotonic() < end:
                [*threads.map(ask, range(8))]
        wait_until(lambda: num_replicas() == 2)
