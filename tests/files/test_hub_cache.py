"""The cache of fetched models: several who want one at the same time, what is kept, and what is done offline."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from fewbit.errors import FetchError, PathError
from fewbit.files import hub
from fewbit.files.hub import folder

from .hub_server import Site

MODEL = b"GGUF" + bytes(range(256)) * 4000

pytestmark = pytest.mark.usefixtures("cache")


def test_several_at_once_fetch_once(site: Site) -> None:
    site.pages["/a.gguf"] = MODEL
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(hub.find(f"{site.url}/a.gguf"))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert found[0].read_bytes() == MODEL
    assert len(site.log) == 1


def test_one_that_waits_says_so(site: Site, cache: Path) -> None:
    site.pages["/a.gguf"] = MODEL
    place = hub.find(f"{site.url}/a.gguf").parent
    next(place.glob("*.gguf")).unlink()
    waits = threading.Event()
    found: list[Path] = []

    def progress(what: str, done: int, total: int | None) -> None:
        if what == "waiting for another process that fetches a.gguf":
            waits.set()

    thread = threading.Thread(target=lambda: found.append(hub.find(f"{site.url}/a.gguf", progress=progress)))
    with folder.locked(place, "a.gguf", folder.silent):
        thread.start()
        assert waits.wait(60)
        assert not found
    thread.join()
    assert found[0].read_bytes() == MODEL


def test_what_progress_raises_comes_through_and_the_bytes_are_kept(site: Site) -> None:
    site.pages["/a.gguf"] = MODEL

    def stop(what: str, done: int, total: int | None) -> None:
        if done > 500_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.find(f"{site.url}/a.gguf", progress=stop)
    site.log.clear()
    assert hub.find(f"{site.url}/a.gguf").read_bytes() == MODEL
    assert "range" in site.asked("/a.gguf")[0]


@pytest.mark.parametrize("name", ["FEWBIT_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline(site: Site, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    site.pages["/a.gguf"] = MODEL
    url = f"{site.url}/a.gguf"
    monkeypatch.setenv(name, "1")
    with pytest.raises(FetchError, match=r"not in the cache, and fewbit is offline; missing or incomplete: a\.gguf"):
        hub.find(url)
    assert not site.log
    path = hub.find(url, offline=False)
    assert hub.find(url) == path
    monkeypatch.setenv(name, "0")
    assert hub.find(url) == path


def test_a_cache_that_cannot_be_written(site: Site, cache: Path) -> None:
    site.pages["/a.gguf"] = MODEL
    cache.write_text("a file")
    with pytest.raises(PathError, match=r"cannot be written: .*FEWBIT_CACHE names another folder"):
        hub.find(f"{site.url}/a.gguf")
