"""The OpenAPI document tells of all APIs as they are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from fewbit.llm import LLM
from fewbit.server.app import ROUTES
from fewbit.server.operations import OTHERS, errors_of

from .conftest import client_of

HELLO = [{"role": "user", "content": "hello"}]
REFUSED = ("/api/push", "/api/create", "/api/copy", "/api/blobs", "{response_id}/cancel")
LABELS = ("/v1/rerank", "/v1/score", "/v1/classify")
LLAMA_SERVER = ("/props", "/slots", "/apply-template", "/infill")
CALLS: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": "hello", "max_output_tokens": 3},
    "/v1/responses/input_tokens": {"input": "hello"},
    "/v1/embeddings": {"input": "hello"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 3},
    "/v1/messages/count_tokens": {"messages": HELLO},
    "/api/chat": {"messages": HELLO, "stream": False, "options": {"num_predict": 3}},
    "/api/generate": {"prompt": "hello", "stream": False, "options": {"num_predict": 3}},
    "/api/embed": {"input": "hello"},
    "/api/embeddings": {"prompt": "hello"},
    "/api/show": {},
    "/apply-template": {"messages": HELLO},
}


def test_every_route_is_in_the_document(client: TestClient) -> None:
    found = client.get("/openapi.json").json()
    served = {
        (route.path, method.lower()) for route in ROUTES if isinstance(route, Route) for method in route.methods or ()
    }
    ours = {
        one
        for one in served
        if one[0].startswith(
            (
                "/v1/responses",
                "/v1/e",
                "/v1/mess",
                "/v1/files",
                "/v1/batches",
                "/v1/feedback",
                "/v1/load_lora_adapter",
                "/v1/unload_lora_adapter",
                "/api/",
                "/v1/models/",
                *LABELS,
                *LLAMA_SERVER,
            )
        )
    }
    wanted = {one for one in ours if one[1] != "head" and not any(name in one[0] for name in (*REFUSED, "{model:"))}
    assert wanted == {(path, method) for method, path, *_ in OTHERS}
    assert all(method in found["paths"][path] for path, method in wanted)
    names = [operation["operationId"] for path in found["paths"].values() for operation in path.values()]
    assert len(set(names)) == len(names)


def test_the_document_knows_models_and_streams(client: TestClient) -> None:
    found = client.get("/openapi.json").json()
    schemas = found["components"]["schemas"]
    assert schemas["MessagesRequest"]["properties"]["model"] == {"enum": ["tiny"]}
    assert schemas["ResponseRequest"]["properties"]["model"]["enum"] == ["tiny", None]
    answers = found["paths"]["/api/chat"]["post"]["responses"]["200"]["content"]
    assert set(answers) == {"application/json", "application/x-ndjson"}
    (parameter,) = found["paths"]["/v1/responses/{response_id}"]["delete"]["parameters"]
    assert (parameter["name"], parameter["schema"]) == ("response_id", {"type": "string"})


@pytest.mark.parametrize("path", CALLS)
def test_answers_and_errors_are_as_the_document_says(client: TestClient, llm: LLM, path: str) -> None:
    kinds = {(method, where): answer for method, where, _, _, answer, _ in OTHERS}
    answer = client.post(path, json={"model": "tiny", **CALLS[path]})
    assert answer.status_code == 200, answer.text
    msgspec.convert(answer.json(), kinds["post", path])
    refused = client_of(llm, strict=True).post(path, json={"model": "tiny", **CALLS[path], "fancy": 1})
    assert refused.status_code == 400
    assert "fancy is not supported" in refused.text
    if errors_of(path) is not None:
        msgspec.convert(refused.json(), errors_of(path))


@pytest.mark.parametrize("path", ["/api/tags", "/api/ps", "/api/version", "/props", "/slots"])
def test_lists_are_as_the_document_says(client: TestClient, path: str) -> None:
    kinds = {where: answer for _, where, _, _, answer, _ in OTHERS}
    msgspec.convert(client.get(path).json(), kinds[path])
