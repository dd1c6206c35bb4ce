"""Kernels compiled ahead: in processes beside this one, while weights are sent or before a model is ever loaded."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import fewbit as fb
from fewbit.devices.cuda_kernels import find_card, model_kernels
from fewbit.errors import RequestError
from fewbit.load_options import LoadOptions
from fewbit.models import load_model, open_model
from fewbit.ops.cuda import compile as compiler
from fewbit.ops.cuda import device, processes
from fewbit.ops.cuda import kernels_products as products
from fewbit.ops.cuda.kernels import Entry
from fewbit.ops.cuda.launch import LaunchList
from fewbit.ops.cuda.planned import PlannedGpu, PlannedSession
from fewbit.ops.cuda.processes import CompilerPool, CompilerProcess, Source

from ..cli.tiny import write_tiny
from .test_plan import CountingGpu, CountingSession

ZOO = Path(__file__).parents[1] / "zoo"
SOURCE = 'extern "C" __global__ void kernel_{}(float* x) {{ x[threadIdx.x] += {}; }}\n'
OPTIONS = ["-arch=sm_90"]
KERNELS = [Source(SOURCE.format(i, i), OPTIONS) for i in range(6)]
Patch = pytest.MonkeyPatch


def alone(source: str, options: list[str]) -> bytes:
    return b"alone: " + source.encode()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


@pytest.mark.usefixtures("nvrtc")
def test_a_process_compiles_what_this_one_does() -> None:
    process = CompilerProcess()
    try:
        code, _ = compiler.compile_program(*KERNELS[3][:2])
        assert process.compile(*KERNELS[3][:2]) == code
        with pytest.raises(ValueError, match="NVRTC_ERROR_COMPILATION"):
            process.compile("#error wrong\n", OPTIONS)
        assert process.compile(*KERNELS[3][:2]) == code
    finally:
        process.close()


@pytest.mark.usefixtures("nvrtc")
def test_processes_end_with_the_work() -> None:
    pool = CompilerPool(alone, threads=2)
    futures = pool.submit(KERNELS)
    assert all(future.result().startswith(b"\x7fELF") for future in futures)
    for thread in list(pool._threads):
        thread.join(timeout=60)
    assert not pool._processes


@pytest.mark.parametrize("executable", ["", "/nowhere/python3", "/usr/bin/uwsgi"])
def test_where_no_process_starts_this_one_compiles(monkeypatch: Patch, executable: str) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    futures = CompilerPool(alone).submit(KERNELS)
    assert [future.result() for future in futures] == [alone(*kernel[:2]) for kernel in KERNELS]


def test_a_process_that_ends_too_early(monkeypatch: Patch) -> None:
    monkeypatch.setattr(processes.nvrtc, "__file__", os.devnull)  # an empty script
    futures = CompilerPool(alone, threads=2).submit(KERNELS)
    assert [future.result() for future in futures] == [alone(*kernel[:2]) for kernel in KERNELS]


def test_urgent_kernels_come_first() -> None:
    order = list[str]()

    def noted(source: str, options: list[str]) -> bytes:
        order.append(source)
        time.sleep(0.05)
        return b""

    pool = CompilerPool(noted, threads=1)
    later = pool.submit([Source("a", []), Source("b", [])])
    urgent = pool.submit([Source("c", [])], urgent=True)
    for future in (*later, *urgent):
        future.result()
    assert order.index("c") < order.index("b")


def test_what_nobody_began_can_be_taken_back(monkeypatch: Patch, tmp_path: Path) -> None:
    """Who needs a kernel that is still in the queue compiles it himself."""
    monkeypatch.setenv("FEWBIT_CACHE", str(tmp_path))
    monkeypatch.setattr(compiler, "compiler_version", lambda: "13.0")
    monkeypatch.setattr(compiler, "compile_program", lambda source, options: (time.sleep(0.1), source.encode(), "")[1:])
    monkeypatch.setattr(compiler, "_pool", CompilerPool(compiler._alone, threads=1))
    futures = compiler.compile_ahead(["a", "b"], "sm_90")
    assert compiler.cubin("b", "sm_90") == b"b"
    assert futures[0].result() == b"a"
    assert futures[1].cancelled()
    compiler.compile_all(["a", "b", "c"], "sm_90")
    assert len(list((tmp_path / "cubins").iterdir())) == 3


def test_a_folder_that_cannot_be_written(monkeypatch: Patch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEWBIT_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(compiler, "compiler_version", lambda: "13.0")
    found = list[str]()

    def compiled(source: str, options: list[str]) -> tuple[bytes, str]:
        found.append(source)
        return source.encode(), ""

    monkeypatch.setattr(compiler, "compile_program", compiled)
    compiler.compile_all(["a"], "sm_90")
    assert compiler.cubin("a", "sm_90") == b"a"
    assert found == ["a"]


SCRIPT = """
print("script", flush=True)
from multiprocessing import get_context
from fewbit.ops.cuda import compile as compiler

def work():
    sources = [f'extern "C" __global__ void k{i}(float* x) {{ x[0] = {i}; }}' for i in range(WORK)]
    futures = compiler.compile_ahead(sources, "sm_90")
    futures[0].result()
    print(*(process._process.pid for process in list(compiler._pool._processes)), flush=True)
    if WAITS:
        compiler.compile_all(sources, "sm_90")

if DAEMON:
    process = get_context("fork").Process(target=work, daemon=True)
    process.start()
    process.join()
    assert process.exitcode == 0, process.exitcode
else:
    work()
"""


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize(("daemon", "waits"), [(False, True), (False, False), (True, True)])
def test_scripts_are_not_run_again_and_nothing_is_left(tmp_path: Path, daemon: bool, waits: bool) -> None:
    """At the end of a script that waits for its kernels or not, and in a daemon, which may have no children."""
    script = tmp_path / "script.py"
    head = f"DAEMON, WAITS, WORK = {daemon}, {waits}, {6 if waits else 200}\n"
    script.write_text(head + SCRIPT)
    env = {**os.environ, "FEWBIT_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, str(script)], env=env, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, pids = done.stdout.splitlines()
    assert first == "script"
    assert not any(map(is_running, map(int, pids.split())))
    count = len(list((tmp_path / "cache" / "cubins").glob("*.cubin")))
    assert count == 6 if waits else count < 200


@pytest.mark.parametrize("name", ["llama", "qwen3moe", "qwen35", "gemma3", "gpt-oss", "deepseek2", "lfm2moe"])
def test_what_steps_launch_was_planned(name: str, monkeypatch: Patch) -> None:
    """Prompts, decoding alone and in batches, and both together: on a GPU that only counts kernels."""
    monkeypatch.setattr(device, "_opened", cache(CountingGpu))
    monkeypatch.setattr(CountingSession, "download", PlannedSession.download)  # weights are within f16's range
    launched, add = set[str](), CountingSession.add

    def noted(session: CountingSession, launches: LaunchList, entry: Entry, *rest: Any) -> None:
        launched.add(entry.name)
        add(session, launches, entry, *rest)

    monkeypatch.setattr(CountingSession, "add", noted)
    path, options = ZOO / name / "model.gguf", {"kv": "f16", "max_batched_tokens": 600}
    with fb.LLM(path, device="cuda", ctx=64, cache_bytes=1 << 22, **options) as llm:
        llm.loaded.executor.prepare([(1, 1)])
        for count in (1, 8, 64):
            llm.generate([[5 + i % 40] * 20 for i in range(count)], max_tokens=3, temperature=0.0, stop_token_ids=[])
        gpu = llm.loaded.executor.device.gpu
    card = PlannedGpu("sm_80", gpu.device.properties)
    planned = model_kernels(load_model(open_model(path)), card, LoadOptions(device="cuda", **options))
    assert launched - {entry.name for entry in planned} == set()


def test_cards_without_a_card(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "model.gguf", format="q8_0")
    every = {arch: model_kernels(load_model(open_model(path)), find_card(arch)) for arch in ("sm_80", "sm_90")}
    assert all(entry.source for entry in every["sm_80"])
    assert any(entry.name.startswith("repack") for entry in every["sm_90"])
    with pytest.raises(RequestError, match="got 'sm_10'"):
        find_card("sm_10")
    assert products.begin_rows() not in every["sm_90"]  # residuals are added in place
