"""kill -9 at any moment: the next start works, on the same port and with the same folder, and answers the same."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx

from fewbit.llm import LLM

from ..cli.tiny import start
from .test_serve import address

LONG = "a long prompt, " * 28
PATH = "/v1/completions"


def while_it_loads(process: subprocess.Popen[bytes], folder: Path) -> None:
    time.sleep(random.uniform(0, 1))


def while_it_answers(process: subprocess.Popen[bytes], folder: Path) -> None:
    body = {"prompt": f"{random.random()} {LONG}", "stream": True, "max_tokens": 60}
    with httpx.stream("POST", address(process) + PATH, json=body, timeout=60) as answer:
        next(answer.iter_bytes())
        process.kill()


def while_it_writes(process: subprocess.Popen[bytes], folder: Path) -> None:
    url, before = address(process), files(folder)
    for number in range(4):
        httpx.post(url + PATH, json={"prompt": f"{number} {random.random()} {LONG}", "max_tokens": 1}, timeout=60)
    process.send_signal(signal.SIGTERM)  # now long prompts are written
    while files(folder) == before and process.poll() is None:
        pass


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*")} | {path.name for path in folder.glob(".*")}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def test_a_server_that_is_killed_can_be_started_again(tiny_path: Path, llm: LLM, tmp_path: Path) -> None:
    folder, port = tmp_path / "kept", str(free_port())
    command = ["serve", str(tiny_path), "--cache-dir", str(folder), "--port", port, "--ctx", "512", "--threads", "1"]
    command += ["--batch-invariant"]
    body = {"prompt": LONG, "temperature": 0, "max_tokens": 8}
    expected = llm.generate(LONG, temperature=0, max_tokens=8).text
    for kill in (while_it_loads, while_it_answers, while_it_writes, while_it_loads, while_it_writes):
        process = start(*command)
        try:
            kill(process, folder)
        finally:
            process.kill()
            process.communicate()
    process = start(*command)
    try:
        assert httpx.post(address(process) + PATH, json=body, timeout=60).json()["choices"][0]["text"] == expected
        assert not [name for name in files(folder) if name.startswith(".")]  # what was half written is gone
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0
