from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from fewbit.errors import FewbitError
from fewbit.llm import LLM
from fewbit.server.app import make_app
from fewbit.server.pool import Pool
from fewbit.server.settings import Settings

from .conftest import URL, client_of
from .scripted import CALL, SCHEMA, says

HELLO = [{"role": "user", "content": "hello"}]
CHAT, GENERATE = "/api/chat", "/api/generate"
ASKED: dict[str, Any] = {"model": "tiny:latest", "options": {"num_predict": 8, "temperature": 0}}
TOOL = {"type": "function", "function": {"name": "weather", "description": "It.", "parameters": SCHEMA}}


def wait_until(is_so: Callable[[], bool]) -> None:
    for _ in range(1000):
        if is_so():
            return
        time.sleep(0.02)
    raise AssertionError("it did not come to be")


def post(client: TestClient, path: str, status: int = 200, **more: Any) -> dict[str, Any]:
    answer = client.post(path, json={**ASKED, "stream": False, **more})
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


def lines(client: TestClient, path: str, **more: Any) -> list[dict[str, Any]]:
    answer = client.post(path, json={**ASKED, **more})
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def check_done(record: dict[str, Any], prompt_tokens: int, tokens: int) -> None:
    assert record["done"] is True
    assert (record["prompt_eval_count"], record["eval_count"]) == (prompt_tokens, tokens)
    assert record["total_duration"] >= record["prompt_eval_duration"] > 0
    assert record["load_duration"] >= 0
    assert record["eval_duration"] > 0


def test_a_chat_is_that_of_the_model(client: TestClient, llm: LLM) -> None:
    found, expected = post(client, CHAT, messages=HELLO), llm.chat(HELLO, max_tokens=8, temperature=0)
    assert found["message"] == {"role": "assistant", "content": expected.text}
    assert found["done_reason"] == "length"
    assert found["model"] == "tiny"
    check_done(found, expected.prompt_tokens, 8)


def test_a_chat_streams_lines(client: TestClient, llm: LLM) -> None:
    found, expected = lines(client, CHAT, messages=HELLO), llm.chat(HELLO, max_tokens=8, temperature=0)
    assert "".join(record["message"]["content"] for record in found) == expected.text
    assert [record["done"] for record in found[:-1]] == [False] * (len(found) - 1)
    check_done(found[-1], expected.prompt_tokens, 8)


def test_generate_uses_the_template_and_gives_a_context(client: TestClient, llm: LLM) -> None:
    found = post(client, GENERATE, prompt="hello", system="be brief")
    said = [{"role": "system", "content": "be brief"}, *HELLO]
    expected = llm.chat(said, max_tokens=8, temperature=0)
    assert found["response"] == expected.text
    assert found["context"] == [*llm.chat_prompt(said), *expected.tokens]
    again = post(client, GENERATE, prompt="more", context=found["context"])
    whole = [*found["context"], *llm.chat_prompt([{"role": "user", "content": "more"}])]
    assert again["response"] == llm.generate(whole, max_tokens=8, temperature=0).text


def test_generate_streams_lines(client: TestClient, llm: LLM) -> None:
    found = lines(client, GENERATE, prompt="hello")
    expected = llm.chat(HELLO, max_tokens=8, temperature=0)
    assert "".join(record["response"] for record in found) == expected.text
    assert found[-1]["context"][-8:] == expected.tokens
    check_done(found[-1], expected.prompt_tokens, 8)


def test_a_raw_prompt_stays_as_it_is(client: TestClient, llm: LLM) -> None:
    found = post(client, GENERATE, prompt="Once upon", raw=True)
    assert found["response"] == llm.generate("Once upon", max_tokens=8, temperature=0).text
    assert "context" not in found
    assert "raw" in post(client, GENERATE, 400, prompt="a", raw=True, system="b")["error"]
    assert "too long" in post(client, GENERATE, 400, prompt="x" * 5000, raw=True)["error"]


def test_options_are_those_of_the_model(client: TestClient, llm: LLM) -> None:
    options = {"num_predict": 12, "temperature": 0.9, "top_k": 9, "top_p": 0.9, "min_p": 0.01, "seed": 7}
    more = {"repeat_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.1, "stop": ["never"]}
    found = post(client, CHAT, messages=HELLO, options={**options, **more, "num_ctx": 512, "num_thread": 2})
    renamed = {"max_tokens": 12, "repetition_penalty": 1.2}
    kept = {name: value for name, value in {**options, **more}.items() if name not in ("num_predict", "repeat_penalty")}
    assert found["message"]["content"] == llm.chat(HELLO, **renamed, **kept).text


def test_log_probabilities(client: TestClient, llm: LLM) -> None:
    found = post(client, GENERATE, prompt="hello", logprobs=True, top_logprobs=2)
    assert len(found["logprobs"]) == 8
    assert len(found["logprobs"][0]["top_logprobs"]) == 2
    streamed = lines(client, GENERATE, prompt="hello", logprobs=True, top_logprobs=2)
    assert [one for record in streamed for one in record.get("logprobs", ())] == found["logprobs"]


def test_tool_calls(tool_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, tool_llm, "Hm. ", CALL)
    client = client_of(tool_llm)
    message = post(client, CHAT, messages=HELLO, tools=[TOOL])["message"]
    assert message["content"] == "Hm."
    function = {"name": "weather", "arguments": {"city": "Riga"}, "index": 0}
    assert [call["function"] for call in message["tool_calls"]] == [function]
    streamed = lines(client, CHAT, messages=HELLO, tools=[TOOL])
    calls = [call for record in streamed for call in record["message"].get("tool_calls", ())]
    assert [call["function"] for call in calls] == [function]


def test_calls_and_results_are_told(tool_llm: LLM) -> None:
    function = {"name": "weather", "arguments": {"city": "Riga"}}
    talk = [
        *HELLO,
        {"role": "assistant", "content": "", "tool_calls": [{"function": function}]},
        {"role": "tool", "tool_name": "weather", "content": "rain"},
    ]
    found = post(client_of(tool_llm), CHAT, messages=talk)
    plain = [
        *HELLO,
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": function}]},
        {"role": "tool", "name": "weather", "content": "rain"},
    ]
    plain[1]["tool_calls"][0]["id"] = "call_0"  # type: ignore[index]
    assert found["message"]["content"] == tool_llm.chat(plain, max_tokens=8, temperature=0).text


def test_errors_in_a_stream_are_lines(tool_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, tool_llm, "so", error=FewbitError("it broke"))
    assert lines(client_of(tool_llm), CHAT, messages=HELLO)[-1] == {"error": "it broke"}


@pytest.mark.parametrize(
    ("path", "more", "said"),
    [
        (CHAT, {"format": "xml"}, "format: "),
        (CHAT, {"format": {"type": "thing"}}, "format: "),
        (CHAT, {"options": {"mirostat": 1}}, "options.mirostat is not supported"),
        (CHAT, {"options": {"repeat_last_n": 32, "repeat_penalty": 1.1}}, "options.repeat_last_n is not supported"),
        (CHAT, {"messages": [{**HELLO[0], "images": ["aGk="]}]}, "the model reads text only"),
        (CHAT, {"keep_alive": "soon"}, "keep_alive"),
        (CHAT, {"top_logprobs": 3}, "top_logprobs needs"),
        (GENERATE, {"suffix": "end"}, "no tokens for filling in"),
        (GENERATE, {"suffix": "end", "system": "be brief"}, "suffix goes with"),
        (GENERATE, {"template": "{{ .Prompt }}"}, "template is not supported"),
        (GENERATE, {"images": ["aGk="]}, "the model reads text only"),
        (GENERATE, {"context": [10**9]}, "token"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    client: TestClient, path: str, more: dict[str, Any], said: str
) -> None:
    asked = {"messages": HELLO} if path == CHAT else {"prompt": "hello"}
    assert said in post(client, path, 400, **{**asked, **more})["error"]


@pytest.mark.parametrize("keep_alive", ["5m", "1h30m", -1, 0, "300"])
def test_keep_alive_changes_no_answer(client: TestClient, llm: LLM, keep_alive: Any) -> None:
    found = post(client, CHAT, messages=HELLO, keep_alive=keep_alive, think=False, truncate=False, format="")
    assert found["message"]["content"] == llm.chat(HELLO, max_tokens=8, temperature=0).text


def test_no_prompt_loads_a_model_and_keep_alive_0_puts_it_away(tiny_path: Path) -> None:
    pool = Pool({"tiny": str(tiny_path)}, lambda source: LLM(source, ctx=256, threads=1))
    with TestClient(make_app(Settings(), pool), base_url=URL) as client:
        assert client.get("/api/ps").json() == {"models": []}
        assert post(client, CHAT)["done_reason"] == "load"
        assert client.get("/api/ps").json()["models"][0]["context_length"] == 256
        assert lines(client, GENERATE, keep_alive=0)[0]["done_reason"] == "unload"
        assert pool.loaded() == []


def test_a_pinned_model_stays(client: TestClient) -> None:
    assert "pinned" in post(client, GENERATE, 400, keep_alive=0)["error"]
    post(client, CHAT, messages=HELLO, keep_alive=0)
    (model,) = client.get("/api/ps").json()["models"]
    assert model["expires_at"].startswith("9999")


@pytest.mark.parametrize("stream", [False, True])
def test_keep_alive_0_beside_a_prompt_puts_the_model_away_after_the_answer(tiny_path: Path, stream: bool) -> None:
    pool = Pool({"tiny": str(tiny_path)}, lambda source: LLM(source, ctx=256, threads=1))
    with TestClient(make_app(Settings(), pool), base_url=URL) as client:
        found = client.post(CHAT, json={**ASKED, "messages": HELLO, "keep_alive": 0, "stream": stream})
        assert json.loads(found.text.splitlines()[-1])["eval_count"] == 8
        wait_until(lambda: client.get("/api/ps").json() == {"models": []})
        post(client, CHAT, messages=HELLO)  # it is loaded again, and now it stays
        (model,) = client.get("/api/ps").json()["models"]
        assert model["expires_at"].startswith("9999")
        client.post("/api/embed", json={"model": "tiny", "input": "hello", "keep_alive": "0s"})
        wait_until(lambda: client.get("/api/ps").json() == {"models": []})


def test_keep_alive_is_the_time_without_use(tiny_path: Path) -> None:
    pool = Pool({"tiny": str(tiny_path)}, lambda source: LLM(source, ctx=256, threads=1))
    with TestClient(make_app(Settings(), pool), base_url=URL) as client:

        def expires(**more: Any) -> datetime:
            post(client, CHAT, messages=HELLO, **more)
            (model,) = client.get("/api/ps").json()["models"]
            return datetime.fromisoformat(model["expires_at"])

        first, hour = expires(keep_alive="1h"), timedelta(hours=1)
        assert timedelta(0) < first - datetime.now(UTC) <= hour
        assert first < expires() <= datetime.now(UTC) + hour  # used again, without another word
        assert expires(keep_alive=-1).year == 9999
        assert expires(keep_alive=10**30).year == 9999
        assert expires(keep_alive="90m") > first
        post(client, CHAT, messages=HELLO, keep_alive="50ms")
        wait_until(lambda: pool.loaded() == [])


def test_tags_and_show_describe_models(client: TestClient, tiny_path: Path) -> None:
    (listed,) = client.get("/api/tags").json()["models"]
    assert (listed["name"], listed["size"]) == ("tiny:latest", tiny_path.stat().st_size)
    assert len(listed["digest"]) == 64
    assert listed["details"]["family"] == "llama"
    shown = client.post("/api/show", json={"model": listed["name"]}).json()
    assert shown["details"] == listed["details"]
    assert shown["model_info"]["llama.context_length"] == 1 << 16
    assert shown["capabilities"] == ["completion"]
    assert "m.role" in shown["template"]
    assert str(tiny_path) not in json.dumps(shown)
    assert client.post("/api/show", json={"name": "other"}).status_code == 404
    assert client.post("/api/show", json={}).json() == {"error": "model is required"}


def test_a_model_that_is_not_loaded_is_described(tiny_path: Path) -> None:
    pool = Pool({"tiny": str(tiny_path), "gone": "gone.gguf"}, LLM)
    client = TestClient(make_app(Settings(), pool), base_url=URL)
    first, second = client.get("/api/tags").json()["models"]
    assert (first["details"]["format"], second["size"]) == ("gguf", 0)


@pytest.mark.parametrize("what", ["pull", "push", "create", "copy", "delete"])
def test_models_are_not_changed(client: TestClient, what: str) -> None:
    method = "DELETE" if what == "delete" else "POST"
    answer = client.request(method, f"/api/{what}", json={"model": "tiny"})
    assert answer.status_code == 400
    assert f"{what} is not supported" in answer.json()["error"]


def test_the_version_is_told(client: TestClient) -> None:
    assert client.get("/api/version").json()["version"]


def test_an_unknown_model_is_not_found(client: TestClient) -> None:
    assert "there is no model" in post(client, CHAT, 404, model="other", messages=HELLO)["error"]
