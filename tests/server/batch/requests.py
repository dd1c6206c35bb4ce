"""Batch files for tests."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0}


def request(number: int, random: Random) -> dict[str, Any]:
    """One of the three kinds, of any length."""
    text = "".join(random.choice("abcdef ") for _ in range(random.randint(1, 50))) + "x"
    length = random.randint(1, 24)
    url, body = [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": length, **GREEDY}),
        ("/v1/completions", {"prompt": text, "max_tokens": length, "logprobs": number % 5, **GREEDY}),
        ("/v1/embeddings", {"model": "tiny", "input": text}),
    ][number % 3]
    return {"custom_id": f"request {number}", "method": "POST", "url": url, "body": body}


def write_requests(path: Path, count: int, seed: int = 0) -> Path:
    random = Random(seed)
    path.write_text("".join(json.dumps(request(number, random)) + "\n" for number in range(count)))
    return path


def read_answers(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
