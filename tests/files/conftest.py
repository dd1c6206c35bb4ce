from __future__ import annotations

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
