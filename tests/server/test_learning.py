"""A server that learns: votes make a version in a process beside it, and the version in use is served at once."""

from __future__ import annotations

import importlib
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from fewbit.cli import main
from fewbit.files.adapter_versions import AdapterVersion, AdapterVersions
from fewbit.files.feedback import FeedbackStore
from fewbit.llm import LLM
from fewbit.server.app import make_app
from fewbit.server.pool import Pool
from fewbit.server.settings import LearnOptions, Settings

from ..cli.tiny import start, write_tiny
from .conftest import GREEDY, URL
from .test_serve import address

pytest.importorskip("torch", reason="training needs torch")
tune_from_feedback: Any = importlib.import_module("fewbit.tuning").tune_from_feedback

ADAPTER = Path(__file__).parents[1] / "zoo" / "llama" / "adapter"
QUICK = {"rank": 4, "epochs": 4, "batch": 4, "learning_rate": 1e-2}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", hidden=32, feed_forward=64)


@pytest.fixture
def llm(path: Path) -> Iterator[LLM]:
    with LLM(path, ctx=1024, threads=1, batch_invariant=True) as found:
        yield found


@pytest.fixture(autouse=True)
def watchful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewbit.server.learning.WATCH_SECONDS", 0.1)


def vote(store: Path, count: int = 20, model: str = "tiny", begin: int = 0) -> None:
    """Two answers to each question; the short one is good."""
    votes = FeedbackStore(store)
    for number in range(begin, begin + count):
        messages = [{"role": "user", "content": f"q{number}"}]
        for place, text in enumerate(("a" * 3, "a" * 12)):
            votes.keep(f"{model}{number}", place, model, messages, text)
            votes.rate(f"{model}{number}", place, "bad" if place else "good")
    votes.close()


def client_of(llm: LLM, folder: Path, **learn: Any) -> TestClient:
    options = LearnOptions(str(folder / "adapters"), **{"every_seconds": 0, "threads": 1, "training": QUICK, **learn})
    settings = Settings(feedback=str(folder / "votes.db"), learn=options)
    return TestClient(make_app(settings, Pool.of(llm), close_pool=False), base_url=URL)


def wait_until(is_so: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.2)


def learning(client: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/stats").json()["learning"]
    return found


def text(client: TestClient, model: str) -> str:
    answer = client.post("/v1/completions", json={"model": model, "prompt": "q1", **GREEDY})
    found: str = answer.json()["choices"][0]["text"]
    return found


def runs(client: TestClient, result: str) -> bool:
    return f'fewbit_learning_runs_total{{model="tiny",result="{result}"}}' in client.get("/metrics").text


def use(folder: Path, version: str) -> None:
    assert CliRunner().invoke(main, ["adapters", str(folder / "adapters"), "--use", version]).exit_code == 0


def test_votes_change_the_running_server(llm: LLM, tmp_path: Path) -> None:
    vote(tmp_path / "votes.db", 30, model="other")  # another model's answers teach nothing
    with client_of(llm, tmp_path) as client, ThreadPoolExecutor(2) as threads:
        plain = text(client, "tiny")
        assert text(client, "tiny:learned") == plain
        assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["tiny", "tiny:learned"]
        assert learning(client) == {
            "model": "tiny:learned", "state": "waiting", "version": None, "votes": 0, "step": 0, "steps": 0,
            "error": None,
        }  # fmt: skip
        vote(tmp_path / "votes.db")
        wait_until(lambda: learning(client)["state"] == "training")
        while learning(client)["version"] is None:  # no request is dropped while versions change
            found = [threads.submit(text, client, "tiny:learned") for _ in range(2)]
            assert all(one.result() for one in found)
            time.sleep(0.2)
        taught = text(client, "tiny:learned")
        assert taught != plain
        assert text(client, "tiny") == plain
        wait_until(lambda: runs(client, "better"))
        use(tmp_path, "none")
        wait_until(lambda: learning(client)["version"] is None)
        assert text(client, "tiny:learned") == plain
        use(tmp_path, "v1")
        wait_until(lambda: learning(client)["version"] == "v1")
        assert text(client, "tiny:learned") == taught
    llm.unload_adapter("learned")
    with client_of(llm, tmp_path) as client:  # started again
        assert text(client, "tiny:learned") == taught
        assert (learning(client)["version"], learning(client)["votes"]) == ("v1", 0)


def test_two_servers_share_votes_and_versions(path: Path, llm: LLM, tmp_path: Path) -> None:
    other = LLM(path, ctx=1024, threads=1, batch_invariant=True)
    with other, client_of(llm, tmp_path) as first, client_of(other, tmp_path) as second:
        vote(tmp_path / "votes.db")
        wait_until(lambda: [learning(client)["version"] for client in (first, second)] == ["v1", "v1"])
        assert text(first, "tiny:learned") == text(second, "tiny:learned")
        wait_until(lambda: {learning(client)["state"] for client in (first, second)} == {"waiting"})
        assert [learning(client)["error"] for client in (first, second)] == [None, None]
    assert len(AdapterVersions(tmp_path / "adapters").versions) == 1


def test_a_worse_version_is_not_served(path: Path, llm: LLM, tmp_path: Path) -> None:
    vote(tmp_path / "votes.db")
    assert tune_from_feedback(path, tmp_path / "votes.db", tmp_path / "adapters", threads=1, **QUICK).is_better
    vote(tmp_path / "votes.db", 4, begin=20)
    with client_of(llm, tmp_path, training={**QUICK, "epochs": 1, "learning_rate": 1e-6}) as client:
        taught = text(client, "tiny:learned")
        wait_until(lambda: runs(client, "worse"))
        assert text(client, "tiny:learned") == taught
        assert learning(client)["version"] == "v1"
    assert [one.is_better for one in AdapterVersions(tmp_path / "adapters").versions] == [True, False]


def test_when_it_learns(llm: LLM, tmp_path: Path) -> None:
    """Neither without new votes, nor too early, nor while another process trains in the folder."""
    vote(tmp_path / "votes.db", 12)
    versions = AdapterVersions(tmp_path / "adapters")
    versions.add(AdapterVersion("v1", 24, 1.0, 0.5, False, time.time()), None)
    with client_of(llm, tmp_path) as client:
        time.sleep(0.5)
        assert (learning(client)["votes"], learning(client)["state"]) == (0, "waiting")
        with AdapterVersions(tmp_path / "adapters").training():
            vote(tmp_path / "votes.db", 2, begin=12)
            wait_until(lambda: learning(client)["votes"] == 4)
            time.sleep(0.5)
            assert learning(client)["state"] == "waiting"
    for learn in ({"every_seconds": 3600}, {"after_votes": 5}):
        with client_of(llm, tmp_path, **learn) as client:
            wait_until(lambda: learning(client)["votes"] == 4)
            time.sleep(0.5)
            assert learning(client)["state"] == "waiting"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ('echo \'{"what": "a", "done": 1, "total": 2}\'; echo \'{"error": "the votes are odd"}\'', "the votes are odd"),
        ("exit 3", "training ended with status 3"),
        ("kill -9 $$", "training was ended by signal 9; was memory short?"),
    ],
)
def test_training_that_fails_is_told(
    llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nread arguments\n{script}\n")
    python.chmod(0o700)
    monkeypatch.setattr("fewbit.server.learning.sys", SimpleNamespace(executable=str(python)))
    vote(tmp_path / "votes.db")
    with client_of(llm, tmp_path) as client:
        wait_until(lambda: runs(client, "failed"))
        assert why in learning(client)["error"]
        assert text(client, "tiny:learned")


def test_a_damaged_version_is_not_served(llm: LLM, tmp_path: Path) -> None:
    folder = tmp_path / "adapters" / "v1"
    versions = AdapterVersions(folder.parent)
    versions.add(AdapterVersion("v1", 24, 0.5, 1.0, True, time.time()), None)
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{")
    with client_of(llm, tmp_path) as client:
        wait_until(lambda: learning(client)["error"] is not None)
        assert "v1 cannot be served" in learning(client)["error"]
        assert (text(client, "tiny"), learning(client)["version"]) == (text(client, "tiny"), None)


def test_a_model_that_is_loaded_later_has_it(path: Path, tmp_path: Path) -> None:
    settings = Settings(feedback=str(tmp_path / "votes.db"), learn=LearnOptions(str(tmp_path / "adapters")))
    pool = Pool({"tiny": str(path)}, lambda source: LLM(source, ctx=256, threads=1))
    with TestClient(make_app(settings, pool), base_url=URL) as client:
        assert text(client, "tiny:learned") == text(client, "tiny")
        assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["tiny", "tiny:learned"]


@pytest.mark.slow
def test_a_server_is_killed_while_it_learns(path: Path, tmp_path: Path) -> None:
    """Its process ends with it, there is no half of a version, and the next server goes on."""
    vote(tmp_path / "votes.db", 120)
    out = tmp_path / "adapters"
    command = ["serve", str(path), "--feedback", str(tmp_path / "votes.db"), "--learn", str(out), "--port", "0"]
    command += ["--ctx", "512", "--threads", "1", "--learn-threads", "1"]
    server = start(*command)
    try:
        url = address(server)
        wait_until(lambda: httpx.get(url + "/stats").json()["learning"]["step"] > 20)
        server.kill()
        wait_until(lambda: not AdapterVersions(out).is_training())
    finally:
        server.kill()
        server.communicate()
    assert AdapterVersions(out).versions == []
    checkpoint = out / "v1" / "checkpoint.pt"
    assert checkpoint.exists()
    server = start(*command)
    try:
        url = address(server)
        first = wait_for_step(url)
        assert first > 20  # not from the begin
        assert httpx.post(url + "/v1/completions", json={"model": "tiny:learned", "prompt": "q", **GREEDY}).is_success
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    finally:
        server.kill()
        server.communicate()
    assert server.returncode == 0
    wait_until(lambda: not AdapterVersions(out).is_training())
    assert AdapterVersions(out).versions == []


def wait_for_step(url: str) -> int:
    while not (step := httpx.get(url + "/stats").json()["learning"]["step"]):
        time.sleep(0.02)
    return int(step)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--learn", "adapters"], "--learn needs --feedback"),
        (["--learn-after", "5"], "--learn-after needs --learn"),
        (["--learn", "a", "--feedback", "v.db", "--learn-every", "soon"], "'soon' is not a duration such as 30m"),
        (["--learn", "a", "--feedback", "v.db", "b=other.gguf"], "--learn is for one model"),
    ],
)
def test_wrong_options(path: Path, args: list[str], why: str) -> None:
    done = CliRunner().invoke(main, ["serve", str(path), *args])
    assert done.exit_code == 2
    assert why in done.stderr


def test_without_torch(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewbit.cli.serve_learning.find_spec", lambda name: None)
    done = CliRunner().invoke(main, ["serve", str(path), "--learn", "a", "--feedback", str(tmp_path / "v.db")])
    assert done.exit_code == 1
    assert "pip install 'fewbit[tune]'" in done.stderr
