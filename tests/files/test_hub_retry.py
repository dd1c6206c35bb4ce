"""Connections that are refused or dropped: tried again, a few times, from where they ended."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from ssl import SSLCertVerificationError
from urllib.error import URLError

import pytest

from fewbit.errors import FetchError
from fewbit.files import hub
from fewbit.files.hub import remote, retry

from .hub_server import Handler, Site, dropped, running, truncated

MODEL = b"GGUF" + bytes(range(256)) * 4000

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was waited, without waiting."""
    pauses: list[float] = []
    monkeypatch.setattr(retry, "PAUSE", 0.5)
    monkeypatch.setattr(retry, "sleep", pauses.append)
    return pauses


def test_a_connection_that_is_dropped_before_the_answer(site: Site, pauses: list[float]) -> None:
    site.pages["/a.gguf"] = dropped(MODEL, times=retry.TRIES - 1)
    assert hub.find(f"{site.url}/a.gguf").read_bytes() == MODEL
    assert pauses == [0.5, 1, 2, 4]
    assert len(site.asked("/a.gguf")) == retry.TRIES


def test_a_server_that_drops_all(site: Site, pauses: list[float]) -> None:
    site.pages["/a.gguf"] = dropped(MODEL, times=100)
    said: list[str] = []
    with pytest.raises(FetchError, match=r"/a.gguf: could not be fetched in 5 tries: the server cannot be reached: "):
        hub.find(f"{site.url}/a.gguf", progress=lambda what, *_: said.append(what))
    assert len(site.asked("/a.gguf")) == retry.TRIES
    assert said[0].startswith("a.gguf: the server cannot be reached: ")
    assert said[0].endswith("; try 2 of 5 in 0.5 s")


def test_a_server_that_comes_up_late(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as site:
        port = site.server_address[1]
    with ExitStack() as stack:

        def start(seconds: float) -> None:
            if not started:
                started.append(stack.enter_context(running(port)))
                started[0].pages["/a.gguf"] = MODEL

        started: list[Site] = []
        monkeypatch.setattr(retry, "sleep", start)
        assert hub.find(f"http://127.0.0.1:{port}/a.gguf").read_bytes() == MODEL
        assert len(started[0].log) == 1


def test_what_came_is_kept_between_drops(site: Site, pauses: list[float]) -> None:
    """Each try brings some bytes, so that more of them than usual are made."""

    def page(handler: Handler) -> None:
        start = int(handler.headers.get("Range", "bytes=0-")[6:-1])
        part = {"Content-Length": str(len(MODEL) - start), "ETag": '"1"'}
        if start:
            part["Content-Range"] = f"bytes {start}-{len(MODEL) - 1}/{len(MODEL)}"
        handler.send(206 if start else 200, part, MODEL[start : start + 100_000])

    site.pages["/a.gguf"] = page
    assert hub.find(f"{site.url}/a.gguf").read_bytes() == MODEL
    assert [headers.get("range") for headers in site.asked("/a.gguf")][:3] == [None, "bytes=100000-", "bytes=200000-"]
    assert pauses == [0.5] * 10


def test_a_refused_connection_after_a_dropped_one_goes_on(site: Site, pauses: list[float]) -> None:
    cut, drop = truncated(MODEL, 300_000, times=1), dropped(MODEL, times=2)
    site.pages["/a.gguf"] = lambda handler: (drop if "Range" in handler.headers else cut)(handler)
    assert hub.find(f"{site.url}/a.gguf").read_bytes() == MODEL
    assert [headers.get("range") for headers in site.asked("/a.gguf")] == [None] + ["bytes=300000-"] * 3


@pytest.mark.parametrize(
    ("error", "is_tried_again"),
    [
        (URLError(ConnectionRefusedError(111, "refused")), True),
        (ConnectionResetError(104, "reset"), True),
        (TimeoutError("timed out"), True),
        (URLError(socket.gaierror(socket.EAI_AGAIN, "no answer")), True),
        (URLError(socket.gaierror(socket.EAI_NONAME, "no such name")), False),
        (URLError(SSLCertVerificationError("a wrong certificate")), False),
        (ValueError("not a valid URL"), False),
    ],
)
def test_only_what_may_pass_is_tried_again(
    error: Exception, is_tried_again: bool, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Opener:
        def open(self, *_: object, **__: object) -> None:
            raise error

    monkeypatch.setattr(remote, "_opener", Opener)
    with pytest.raises(FetchError, match="the server cannot be reached"):
        hub.find("https://example.org/a.gguf")
    assert len(pauses) == (retry.TRIES - 1 if is_tried_again else 0)


def test_pauses_have_a_limit(pauses: list[float], cache: Path) -> None:
    for tries in range(1, 9):
        retry.wait(tries, "a.gguf", "why", lambda *_: None)
    assert pauses == [0.5, 1, 2, 4, 8, 8, 8, 8]
