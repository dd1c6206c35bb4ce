"""Batches of a server: OpenAI's client, several keys, cancelling, and a server that is killed."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from fewbit.llm import LLM
from fewbit.server.keys import ApiKey

from ..conftest import Live
from ..test_serve import serve
from .requests import GREEDY

openai: Any = pytest.importorskip("openai")

CHAT = "/v1/chat/completions"


def line(number: int, **more: Any) -> str:
    body = {"messages": [{"role": "user", "content": f"message {number}"}], "max_tokens": 8, **GREEDY, **more}
    return json.dumps({"custom_id": f"request {number}", "method": "POST", "url": CHAT, "body": body}) + "\n"


def client_at(url: str, key: str = "none") -> Any:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def upload(client: Any, text: str) -> str:
    return str(client.files.create(file=("in.jsonl", text.encode()), purpose="batch").id)


def create(client: Any, file: str, **more: Any) -> Any:
    return client.batches.create(input_file_id=file, endpoint=CHAT, completion_window="24h", **more)


def wait(client: Any, name: str, is_so: Callable[[Any], bool] = lambda batch: batch.completed_at is not None) -> Any:
    for _ in range(1500):
        batch = client.batches.retrieve(name)
        if is_so(batch) or batch.status in ("failed", "expired", "cancelled"):
            return batch
        time.sleep(0.02)
    raise AssertionError(f"the batch is still {batch.status}")


@pytest.fixture
def server(llm: LLM, tmp_path: Path) -> Any:
    found = Live(llm, files_dir=str(tmp_path / "files"))
    yield found
    found.close()


def test_the_client_of_openai(server: Live) -> None:
    with client_at(server.url) as client:
        file = upload(client, "".join(map(line, range(6))) + line(6, temperature=9) + line(7, model="other"))
        made = create(client, file, metadata={"for": "a test"})
        assert made.status == "validating"
        batch = wait(client, made.id)
        assert (batch.status, batch.request_counts.total) == ("completed", 8)
        assert (batch.request_counts.completed, batch.request_counts.failed) == (6, 2)
        assert batch.metadata == {"for": "a test"}
        assert batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
        answers = [json.loads(text) for text in client.files.content(batch.output_file_id).text.splitlines()]
        assert [one["custom_id"] for one in answers] == [f"request {i}" for i in range(6)]
        expected = client.chat.completions.create(**json.loads(line(3))["body"])
        found = answers[3]["response"]["body"]["choices"][0]["message"]["content"]
        assert found == expected.choices[0].message.content
        errors = [json.loads(text) for text in client.files.content(batch.error_file_id).text.splitlines()]
        assert [one["response"]["status_code"] for one in errors] == [400, 404]
        assert [one.id for one in client.batches.list()] == [batch.id]
        assert {one.purpose for one in client.files.list()} == {"batch", "batch_output"}
        assert client.files.delete(file).deleted
        with pytest.raises(openai.ConflictError):
            client.batches.cancel(batch.id)


@pytest.mark.parametrize(
    ("text", "code", "number"),
    [
        ("", "empty_file", None),
        (line(0) + "\n" + line(0), "duplicate_custom_id", 3),
        (line(0) + "{}\n", "invalid_request", 2),
        (line(0).replace(CHAT, "/v1/embeddings"), "mismatched_endpoint", 1),
    ],
)
def test_wrong_inputs_fail(server: Live, text: str, code: str, number: int | None) -> None:
    with client_at(server.url) as client:
        batch = wait(client, create(client, upload(client, text)).id, lambda one: one.status == "failed")
        assert (batch.errors.data[0].code, batch.errors.data[0].line) == (code, number)
        assert batch.output_file_id is None


def test_a_cancelled_batch_keeps_what_is_done(server: Live) -> None:
    with client_at(server.url) as client:
        file = upload(client, "".join(line(i, max_tokens=40) for i in range(200)))
        name = create(client, file).id
        second = create(client, upload(client, line(0))).id
        assert wait(client, name, lambda one: one.request_counts.completed > 3).status == "in_progress"
        with pytest.raises(openai.ConflictError):
            client.files.delete(file)
        assert client.batches.retrieve(second).status == "validating"  # a key's batches run one by one
        client.batches.cancel(name)
        batch = wait(client, name)
        assert batch.status == "cancelled"
        done = client.files.content(batch.output_file_id).text.splitlines()
        rest = [json.loads(text) for text in client.files.content(batch.error_file_id).text.splitlines()]
        assert len(done) == batch.request_counts.completed > 3
        assert len(done) + len(rest) == 200
        assert {one["error"]["code"] for one in rest} == {"batch_cancelled"}
        assert wait(client, second).status == "completed"


def test_keys_have_batches_of_their_own(llm: LLM, tmp_path: Path) -> None:
    keys = (ApiKey("key-of-ada", "ada", models=frozenset(["tiny"])), ApiKey("key-of-bob", "bob", models=frozenset()))
    server = Live(llm, files_dir=str(tmp_path), api_keys=keys)
    try:
        with client_at(server.url, "key-of-ada") as ada, client_at(server.url, "key-of-bob") as bob:
            file = upload(ada, line(0))
            with pytest.raises(openai.NotFoundError):
                create(bob, file)
            batch = wait(ada, create(ada, file).id)
            assert batch.request_counts.completed == 1
            with pytest.raises(openai.NotFoundError):
                bob.batches.retrieve(batch.id)
            with pytest.raises(openai.NotFoundError):
                bob.files.content(batch.output_file_id)
            assert [*bob.batches.list()] == []
            own = wait(bob, create(bob, upload(bob, line(0))).id)
            assert own.request_counts.failed == 1  # this key may use no model
    finally:
        server.close()


def test_a_batch_waits_for_the_quota_of_its_key(llm: LLM, tmp_path: Path) -> None:
    key = ApiKey("key-of-ada", "ada", requests_per_minute=600)
    server = Live(llm, files_dir=str(tmp_path), api_keys=(key,))
    try:
        quota = server.app.state.fewbit.quotas[key.id]
        with client_at(server.url, "key-of-ada") as client:
            name = create(client, upload(client, line(0) + line(1))).id
            assert wait(client, name).request_counts.completed == 2
            assert quota._requests._level < 598
    finally:
        server.close()


def test_an_expired_batch_ends(server: Live) -> None:
    with client_at(server.url) as client:
        batches = server.app.state.fewbit.batches
        name = create(client, upload(client, "".join(line(i, max_tokens=40) for i in range(150)))).id
        batches._records[name].batch.expires_at = 0
        batch = wait(client, name, lambda one: one.status == "expired")
        assert batch.status == "expired"
        rest = client.files.content(batch.error_file_id).text.splitlines()
        assert json.loads(rest[-1])["error"]["code"] == "batch_expired"


def test_interactive_requests_come_first(server: Live) -> None:
    with client_at(server.url) as client:
        name = create(client, upload(client, "".join(line(i, max_tokens=40) for i in range(150)))).id
        wait(client, name, lambda one: one.request_counts.completed > 0)
        answer = client.chat.completions.create(**json.loads(line(0))["body"])
        assert answer.usage.completion_tokens == 8
        assert client.batches.retrieve(name).status == "in_progress"
        client.batches.cancel(name)
        wait(client, name)


def test_a_server_that_ends_goes_on_at_its_start(tmp_path: Path, tiny_path: Path) -> None:
    text = "".join(line(i, max_tokens=5 + i % 40) for i in range(60))
    outputs = []
    for folder, signals in (("calm", []), ("disturbed", [signal.SIGKILL, signal.SIGTERM])):
        args = (str(tiny_path), "--batch-invariant", "--drain-seconds", "0", "--files-dir", str(tmp_path / folder))
        process, url = serve(*args)
        try:
            with client_at(url) as client:
                name = create(client, upload(client, text)).id
            for number, how in enumerate(signals, 1):
                least = 15 * number
                with client_at(url) as client:
                    wait(client, name, lambda one, least=least: one.request_counts.completed >= least)
                process.send_signal(how)
                process.communicate(timeout=60)
                process, url = serve(*args)
            with client_at(url) as client:
                batch = wait(client, name)
                assert batch.request_counts.completed == 60
                outputs.append(client.files.content(batch.output_file_id).content)
        finally:
            process.kill()
            process.communicate()
    calm, disturbed = ([without_time(text) for text in output.splitlines()] for output in outputs)
    assert calm == disturbed
    assert [*(tmp_path / "disturbed").glob("*.partial")] == []


def without_time(text: bytes) -> Any:
    answer = json.loads(text)
    del answer["response"]["body"]["created"]
    return answer


def test_there_are_so_many_at_most(llm: LLM, tmp_path: Path) -> None:
    server = Live(llm, files_dir=str(tmp_path), max_batches=2)
    try:
        with client_at(server.url) as client:
            file = upload(client, "".join(line(i, max_tokens=40) for i in range(100)))
            names = [create(client, file).id for _ in range(2)]
            with pytest.raises(openai.RateLimitError):
                create(client, file)
            for name in names:
                client.batches.cancel(name)
                assert wait(client, name).status == "cancelled"
    finally:
        server.close()


def test_bodies_are_checked(server: Live) -> None:
    for body in ({}, {"input_file_id": "x", "endpoint": "/v1/responses"}, {"input_file_id": "../x", "endpoint": CHAT}):
        found = httpx.post(f"{server.url}/v1/batches", json=body)
        assert found.status_code in (400, 404), found.text
    assert httpx.get(f"{server.url}/v1/batches/..%2fx").status_code == 404
