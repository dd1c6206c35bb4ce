"""Endpoints of llama.cpp's server, and filling in the middle in all APIs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from fewbit.errors import RequestError
from fewbit.llm import LLM
from fewbit.server.app import make_app
from fewbit.server.pool import Pool
from fewbit.server.settings import Settings
from fewbit.text.infill import File, infill_prompt

from ..cli.tiny import write_tiny
from .conftest import URL, client_of

HELLO = [{"role": "user", "content": "hello"}]
CONTROL = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>")


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = write_tiny(tmp_path_factory.mktemp("models") / "coder.gguf", control=CONTROL)
    with LLM(path, ctx=1024, threads=1, batch_invariant=True) as found:
        yield found


def test_props_and_slots(client: TestClient, llm: LLM) -> None:
    found = client.get("/props").json()
    assert found["default_generation_settings"]["n_ctx"] == 1024
    assert found["default_generation_settings"]["params"]["temperature"] == llm.sampling.temperature
    assert (found["model_path"], found["total_slots"]) == ("tiny", llm.loaded.max_seqs)
    assert "m.role" in found["chat_template"]
    slots = client.get("/slots").json()
    assert len(slots) == llm.loaded.max_seqs
    assert slots[0] == {"id": 0, "n_ctx": 1024, "is_processing": False}


def test_questions_load_no_model(tiny_path: Any) -> None:
    client = TestClient(make_app(Settings(), Pool({"tiny": str(tiny_path)}, LLM)), base_url=URL)
    assert client.get("/props").status_code == client.get("/slots").status_code == 503
    assert client.get("/props?model=none").status_code == 404


def test_the_template_is_applied(client: TestClient) -> None:
    found = client.post("/apply-template", json={"messages": HELLO}).json()
    assert found == {"prompt": "user: hello\nassistant:"}


def test_the_prompt_for_filling_in(coder: LLM, llm: LLM) -> None:
    tokenizer = coder.tokenizer
    before, between, after, file = (tokenizer.token_id(text) for text in CONTROL)
    ends = [before, *tokenizer.encode("a("), between, *tokenizer.encode(")b"), after]
    assert infill_prompt(tokenizer, "a(", ")b") == ends
    files = [file, *tokenizer.encode("x.py\n1\n")]
    assert infill_prompt(tokenizer, "a(", ")b", files=[File("x.py", "1")], middle="c") == [
        *files, *ends, *tokenizer.encode("c")
    ]  # fmt: skip
    with pytest.raises(RequestError, match="no tokens for filling in"):
        infill_prompt(llm.tokenizer, "a", "b")


def test_filling_in_by_every_api(coder: LLM, llm: LLM) -> None:
    client = client_of(coder)
    expected = coder.generate(infill_prompt(coder.tokenizer, "a(", ")b"), max_tokens=8, temperature=0).text
    asked = {
        "input_prefix": "a(",
        "input_suffix": ")b",
        "n_predict": 8,
        "temperature": 0,
        "samplers": ["top_k", "temperature"],
    }
    found = client.post("/infill", json=asked).json()
    assert (found["content"], found["stop_type"], found["tokens_predicted"]) == (expected, "limit", 8)
    streamed = client.post("/infill", json={**asked, "stream": True}).text.strip().split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in streamed]
    assert "".join(one["content"] for one in events) == expected
    assert [one["stop"] for one in events] == [False] * (len(events) - 1) + [True]
    asked = {"prompt": "a(", "suffix": ")b", "max_tokens": 8, "temperature": 0}
    assert client.post("/v1/completions", json=asked).json()["choices"][0]["text"] == expected
    options = {"num_predict": 8, "temperature": 0}
    asked = {"model": "coder", "prompt": "a(", "suffix": ")b", "options": options, "stream": False}
    assert client.post("/api/generate", json=asked).json()["response"] == expected
    assert "insert" in client.post("/api/show", json={"model": "coder"}).json()["capabilities"]


def test_models_that_cannot_fill_in_refuse(client: TestClient) -> None:
    asked = {"prompt": "a(", "suffix": ")b"}
    assert "filling in" in client.post("/v1/completions", json=asked).json()["error"]["message"]
    asked = {"input_prefix": "a(", "input_suffix": ")b"}
    assert client.post("/infill", json=asked).status_code == 400
    assert client.post("/v1/completions", json={"prompt": [1, 2], "suffix": "b"}).status_code == 400
