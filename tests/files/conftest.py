from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fewbit.files.hub import retry

from .hub_server import Site, running


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no wait between tries."""
    for name in ("FEWBIT_OFFLINE", "HF_HUB_OFFLINE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FEWBIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(retry, "PAUSE", 0.0)
    return tmp_path / "cache"


@pytest.fixture
def site() -> Iterator[Site]:
    with running() as site:
        yield site


@pytest.fixture
def hub_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty caches, no wait between tries, and nothing of how this machine's pip is set up."""
    monkeypatch.setattr(retry, "PAUSE", 0.0)
    for name in list(os.environ):
        if name.startswith(("PIP_", "HF_", "FEWBIT_", "TRANSFORMERS_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("FEWBIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def hub_site(hub_environment: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with running() as site:
        monkeypatch.setenv("PIP_INDEX_URL", f"{site.url}/simple")
        monkeypatch.setenv("HF_ENDPOINT", site.url)
        yield site
