"""Models at a URL, from a real server on this machine that does what servers do, well and badly."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from fewbit.errors import FetchError, MissingError, PathError
from fewbit.files import hub
from fewbit.files.hub import names, remote, retry

from .hub_server import Handler, Site, redirect, running, truncated

MODEL = b"GGUF" + bytes(range(256)) * 4000
OTHER = b"GGUF" + bytes(reversed(range(256))) * 3000


pytestmark = pytest.mark.usefixtures("cache")


class Progress:
    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int | None]] = []

    def __call__(self, what: str, done: int, total: int | None) -> None:
        self.calls.append((what, done, total))


def kept(cache: Path) -> list[str]:
    """The models and parts of models in the cache."""
    return sorted(path.name for path in cache.rglob("*") if path.suffix in {".gguf", ".part"})


def test_a_url_is_fetched_once(site: Site, cache: Path) -> None:
    site.pages["/some/a.gguf"] = MODEL
    progress = Progress()
    path = hub.find(f"{site.url}/some/a.gguf", progress=progress)
    assert path.name == "a.gguf"
    assert path.is_relative_to(cache)
    assert path.read_bytes() == MODEL
    assert progress.calls[0] == ("a.gguf", 0, len(MODEL))
    assert progress.calls[-1] == ("a.gguf", len(MODEL), len(MODEL))
    done = [done for _, done, _ in progress.calls]
    assert done == sorted(done)
    assert hub.find(f"{site.url}/some/a.gguf#part", progress=progress) == path
    assert len(site.log) == 1
    assert kept(cache) == ["a.gguf"]


def test_urls_differ_by_server_path_and_query(site: Site) -> None:
    site.pages["/a.gguf"] = site.pages["/x/a.gguf"] = MODEL
    urls = ["/a.gguf", "/x/a.gguf", "/a.gguf?v=1"]
    assert len({hub.find(site.url + url) for url in urls}) == 3
    assert [path for _, path, _ in site.log] == urls


def test_odd_names(site: Site, cache: Path) -> None:
    site.pages["/my%20model.gguf"] = site.pages["/..%2F..%2Fx.gguf"] = MODEL
    assert hub.find(f"{site.url}/my model.gguf").name == "my_model.gguf"
    assert hub.find(f"{site.url}/..%2F..%2Fx.gguf").name == "x.gguf"
    assert all(path.is_relative_to(cache / "url") for path in cache.rglob("*.gguf"))


def test_a_split_model_is_fetched_whole(site: Site) -> None:
    parts = names.part_names("a-00001-of-00003.gguf")
    for name in parts:
        site.pages[f"/{name}"] = MODEL + name.encode()
    path = hub.find(f"{site.url}/a-00002-of-00003.gguf")
    assert path.name == parts[0]
    assert [path.with_name(name).read_bytes() for name in parts] == [MODEL + name.encode() for name in parts]
    assert hub.find(f"{site.url}/a-00001-of-00003.gguf", offline=True) == path
    assert len(site.log) == 3


def test_a_split_model_without_one_part(site: Site) -> None:
    site.pages["/a-00001-of-00002.gguf"] = MODEL
    url = f"{site.url}/a-00001-of-00002.gguf"
    with pytest.raises(FetchError, match=r"a-00002-of-00002.gguf: the server answered 404"):
        hub.find(url)
    with pytest.raises(FetchError, match="offline; missing or incomplete: a-00002"):
        hub.find(url, offline=True)
    with pytest.raises(MissingError, match="part 3 of 2"):
        hub.find(f"{site.url}/a-00003-of-00002.gguf")


def test_a_broken_connection_goes_on_where_it_ended(site: Site) -> None:
    site.pages["/a.gguf"] = truncated(MODEL, 300_000, times=1)
    assert hub.find(f"{site.url}/a.gguf").read_bytes() == MODEL
    first, second = site.asked("/a.gguf")
    assert "range" not in first
    assert second["range"] == "bytes=300000-"


def test_a_later_call_goes_on_where_an_earlier_ended(site: Site, cache: Path) -> None:
    site.pages["/a.gguf"] = truncated(MODEL, 300_000)
    url = f"{site.url}/a.gguf"
    with pytest.raises(FetchError, match=r"ended after 300,000 of 1,024,004 bytes; 300,000 bytes are kept"):
        hub.find(url)
    assert kept(cache) == ["a.gguf.part"]
    site.pages["/a.gguf"] = MODEL
    site.log.clear()
    progress = Progress()
    assert hub.find(url, progress=progress).read_bytes() == MODEL
    assert site.asked("/a.gguf")[0]["range"] == "bytes=300000-"
    assert progress.calls[0] == ("a.gguf", 300_000, len(MODEL))
    assert kept(cache) == ["a.gguf"]


def test_a_file_that_changed_is_fetched_anew(site: Site) -> None:
    site.pages["/a.gguf"] = truncated(MODEL, 300_000)
    with pytest.raises(FetchError):
        hub.find(f"{site.url}/a.gguf")
    site.pages["/a.gguf"] = OTHER
    assert hub.find(f"{site.url}/a.gguf").read_bytes() == OTHER


def test_a_server_that_knows_no_ranges(site: Site) -> None:
    site.ranges = False
    site.pages["/a.gguf"] = truncated(MODEL, 300_000, times=1)
    assert hub.find(f"{site.url}/a.gguf").read_bytes() == MODEL


@pytest.mark.parametrize("range_", ["bytes 5-9/10", "bytes 0-1024003/1024004", "", "bytes */1024004"])
def test_a_server_that_sends_another_range(site: Site, range_: str) -> None:
    def page(handler: Handler) -> None:
        if "Range" in handler.headers:
            handler.send(206, {"Content-Range": range_, "Content-Length": "4"}, b"GGUF")
        else:
            first(handler)

    first = truncated(MODEL, 300_000, times=1)
    site.pages["/a.gguf"] = page
    assert hub.find(f"{site.url}/a.gguf").read_bytes() == MODEL


def test_a_part_that_is_too_long_starts_again(site: Site, cache: Path) -> None:
    site.pages["/a.gguf"] = truncated(MODEL, 300_000)
    with pytest.raises(FetchError):
        hub.find(f"{site.url}/a.gguf")
    part = next(cache.rglob("*.part"))
    part.write_bytes(MODEL + MODEL)
    site.pages["/a.gguf"] = MODEL
    assert hub.find(f"{site.url}/a.gguf").read_bytes() == MODEL


def test_a_server_that_shrank_its_file(site: Site) -> None:
    site.pages["/a.gguf"] = truncated(MODEL, 300_000)
    with pytest.raises(FetchError):
        hub.find(f"{site.url}/a.gguf")

    def page(handler: Handler) -> None:
        if "Range" in handler.headers:
            handler.send(416, {"Content-Length": "0"})
        else:
            handler.send_file(OTHER)

    site.pages["/a.gguf"] = page
    assert hub.find(f"{site.url}/a.gguf").read_bytes() == OTHER


def test_a_whole_part_gets_its_name_without_a_request(site: Site) -> None:
    site.pages["/a.gguf"] = MODEL
    path = hub.find(f"{site.url}/a.gguf")
    path.rename(path.with_name("a.gguf.part"))
    assert hub.find(f"{site.url}/a.gguf").read_bytes() == MODEL
    assert len(site.log) == 1


def test_a_cached_file_that_was_cut_is_fetched_again(site: Site) -> None:
    site.pages["/a.gguf"] = MODEL
    path = hub.find(f"{site.url}/a.gguf")
    path.write_bytes(MODEL[:100])
    with pytest.raises(FetchError, match=r"missing or incomplete: a.gguf"):
        hub.find(f"{site.url}/a.gguf", offline=True)
    assert hub.find(f"{site.url}/a.gguf").read_bytes() == MODEL
    path.with_name("a.gguf.json").write_text("[")
    assert hub.find(f"{site.url}/a.gguf").read_bytes() == MODEL
    assert len(site.log) == 3


@pytest.mark.parametrize("code", [401, 403, 404, 410])
def test_a_server_that_refuses(site: Site, cache: Path, code: int) -> None:
    site.pages["/a.gguf"] = lambda handler: handler.send(code, {"Content-Length": "0"})
    with pytest.raises(FetchError, match=rf"/a.gguf: the server answered {code} "):
        hub.find(f"{site.url}/a.gguf?token=secret")
    assert kept(cache) == []
    assert len(site.log) == 1


def test_a_server_that_is_busy_is_asked_again(site: Site) -> None:
    codes = [503, 429]

    def page(handler: Handler) -> None:
        if codes:
            handler.send(codes.pop(), {"Content-Length": "0"})
        else:
            handler.send_file(MODEL)

    site.pages["/a.gguf"] = page
    assert hub.find(f"{site.url}/a.gguf").read_bytes() == MODEL
    site.pages["/b.gguf"] = lambda handler: handler.send(500, {"Content-Length": "0"})
    with pytest.raises(FetchError, match="answered 500"):
        hub.find(f"{site.url}/b.gguf")
    assert len(site.asked("/b.gguf")) == retry.TRIES


@pytest.mark.parametrize("body", [b"<!DOCTYPE html>" * 10, b"\0" * 1000, b"GGU", b"", b"ggml" * 100])
def test_what_is_no_gguf_is_refused_and_removed(site: Site, cache: Path, body: bytes) -> None:
    site.pages["/a.gguf"] = body
    with pytest.raises(FetchError, match="looks like a web page" if b"<" in body else r"not a GGUF|would have"):
        hub.find(f"{site.url}/a.gguf")
    assert kept(cache) == []


def test_redirects(site: Site) -> None:
    site.pages["/a.gguf"] = redirect("/b")
    site.pages["/b"] = redirect(f"{site.url}/c?signed=1")
    site.pages["/c"] = MODEL
    path = hub.find(f"{site.url}/a.gguf")
    assert path.name == "a.gguf"
    assert path.read_bytes() == MODEL


def test_a_redirect_keeps_the_range(site: Site) -> None:
    site.pages["/a.gguf"] = redirect("/c")
    site.pages["/c"] = truncated(MODEL, 300_000, times=1)
    assert hub.find(f"{site.url}/a.gguf").read_bytes() == MODEL
    assert site.asked("/c")[1]["range"] == "bytes=300000-"


@pytest.mark.parametrize("to", ["file://{}", "ftp://127.0.0.1/a", "data:,GGUF", "FILE://{}"])
def test_redirects_elsewhere_are_refused(site: Site, cache: Path, tmp_path: Path, to: str) -> None:
    (tmp_path / "secret").write_bytes(MODEL)
    site.pages["/a.gguf"] = redirect(to.format(tmp_path / "secret"))
    with pytest.raises(FetchError, match=r"not allowed|refused"):
        hub.find(f"{site.url}/a.gguf")
    assert kept(cache) == []


def test_redirects_without_end(site: Site) -> None:
    site.pages["/a.gguf"] = redirect("/a.gguf")
    with pytest.raises(FetchError, match="302"):
        hub.find(f"{site.url}/a.gguf")


def test_a_server_that_tells_no_size(site: Site) -> None:
    site.pages["/a.gguf"] = lambda handler: handler.send(200, {}, MODEL)
    with pytest.raises(FetchError, match="no valid Content-Length"):
        hub.find(f"{site.url}/a.gguf")
    site.pages["/a.gguf"] = lambda handler: handler.send(200, {"Content-Length": "many"}, MODEL)
    with pytest.raises(FetchError, match=r"Content-Length .got many"):
        hub.find(f"{site.url}/a.gguf")


def chunked(data: bytes, ends: bool) -> Any:
    def page(handler: Handler) -> None:
        handler.protocol_version = "HTTP/1.1"
        body = b"".join(
            b"%x\r\n%s\r\n" % (len(p), p) for p in (data[i : i + 50_000] for i in range(0, len(data), 50_000))
        )
        handler.send(200, {"Transfer-Encoding": "chunked"}, body + (b"0\r\n\r\n" if ends else b""))
        handler.close_connection = True

    return page


def test_chunks(site: Site, cache: Path) -> None:
    site.pages["/a.gguf"] = chunked(MODEL, ends=True)
    progress = Progress()
    assert hub.find(f"{site.url}/a.gguf", progress=progress).read_bytes() == MODEL
    assert progress.calls[-1] == ("a.gguf", len(MODEL), None)
    assert hub.find(f"{site.url}/a.gguf", offline=True).read_bytes() == MODEL
    site.pages["/b.gguf"] = chunked(MODEL, ends=False)
    with pytest.raises(FetchError, match="broke after"):
        hub.find(f"{site.url}/b.gguf")
    assert kept(cache) == ["a.gguf", "b.gguf.part"]


def test_sizes_that_no_model_has(site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.pages["/a.gguf"] = lambda handler: handler.send(200, {"Content-Length": str(1 << 60)}, MODEL)
    with pytest.raises(FetchError, match="a model has 4 to"):
        hub.find(f"{site.url}/a.gguf")
    site.pages["/a.gguf"] = lambda handler: handler.send(200, {"Content-Length": str(1 << 41)}, MODEL)
    with pytest.raises(PathError, match="needs 2,199,023,255,552 bytes, the disk has"):
        hub.find(f"{site.url}/a.gguf")
    monkeypatch.setattr(remote, "MAX_BYTES", 500_000)
    site.pages["/a.gguf"] = chunked(MODEL, ends=True)
    with pytest.raises(FetchError, match="more than 500,000 bytes"):
        hub.find(f"{site.url}/a.gguf")
    assert kept(cache) == []


def test_a_server_that_says_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "TIMEOUT", 0.2)
    stop = threading.Event()
    site.pages["/a.gguf"] = lambda handler: stop.wait(20) and None
    try:
        with pytest.raises(FetchError, match="cannot be reached: timed out"):
            hub.find(f"{site.url}/a.gguf")
    finally:
        stop.set()


def test_no_server() -> None:
    with running() as site:
        url = f"{site.url}/a.gguf"
    with pytest.raises(FetchError, match=r"cannot be reached: .*refused"):
        hub.find(url)


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        ("https:///a.gguf", "has no host name"),
        ("http://host:x/a.gguf", "not a valid URL"),
        ("http://[::1/a.gguf", "not a valid URL"),
        ("http://host/\ud800.gguf", "not a valid URL"),
        ("http://me:secret@host/a.gguf", "password"),
        ("https://host/org/repo", r"ends in \.gguf"),
        ("https://host/a.bin?x=.gguf", r"ends in \.gguf"),
    ],
)
def test_urls_that_are_refused(bad: str, match: str) -> None:
    with pytest.raises(MissingError, match=match) as caught:
        hub.find(bad)
    assert "secret" not in str(caught.value)
