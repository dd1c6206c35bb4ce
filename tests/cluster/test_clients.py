"""The clients' suites of the plain server, over two replicas."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]

SUITES = [
    "test_clients", "test_openai_client", "test_openai_others_client", "test_anthropic_client", "test_ollama_client",
    "test_langchain", "test_lm_eval",
]  # fmt: skip


@pytest.mark.parametrize("backend", ["replicas", "ray"])
def test_suites_of_clients(backend: str) -> None:
    pytest.importorskip("ray")
    root = Path(__file__).parents[2]
    folder = root / "tests/server"
    command = [sys.executable, "-m", "pytest", "-p", "no:asyncio", *(str(folder / f"{one}.py") for one in SUITES)]
    environment: dict[str, Any] = {
        **os.environ,
        "FEWBIT_TEST_BACKEND": backend,
        "PYTHONPATH": str(root),
    }  # workers import tests too
    done = subprocess.run(
        [*command, "-W", "ignore"], env=environment, cwd=root, capture_output=True, text=True, check=False
    )
    print(done.stdout[-2000:])
    assert done.returncode == 0, done.stdout[-5000:]
