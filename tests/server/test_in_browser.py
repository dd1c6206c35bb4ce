"""Plans and files for models in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fewbit.browser import make_plan
from fewbit.llm import LLM
from fewbit.models import open_model
from fewbit.server.keys import ApiKey

from ..browser.described import described
from .conftest import client_of

ZOO = Path(__file__).parents[1] / "zoo"


def asked(name: str = "llama", **changed: Any) -> dict[str, Any]:
    return {**described(open_model(ZOO / name / "model.gguf")), **changed}


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_plan_is_that_of_the_file(name: str, llm: LLM) -> None:
    answer = client_of(llm).post("/local/plan", json=asked(name, ctx=64))
    assert answer.status_code == 200
    found, expected = answer.json(), make_plan(open_model(ZOO / name / "model.gguf"), ctx=64)
    assert found["model"] == expected["model"]
    counts = [{key: len(one["dispatches"]) for key, one in plan["programs"].items()} for plan in (found, expected)]
    assert counts[0] == counts[1]
    assert found["buffers"] == expected["buffers"]
    assert found["kernels"].keys() == expected["kernels"].keys()


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"metadata": {}}, "general.architecture"),
        ({"tensors": []}, "tensors"),
        ({"tensors": [["a", 0, [1 << 40]]]}, "dimensions"),
        ({"tensors": [["a", 99, [4]]]}, "99"),
        ({"vectors": {}}, "bytes are needed"),
        ({"vectors": {"output_norm.weight": "*"}}, "vectors"),
        ({"ctx": 0}, "ctx"),
        ({"limits": {"binding_bytes": 5}}, "binding_bytes"),
    ],
    ids=str,
)
def test_descriptions_that_are_refused(changed: dict[str, Any], part: str, llm: LLM) -> None:
    answer = client_of(llm).post("/local/plan", json=asked(**changed))
    assert answer.status_code == 400
    assert part in answer.json()["error"]["message"]


def test_files_are_shared_if_that_is_wanted(llm: LLM) -> None:
    closed = client_of(llm)
    assert closed.get("/local/models").json() == {"models": []}
    assert closed.get(f"/local/models/{llm.model_name}").status_code == 403
    client, whole = client_of(llm, share_models=True), Path(llm.path).read_bytes()
    assert client.get("/local/models").json() == {"models": [{"name": llm.model_name, "size": len(whole)}]}
    part = client.get(f"/local/models/{llm.model_name}", headers={"Range": "bytes=4-23"})
    assert (part.status_code, part.content) == (206, whole[4:24])
    assert part.headers["content-range"] == f"bytes 4-23/{len(whole)}"
    assert client.get(f"/local/models/{llm.model_name}").content == whole
    past = client.get(f"/local/models/{llm.model_name}", headers={"Range": f"bytes={len(whole)}-"})
    assert past.status_code == 416
    for other in ("nothing", "../tiny.gguf", "%2e%2e/tiny.gguf", f"{llm.model_name}/../x"):
        assert client.get(f"/local/models/{other}").status_code == 404


def test_keys_are_needed_for_all_but_the_page(llm: LLM) -> None:
    keys = (ApiKey("secret"), ApiKey("other", models=frozenset({"another"})))
    client = client_of(llm, share_models=True, api_keys=keys)
    assert client.get("/local").status_code == 200
    for path in ("/local/models", f"/local/models/{llm.model_name}"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"Authorization": "Bearer secret"}).status_code == 200
    assert client.post("/local/plan", json=asked()).status_code == 401
    theirs = {"Authorization": "Bearer other"}
    assert client.get("/local/models", headers=theirs).json() == {"models": []}
    assert client.get(f"/local/models/{llm.model_name}", headers=theirs).status_code == 404


def test_the_page_may_fetch_files_from_elsewhere_and_nothing_else(llm: LLM) -> None:
    found = client_of(llm).get("/local")
    policy = found.headers["content-security-policy"]
    assert "connect-src 'self' https:" in policy
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert "@version@" not in found.text
