"""The recipe with nginx: its configuration is valid, and a stream passes through as it is written."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fewbit.llm import LLM

from .cli.tiny import write_tiny
from .server.conftest import Live

PAGE = Path(__file__).parents[1] / "docs/cookbook/nginx.md"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with LLM(write_tiny(tmp_path_factory.mktemp("models") / "model.gguf"), ctx=1024, threads=1) as llm:
        live = Live(llm)
        yield live
        live.close()


@pytest.fixture(scope="module")
def proxy(server: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an nginx with the page's configuration in front of the server."""
    assert NGINX
    folder = tmp_path_factory.mktemp("nginx")
    port = free_port()
    (block,) = re.findall(r"^```nginx\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    site = block.replace("127.0.0.1:8000", server.url.removeprefix("http://")).replace("listen 80;", f"listen {port};")
    assert site != block
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = folder / "nginx.conf"
    config.write_text(
        f"pid {folder}/pid; error_log {folder}/error.log; daemon off;\n"
        f"events {{}}\nhttp {{\naccess_log off; {paths}\n{site}}}\n"
    )
    command = [NGINX, "-c", str(config), "-p", str(folder), "-e", str(folder / "error.log")]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    running = subprocess.Popen(command)
    try:
        wait_for(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait(30)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    for _ in range(500):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError("nginx does not listen")


def test_a_stream_passes_part_by_part(proxy: str) -> None:
    asked = {"model": "model", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100, "stream": True}
    with (
        httpx.Client(trust_env=False, timeout=60) as client,
        client.stream("POST", f"{proxy}/v1/chat/completions", json=asked) as response,
    ):
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        parts = list(response.iter_raw())
    assert len(parts) > 5
    assert b"[DONE]" in parts[-1]


def test_metrics_stay_inside(proxy: str, server: Live) -> None:
    with httpx.Client(trust_env=False, timeout=60) as client:
        assert client.get(f"{proxy}/health").status_code == 200
        assert client.get(f"{proxy}/metrics").status_code == 403
        assert client.get(f"{server.url}/metrics").status_code == 200
