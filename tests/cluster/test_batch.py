"""Batch jobs on a cluster: whatever is killed, every line has one answer, in order."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from fewbit.errors import ArgumentError, FewbitError
from fewbit.llm import LLM
from fewbit.server.batch.job import BatchJob
from fewbit.server.batch.local import run_local

from ..cli.tiny import start, write_tiny
from ..server.batch.requests import write_requests
from ..server.batch.test_local import wait_for_lines

pytest.importorskip("ray")
pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]  # of Ray

LOADING: dict[str, Any] = {"ctx": 512, "threads": 1, "batch_invariant": True, "max_seqs": 8}
FLAGS = ("--ctx", "512", "--threads", "1", "--batch-invariant", "--max-seqs", "8", "--replicas", "2", "-q", "--json")


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module")
def llm(tiny_path: Path) -> Any:
    with LLM(tiny_path, **LOADING) as found:
        yield found


def workers(path: Path, **changes: Any) -> Any:
    from fewbit.cluster.batch import Workers

    return Workers(str(path), "tiny", **{"loading": LOADING, "replicas": 2, "max_seqs": 8, **changes})


def undisturbed(source: Path, llm: LLM) -> bytes:
    out = source.with_name("undisturbed.jsonl")
    with BatchJob(source, out, {}) as job:
        run_local(job, llm, "tiny", lambda: None)
    return out.read_bytes()


def test_two_workers_write_what_one_process_does(cluster: Any, tmp_path: Path, tiny_path: Path, llm: LLM) -> None:
    from fewbit.cluster.batch import run_on_cluster

    source, out = write_requests(tmp_path / "in.jsonl", 60), tmp_path / "out.jsonl"
    good = source.read_text()
    source.write_text(good + good.splitlines()[7] + "\nno request\x00\n" + good.splitlines()[0].replace("0", "x"))
    with BatchJob(source, out, {}) as job:
        summary = run_on_cluster(job, workers(tiny_path), None)
    assert (summary.completed, summary.failed) == (60, 3)
    assert out.read_bytes() == undisturbed(source, llm)


def test_what_cannot_be_run_is_an_error(cluster: Any, tmp_path: Path, tiny_path: Path) -> None:
    from fewbit.cluster.batch import run_on_cluster

    source = write_requests(tmp_path / "in.jsonl", 3)
    with BatchJob(source, tmp_path / "out", {}) as job:
        with pytest.raises(ArgumentError, match="than the cluster has"):
            run_on_cluster(job, workers(tiny_path, replicas=100), None)
        with pytest.raises(FewbitError, match="nowhere"):
            run_on_cluster(job, workers(Path("/nowhere.gguf"), replicas=1), None)
    assert not (tmp_path / "out").exists()


def test_workers_and_the_driver_are_killed(cluster: Any, tmp_path: Path, tiny_path: Path, llm: LLM) -> None:
    kill_and_compare(cluster.address, tmp_path, tiny_path, llm, 240)


def kill_and_compare(address: str, folder: Path, model: Path, llm: LLM, count: int) -> dict[str, Any]:
    """Kill a worker twice and the driver once, go on, and compare with a job that nobody disturbed."""
    source, out = write_requests(folder / "in.jsonl", count), folder / "out.jsonl"
    partial = folder / "out.jsonl.partial"
    command = ("batch", str(model), str(source), "-o", str(out), "--address", address, *FLAGS)
    driver = start(*command)
    for share in (0.1, 0.3):
        wait_for_lines(partial, int(share * count))
        os.kill(worker_processes(os.getpid())[0], signal.SIGKILL)
    wait_for_lines(partial, int(0.5 * count))
    driver.kill()
    driver.communicate()
    assert not out.exists()
    driver = start(*command)
    printed, errors = driver.communicate(timeout=600)
    assert driver.returncode == 0, errors.decode()
    summary: dict[str, Any] = json.loads(printed)
    assert (summary["lines"], summary["completed"]) == (count, count)
    assert summary["resumed"] >= int(0.5 * count)
    assert out.read_bytes() == undisturbed(source, llm)
    return summary


def worker_processes(parent: int) -> list[int]:
    """The processes of workers that descend from this one: the cluster is its child."""
    for _ in range(600):
        if found := [pid for pid in descendants(parent) if "BatchWorker" in command_of(pid)]:
            return found
        time.sleep(0.1)
    raise AssertionError("there is no worker")


def descendants(parent: int) -> list[int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    found = {parent}
    for _ in range(8):
        found |= {pid for pid, above in parents.items() if above in found}
    return sorted(found - {parent})


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
