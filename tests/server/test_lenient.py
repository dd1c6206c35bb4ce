"""Requests as clients really send them are answered; what had no effect is in the log and in a header."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from starlette.testclient import TestClient

from fewbit.llm import LLM
from fewbit.server.bodies import Body, decode
from fewbit.server.errors import ApiError
from fewbit.server.ignored import HEADER

from .conftest import client_of

HELLO = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"
LONG = [{"role": "user", "content": "x" * 1500}]


class Inner(Body):
    a: int | None = None


class Outer(Body):
    refused: ClassVar[dict[str, tuple[Any, ...]]] = {"grammar": ("",)}
    count: int = 3
    inner: list[Inner] | None = None


def test_unknown_fields_and_null_are_left_out() -> None:
    found, ignored = decode(b'{"count": null, "inner": [{"a": 2.0, "id": 1}, {"id": 2}], "extra": null}', Outer)
    assert (found.count, [one.a for one in found.inner or ()]) == (3, [2, None])
    assert ignored == ["count", "inner[].id", "extra"]


def test_fields_that_change_the_answer_are_refused() -> None:
    assert decode(b'{"grammar": "", "other": 1}', Outer)[1] == ["grammar", "other"]
    with pytest.raises(ApiError, match="grammar is not supported"):
        decode(b'{"grammar": "root"}', Outer)


@pytest.mark.parametrize("data", [b'{"count": 2.5}', b'{"inner": 5}', b'{"inner": [{"a": "x"}]}', b"[]", b"{"])
def test_wrong_values_are_errors(data: bytes) -> None:
    with pytest.raises(ApiError) as found:
        decode(data, Outer)
    assert found.value.status == 400


def test_a_strict_server_refuses_unknown_fields(llm: LLM) -> None:
    strict = client_of(llm, strict=True)
    found = strict.post(CHAT, json={"messages": HELLO, "fancy": 1})
    assert "fancy is not supported" in found.json()["error"]["message"]
    with pytest.raises(ApiError):
        decode(b'{"count": null}', Outer, strict=True)


def test_what_is_ignored_is_told_once(client: TestClient, capsys: pytest.CaptureFixture[str]) -> None:
    body = {"messages": [{**HELLO[0], "id": "m1"}], "max_tokens": 1, "verbosity": "low", "bad\nname": 1}
    found = client.post(CHAT, json=body)
    assert found.headers[HEADER] == "messages[].id, verbosity, bad?name"
    lines = [line for line in capsys.readouterr().err.splitlines() if " ignored " in line]
    assert len(lines) == 1
    assert lines[0].endswith("path=/v1/chat/completions fields=messages[].id, verbosity, bad?name")
    assert HEADER not in client.post(CHAT, json={"messages": HELLO, "max_tokens": 1}).headers


def test_many_names_do_not_fill_the_log(client: TestClient) -> None:
    found = client.post(CHAT, json={"messages": HELLO, "max_tokens": 1, **{f"{n}{'x' * 500}": 1 for n in range(100)}})
    assert found.status_code == 200
    assert found.headers[HEADER].endswith(" and 84 others")
    assert len(found.headers[HEADER]) < 1200


def chat(client: TestClient, **more: Any) -> dict[str, Any]:
    answer = client.post(CHAT, json={"messages": HELLO, "max_tokens": 8, "temperature": 0, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_seed_of_minus_one_is_random(client: TestClient) -> None:
    def texts(seed: int) -> set[str]:
        return {
            chat(client, seed=seed, temperature=1, max_tokens=20)["choices"][0]["message"]["content"] for _ in range(3)
        }

    assert len(texts(-1)) == 3
    assert len(texts(-5)) == 1


def test_minus_one_tokens_are_all_that_fit(client: TestClient, llm: LLM) -> None:
    found = chat(client, max_tokens=-1)
    assert found["usage"]["total_tokens"] == llm.engine.max_length
    assert found["choices"][0]["finish_reason"] == "length"


def test_ignore_eos_goes_on_after_the_end(client: TestClient, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    text = llm.chat(HELLO, temperature=0, max_tokens=8)
    monkeypatch.setattr(llm.engine, "eos_ids", frozenset([text.tokens[2]]))
    assert chat(client)["usage"]["completion_tokens"] == 2
    assert chat(client, ignore_eos=True)["usage"]["completion_tokens"] == 8


def test_penalties_by_other_names(client: TestClient) -> None:
    text = chat(client, repetition_penalty=1.5)["choices"][0]["message"]["content"]
    assert chat(client, repeat_penalty=1.5)["choices"][0]["message"]["content"] == text


def test_reasoning_effort_reaches_the_template(client: TestClient, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    chat_prompt = llm.chat_prompt
    monkeypatch.setattr(llm, "chat_prompt", lambda *a, **b: given.append(b["template"]) or chat_prompt(*a, **b))
    chat(client, reasoning_effort="none")
    chat(client, reasoning_effort="high", chat_template_kwargs={"enable_thinking": True})
    client.post("/v1/responses", json={"input": "hello", "max_output_tokens": 1, "reasoning": {"effort": "low"}})
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 1, "thinking": {"type": "enabled"}}
    client.post("/v1/messages", json=asked)
    client.post("/api/chat", json={"model": "tiny", "messages": HELLO, "options": {"num_predict": 1}, "think": True})
    assert given == [
        {"reasoning_effort": "none", "enable_thinking": False},
        {"reasoning_effort": "high", "enable_thinking": True},
        {"reasoning_effort": "low"},
        {"enable_thinking": True, "thinking": True},
        {"enable_thinking": True, "thinking": True},
    ]


def test_prompts_that_are_too_long_in_the_words_of_each_api(client: TestClient, llm: LLM) -> None:
    count = llm.count_tokens(LONG)
    found = client.post(CHAT, json={"messages": LONG})
    assert found.status_code == 400
    assert found.json()["error"] == {
        "message": f"This model's maximum context length is 1024 tokens. However, your messages resulted in {count} "
        "tokens. Please reduce the length of the messages.",
        "type": "invalid_request_error", "param": None, "code": "context_length_exceeded",
    }  # fmt: skip
    found = client.post("/v1/messages", json={"model": "tiny", "messages": LONG, "max_tokens": 8})
    assert found.status_code == 400
    assert found.json()["error"]["message"] == f"prompt is too long: {count} tokens > 1024 maximum"
    for text in ("x" * 100_000, "x" * 2_000_000):  # neither is tokenized
        huge = [{"role": "user", "content": text}]
        assert "resulted in at least " in client.post(CHAT, json={"messages": huge}).json()["error"]["message"]
    assert client.post("/v1/responses", json={"input": "x" * 1500}).json()["error"]["code"] == "context_length_exceeded"


def test_responses_truncate_if_asked(client: TestClient, llm: LLM) -> None:
    talk = [{"role": "user", "content": "y" * 900}, {"role": "assistant", "content": "I"}, *HELLO]
    items = [*talk[:1], {"role": "system", "content": "brief"}, *talk[1:], *talk]
    refused = client.post("/v1/responses", json={"input": items, "max_output_tokens": 8})
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    asked = {"input": items, "max_output_tokens": 8, "temperature": 0, "truncation": "auto"}
    found = client.post("/v1/responses", json=asked)
    kept = [{"role": "system", "content": "brief"}, *talk[1:], *talk]
    assert found.headers[HEADER] == "messages (the oldest)"
    assert found.json()["output"][0]["content"][0]["text"] == llm.chat(kept, max_tokens=8, temperature=0).text


def test_models_in_the_shape_of_anthropic(client: TestClient) -> None:
    headers = {"anthropic-version": "2023-06-01"}
    found = client.get("/v1/models", headers=headers).json()
    assert (found["first_id"], found["has_more"]) == ("tiny", False)
    assert (found["data"][0]["type"], found["data"][0]["display_name"]) == ("model", "tiny")
    assert client.get("/v1/models/tiny", headers=headers).json() == found["data"][0]
    assert client.get("/v1/models").json()["object"] == "list"


def test_shorter_vectors(client: TestClient, llm: LLM) -> None:
    whole = llm.embed("hello")[:8]
    expected = whole / np.linalg.norm(whole)
    found = client.post("/v1/embeddings", json={"input": "hello", "dimensions": 8}).json()["data"][0]["embedding"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    found = client.post("/api/embed", json={"model": "tiny", "input": "hello", "dimensions": 8}).json()
    np.testing.assert_allclose(found["embeddings"][0], expected, rtol=1e-5)


def ollama(client: TestClient, **more: Any) -> Any:
    body = {"model": "tiny", "messages": HELLO, "stream": False, **more}
    body["options"] = {"num_predict": 8, "temperature": 0, **more.get("options", {})}
    return client.post("/api/chat", json=body)


def test_the_options_that_ollama_clients_send(client: TestClient, llm: LLM) -> None:
    options = {
        "num_keep": 5, "seed": -1, "num_predict": 8, "top_k": 20, "top_p": 0.9, "min_p": 0.0, "typical_p": 1.0,
        "repeat_last_n": 64, "temperature": 0.0, "repeat_penalty": 1.0, "presence_penalty": 0.0, "num_ctx": 131072,
        "frequency_penalty": 0.0, "penalize_newline": True, "stop": [], "numa": False, "num_batch": 2, "num_gpu": 1,
        "main_gpu": 0, "use_mmap": True, "num_thread": 8, "mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1,
        "tfs_z": 1.0, "f16_kv": True, "vocab_only": False, "low_vram": False, "use_mlock": False, "fancy": 1,
    }  # fmt: skip
    found = ollama(client, options=options, shift=True, truncate=True)
    assert found.json()["message"]["content"] == llm.chat(HELLO, max_tokens=8, temperature=0, top_k=20).text
    ignored = set(found.headers[HEADER].split(", "))
    assert ignored == {
        "options.num_ctx", "options.repeat_last_n", "options.fancy", "options.f16_kv", "options.vocab_only"
    }  # fmt: skip
    for number in (-1, -2):
        whole = ollama(client, options={"num_predict": number, "num_ctx": 256}).json()
        assert whole["prompt_eval_count"] + whole["eval_count"] == llm.engine.max_length


def test_repeat_last_n_of_0_turns_penalties_off(client: TestClient, llm: LLM) -> None:
    plain = llm.chat(HELLO, max_tokens=8, temperature=0, repetition_penalty=1.0).text
    found = ollama(client, options={"repeat_last_n": 0, "repeat_penalty": 1.9})
    assert found.json()["message"]["content"] == plain


def test_ollama_leaves_out_old_messages(client: TestClient, llm: LLM) -> None:
    old = [{"role": "user", "content": "y" * 600}, {"role": "assistant", "content": "z" * 600}]
    system = {"role": "system", "content": "be brief"}
    found = ollama(client, messages=[system, *old, *HELLO])
    assert found.headers[HEADER] == "messages (the oldest)"
    kept = [system, old[1], *HELLO]
    assert found.json()["message"]["content"] == llm.chat(kept, max_tokens=8, temperature=0).text
    narrow = ollama(client, messages=[system, *old, *HELLO], options={"num_ctx": 256})
    kept = [system, *HELLO]
    assert narrow.json()["message"]["content"] == llm.chat(kept, max_tokens=8, temperature=0).text
    assert ollama(client, messages=[system, *old, *HELLO], truncate=False).status_code == 400
    assert ollama(client, messages=LONG).status_code == 400  # the last message stays


def test_the_version_is_one_that_clients_accept(client: TestClient) -> None:
    version = client.get("/api/version").json()["version"]
    assert [part.isdecimal() for part in version.split(".")] == [True] * 3
    assert tuple(map(int, version.split("."))) >= (0, 13, 4)


def test_bodies_stay_plain_structs() -> None:
    assert "refused" not in msgspec.structs.asdict(Outer())
