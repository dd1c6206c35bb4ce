"""Adapters of a served model: by the names of models, and by vLLM's calls."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from fewbit.llm import LLM

from .conftest import GREEDY, client_of

ZOO = Path(__file__).parents[1] / "zoo" / "llama"
ADAPTER = str(ZOO / "adapter")


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM(ZOO / "model.gguf", ctx=128, threads=1, batch_invariant=True) as found:
        yield found


def text(client: TestClient, model: str | None, **options: Any) -> Any:
    body = {"prompt": [5, 6, 7, 8], **GREEDY, **options}
    answer = client.post("/v1/completions", json=body | ({"model": model} if model else {}))
    return (answer.json()["choices"][0]["text"], answer.json()["model"]) if answer.status_code == 200 else answer


def change(client: TestClient, what: str, **body: Any) -> Any:
    return client.post(f"/v1/{what}_lora_adapter", json=body)


def test_an_adapter_is_a_model(llm: LLM) -> None:
    llm.load_adapter("sql", ADAPTER)
    client = client_of(llm)
    name = llm.model_name
    plain, model = text(client, name)
    assert model == name
    adapted, model = text(client, f"{name}:sql")
    assert (model, adapted != plain) == (f"{name}:sql", True)
    assert text(client, "sql") == (adapted, model)
    assert text(client, name) == (plain, name)
    models = client.get("/v1/models").json()["data"]
    assert [(one["id"], one.get("parent")) for one in models] == [(name, None), (f"{name}:sql", name)]
    assert client.get(f"/v1/models/{name}:sql").json()["parent"] == name
    missing = text(client, f"{name}:other")
    assert missing.status_code == 404
    assert f"there are: {name}, {name}:sql" in missing.json()["error"]["message"]


def test_all_apis_take_an_adapter(llm: LLM) -> None:
    llm.load_adapter("sql", ADAPTER)
    client, name = client_of(llm), f"{llm.model_name}:sql"
    messages = [{"role": "user", "content": "hi"}]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("/v1/embeddings", {"input": "hi"}),
        ("/v1/chat/completions", {"messages": messages, **GREEDY}),
        ("/v1/messages", {"messages": messages, "max_tokens": 4}),
        ("/api/generate", {"prompt": "hi", "stream": False, "options": {"num_predict": 4}}),
    ]
    for path, body in calls:
        answer = client.post(path, json={"model": name, **body})
        if answer.status_code == 400:  # the model has no chat template
            assert "template" in answer.text
            continue
        assert answer.status_code == 200, answer.text
    vectors = [
        client.post("/v1/embeddings", json={"model": model, "input": [5, 6, 7]}).json()["data"][0]["embedding"]
        for model in (llm.model_name, name)
    ]
    assert vectors[0] != vectors[1]


def test_adapters_are_loaded_and_unloaded(llm: LLM) -> None:
    client, name = client_of(llm, allow_changes=True), llm.model_name
    plain, _ = text(client, name)
    done = change(client, "load", lora_name="sql", lora_path=ADAPTER)
    assert (done.status_code, done.text) == (200, "Success: LoRA adapter 'sql' added successfully.")
    adapted, _ = text(client, f"{name}:sql")
    assert adapted != plain
    twice = change(client, "load", lora_name="sql", lora_path=ADAPTER, model=name)
    assert (twice.status_code, "there is an adapter 'sql' already" in twice.text) == (400, True)
    assert change(client, "load", lora_name="sql", lora_path=ADAPTER, load_inplace=True).status_code == 200
    failed = change(client, "load", lora_name="sql", lora_path="/nothing", load_inplace=True)
    assert (failed.status_code, text(client, f"{name}:sql")[0]) == (400, adapted)
    done = change(client, "unload", lora_name="sql", lora_int_id=1)
    assert done.text == "Success: LoRA adapter 'sql' removed successfully."
    assert change(client, "unload", lora_name="sql").status_code == 404
    assert text(client, f"{name}:sql").status_code == 404


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"lora_name": "a", "lora_path": "/nothing"}, "no such file or folder"),
        ({"lora_name": "a b", "lora_path": ADAPTER}, "an adapter's name has letters"),
        ({"lora_name": "a", "lora_path": str(ZOO / "model.gguf")}, "not an adapter"),
        ({"lora_name": "a"}, "lora_path"),
    ],
)
def test_bad_adapters_are_refused(llm: LLM, body: dict[str, Any], why: str) -> None:
    answer = change(client_of(llm, allow_changes=True), "load", **body)
    assert answer.status_code == 400
    assert why in answer.json()["error"]["message"]


def test_changes_must_be_allowed(llm: LLM) -> None:
    for what in ("load", "unload"):
        body = {"lora_name": "a", "lora_path": ADAPTER}
        assert "--allow-changes" in change(client_of(llm), what, **body).text
        assert change(client_of(llm, host="0.0.0.0", allow_changes=True), what, **body).status_code == 403


def test_16_clients_while_adapters_come_and_go(llm: LLM) -> None:
    llm.load_adapter("kept", ADAPTER)
    client, name = client_of(llm, allow_changes=True), llm.model_name
    names = [name, f"{name}:kept"] * 8
    expected = [text(client, model)[0] for model in names]
    with ThreadPoolExecutor(17) as threads:
        for _ in range(2):
            found = [threads.submit(text, client, model) for model in names]
            for _ in range(3):
                assert change(client, "load", lora_name="other", lora_path=ADAPTER).status_code == 200
                assert change(client, "unload", lora_name="other").status_code == 200
            assert [one.result()[0] for one in found] == expected
