"""Hostile images as data URLs: what a server answers, and the memory that it takes, for one client and four at once."""

from __future__ import annotations

import base64
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from fewbit.server.settings import Settings

from ..cli.tiny import start
from ..images.hostile import FILES
from ..images.test_hostile import MAX_BYTES
from ..models.vision.zoo import FOLDER
from .test_chat import CHAT
from .test_serve import address

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]
KEYS = [f"key-of-client-{number}" for number in range(4)]  # a client has one large request read at a time
LARGE = [name for name, (_, size) in FILES.items() if isinstance(size, tuple) and size[0] * size[1] > 5_000_000]


class Served(NamedTuple):
    process: subprocess.Popen[bytes]
    url: str
    idle_kib: int

    def peak_bytes(self) -> int:
        """The most memory that it had, above what it had when it was idle."""
        return (kib(self.process.pid, "VmHWM") - self.idle_kib) * 1024


def kib(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def post(url: str, data: bytes, key: str = KEYS[0]) -> httpx.Response:
    image = {"url": f"data:image/png;base64,{base64.b64encode(data).decode()}"}
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": image}]}]
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(f"{url}{CHAT}", json={"messages": messages, "max_tokens": 1}, headers=headers, timeout=600)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text("\n".join(KEYS))
    model = str(FOLDER / "gemma3" / "model.gguf")
    process = start("serve", model, "--port", "0", "--threads", "1", "--api-key-file", str(keys))
    try:
        url = address(process)
        assert post(url, FILES["png_1_x_1"][0]()).status_code == 200
        yield Served(process, url, kib(process.pid, "VmRSS"))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def test_one_after_the_other(served: Served) -> None:
    for name, (make, expected) in FILES.items():
        data = make()
        answer = post(served.url, data)
        if len(data) * 4 // 3 > Settings().max_body_bytes:
            assert answer.status_code == 413, name
        elif isinstance(expected, str):
            assert answer.status_code == 400, name
            assert re.search(expected, answer.json()["error"]["message"]), name
        else:
            assert answer.status_code == 200, (name, answer.text)
        assert served.peak_bytes() < MAX_BYTES, name


def test_four_at_once(served: Served) -> None:
    files = [FILES[name][0]() for name in LARGE]
    assert len(files) >= 8
    with ThreadPoolExecutor(len(KEYS)) as pool:
        answers = [pool.submit(post, served.url, data, key) for data, key in zip(files, cycle(KEYS), strict=False)]
    assert [answer.result().status_code for answer in answers] == [200] * len(files)
    assert served.peak_bytes() < MAX_BYTES
