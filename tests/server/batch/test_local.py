"""Jobs in one process: every line has one answer, in order, whatever happens."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from fewbit.cli import main
from fewbit.errors import PathError
from fewbit.llm import LLM
from fewbit.server.batch.job import BatchJob, BatchSummary
from fewbit.server.batch.local import run_local

from ...cli.tiny import start
from .requests import read_answers, request, write_requests

ARGS = ("--ctx", "512", "--threads", "1", "--batch-invariant", "--max-seqs", "8", "-q")


def nothing() -> None:
    pass


def run(source: Path, out: Path, llm: LLM, progress: Callable[[], object] = nothing) -> BatchSummary:
    with BatchJob(source, out, {"model": "tiny"}) as job:
        return run_local(job, llm, "tiny", progress)


def test_answers_are_those_of_the_server(tmp_path: Path, llm: LLM, client: TestClient) -> None:
    source, out = write_requests(tmp_path / "in.jsonl", 9), tmp_path / "out.jsonl"
    summary = run(source, out, llm)
    assert (summary.lines, summary.completed, summary.failed) == (9, 9, 0)
    for asked, found in zip(read_answers(source), read_answers(out), strict=True):
        assert found["custom_id"] == asked["custom_id"]
        expected = client.post(asked["url"], json=asked["body"]).json()
        body = found["response"]["body"]
        for name in ("choices", "data"):
            assert body.get(name) == expected.get(name)
        assert body["usage"]["total_tokens"] == expected["usage"]["total_tokens"]


def test_what_is_wrong_stops_nothing(tmp_path: Path, llm: LLM) -> None:
    good = request(0, Random(0))
    bodies: list[Any] = [
        good, {**good, "custom_id": "model", "body": {**good["body"], "model": "other"}},
        {**good, "custom_id": "long", "body": {**good["body"], "messages": [{"role": "user", "content": "x" * 5000}]}},
        {**good, "custom_id": "range", "body": {**good["body"], "temperature": 9}},
        {**good, "custom_id": "stream", "body": {**good["body"], "stream": True}},
        {**good, "custom_id": "tools", "body": {**good["body"], "tools": [{"type": "function", "function": {}}]}},
        good, "no request", {**good, "custom_id": "last"},
    ]  # fmt: skip
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(one) + "\n\n" for one in bodies))
    summary = run(source, out, llm)
    found = read_answers(out)
    statuses = [one["response"] and one["response"]["status_code"] for one in found]
    assert statuses == [200, 404, 400, 400, None, 400, None, None, 200]
    names = ["request 0", "model", "long", "range", "stream", "tools", "request 0", None, "last"]
    assert [one["custom_id"] for one in found] == names
    assert "there is no model 'other'" in found[1]["response"]["body"]["error"]["message"]
    assert found[6]["error"]["code"] == "duplicate_custom_id"
    assert (summary.completed, summary.failed) == (2, 7)
    assert len({one["id"] for one in found}) == 9


def test_an_empty_file_has_an_empty_answer(tmp_path: Path, llm: LLM) -> None:
    (tmp_path / "in.jsonl").write_text("\n")
    assert run(tmp_path / "in.jsonl", tmp_path / "out.jsonl", llm).lines == 0
    assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_a_job_that_fails_goes_on(tmp_path: Path, llm: LLM) -> None:
    source = write_requests(tmp_path / "in.jsonl", 40)
    run(source, tmp_path / "expected", llm)
    calls = 0

    def fail() -> None:
        nonlocal calls
        calls += 1
        if calls % 9 == 0:
            raise ZeroDivisionError

    summary = None
    for _ in range(10):
        try:
            summary = run(source, tmp_path / "out", llm, fail)
            break
        except ZeroDivisionError:
            assert not (tmp_path / "out").exists()
    assert summary is not None
    assert summary.resumed == 36
    assert (tmp_path / "out").read_bytes() == (tmp_path / "expected").read_bytes()
    assert not (tmp_path / "out.partial").exists()


def test_an_input_that_changes_is_an_error(tmp_path: Path, llm: LLM) -> None:
    source = write_requests(tmp_path / "in.jsonl", 3)
    with pytest.raises(PathError, match="changed while it was read"):
        run(source, tmp_path / "out", llm, lambda: source.write_text(source.read_text() + "\n"))
    assert not (tmp_path / "out").exists()


def test_nothing_is_replaced_without_force(tmp_path: Path) -> None:
    source = write_requests(tmp_path / "in.jsonl", 1)
    (tmp_path / "out").write_text("precious")
    with pytest.raises(PathError, match="--force"):
        BatchJob(source, tmp_path / "out", {})
    with pytest.raises(PathError, match="is the input"):
        BatchJob(source, source, {}, force=True)
    assert not (tmp_path / "out.partial").exists()
    assert (tmp_path / "out").read_text() == "precious"


def test_the_command_is_killed_and_goes_on(tmp_path: Path, tiny_path: Path) -> None:
    source, out = write_requests(tmp_path / "in.jsonl", 90), tmp_path / "out.jsonl"
    expected = CliRunner().invoke(
        main, ["batch", str(tiny_path), str(source), "-o", f"{out}.expected", "--json", *ARGS]
    )
    assert expected.exit_code == 0, expected.output
    assert json.loads(expected.stdout)["completed"] == 90
    for least in (15, 40):
        process = start("batch", str(tiny_path), str(source), "-o", str(out), *ARGS)
        wait_for_lines(out.with_name("out.jsonl.partial"), least)
        process.kill()
        process.communicate()
    assert not out.exists()
    result = CliRunner().invoke(main, ["batch", str(tiny_path), str(source), "-o", str(out), "--json", *ARGS])
    assert json.loads(result.stdout)["resumed"] >= 40
    assert out.read_bytes() == Path(f"{out}.expected").read_bytes()


def wait_for_lines(path: Path, count: int) -> None:
    for _ in range(6000):
        if path.exists() and path.read_bytes().count(b"\n") > count:
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} has no {count} lines")


def test_other_settings_are_another_job(tmp_path: Path, tiny_path: Path) -> None:
    source, out = write_requests(tmp_path / "in.jsonl", 1), tmp_path / "out"
    with BatchJob(source, out, {"model": "tiny", "file": "other"}):
        pass
    result = CliRunner().invoke(main, ["batch", str(tiny_path), str(source), "-o", str(out), *ARGS])
    assert "the checkpoint of another job (" in result.stderr
    assert result.exit_code == 1


def test_requests_may_use_another_name(tmp_path: Path, tiny_path: Path) -> None:
    source = write_requests(tmp_path / "in.jsonl", 1)
    source.write_text(source.read_text().replace('"tiny"', '"gpt-4o-mini"'))
    result = CliRunner().invoke(main, ["batch", f"gpt-4o-mini={tiny_path}", str(source), "-o", str(tmp_path / "out")])
    assert "1 answers," in result.stdout
