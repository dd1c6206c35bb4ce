"""A model that is told about tools, and that says what a test wants it to say."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from fewbit.llm import LLM, Completion, TextDelta

from .conftest import BACKEND

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Riga"}}</tool_call>'


def says(monkeypatch: pytest.MonkeyPatch, llm: LLM, *texts: str, error: Exception | None = None) -> None:
    """From now on the model writes these parts, whatever it is asked; or it fails after them."""

    async def aparts(prompts: Any, **options: Any) -> AsyncGenerator[TextDelta, None]:
        await LLM.aparts(llm, prompts, **options)  # options are checked as usual
        return parts()

    async def parts() -> AsyncGenerator[TextDelta, None]:
        for text in texts:
            yield TextDelta(0, text, [1])
        if error is not None:
            raise error
        yield TextDelta(0, "", [], completion=Completion("".join(texts), [1] * len(texts), "stop"))

    monkeypatch.setattr(llm, "aparts", aparts)
    if BACKEND == "ray":
        from ..cluster.live import Script

        monkeypatch.setattr(Script(llm), "lines", [*texts])


def quick_ends(llm: LLM) -> dict[int, float]:
    """A bias by which JSON of random weights ends soon: strings, lists and objects are closed as early as possible."""
    ends = (('"', 90.0), ("}", 60.0), ("]", 60.0))  # a string ends before what it holds could look like an end
    found = {token: bias for text, bias in ends if (token := llm.tokenizer.token_id(text)) is not None}
    return {**found, **dict.fromkeys(llm.engine.eos_ids, 95.0)}


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Names and data of server-sent events that have names."""
    found = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found
