"""GGUF models at a URL: all parts are fetched, and downloads that broke are resumed."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from ...errors import FetchError, MissingError
from . import remote, retry
from .folder import (
    MAGIC,
    Progress,
    cache_folder,
    disk,
    key,
    locked,
    need_space,
    read_note,
    refused,
    size_of,
    write_note,
)
from .names import part_names
from .remote import shown

if TYPE_CHECKING:
    from http.client import HTTPResponse

_FIRST = 64  # bytes, to see what it is
_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class _File:
    """One file to fetch and its place; a note beside it keeps its size, and which version of it the server has."""

    url: str
    to: Path

    @property
    def part(self) -> Path:
        return self.to.with_name(self.to.name + ".part")

    @property
    def note(self) -> Path:
        return self.to.with_name(self.to.name + ".json")

    @property
    def is_whole(self) -> bool:
        size = size_of(self.to)
        return size is not None and size == read_note(self.note).get("bytes")


def find_url(url: str, progress: Progress, offline: bool) -> Path:
    """The file of a URL, fetched first if it is not in the cache; of a split model its first part, with the others."""
    files = _files(url)
    missing = [file.to.name for file in files if not file.is_whole]
    if missing and offline:
        raise FetchError(f"{shown(url)}: not in the cache, and fewbit is offline; missing or incomplete: {missing[0]}")
    if missing:
        with locked(files[0].to.parent, files[0].to.name, progress):
            for file in files:
                if not file.is_whole:
                    _fetch(file, progress)
    return files[0].to


def safe_name(name: str) -> str:
    """A file name made of a URL's last part, that stays in its folder; the end is kept, where the number of a part is.

    >>> safe_name("a b.gguf"), safe_name("..%2F..%5Cx.gguf"), safe_name("..gguf")
    ('a_b.gguf', 'x.gguf', 'model.gguf')
    """
    last = re.split(r"[/\\]", unquote(name))[-1]
    clean = re.sub(r"[^A-Za-z0-9._-]", "_", last)[-150:].lstrip(".-")
    return clean if clean.endswith(".gguf") else "model.gguf"


def _files(url: str) -> list[_File]:
    parts = _parsed(url)
    folder, _, last = parts.path.rpartition("/")
    names = part_names(last)
    urls = [urlunsplit(parts._replace(path=f"{folder}/{name}")) for name in names]
    home = cache_folder() / "url" / key(urls[0])
    return [_File(url, home / safe_name(name)) for url, name in zip(urls, names, strict=True)]


def _parsed(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        port, path, query = parts.port, *(quote(text, "/%:@!$&'()*+,;=~?") for text in (parts.path, parts.query))
    except ValueError as error:
        raise MissingError(f"{shown(url)}: not a valid URL: {error}") from None
    if parts.username is not None:
        raise MissingError(f"{parts.hostname}: a name and password in a URL are not supported")
    if not parts.hostname or port == 0:
        raise MissingError(f"{shown(url)}: the URL has no host name")
    if not unquote(parts.path).endswith(".gguf"):
        raise MissingError(f"{shown(url)}: the URL of a model ends in .gguf; a repository is written hf:org/repo")
    return SplitResult(parts.scheme.lower(), parts.netloc.lower(), path, query, "")


def _fetch(file: _File, progress: Progress) -> None:
    with disk(file.to):
        file.to.unlink(missing_ok=True)  # what is there is broken
    longest, tries = size_of(file.part) or 0, 0
    while True:
        try:
            _fetch_once(file, progress)
            break
        except remote.Broken as broken:
            if isinstance(broken, remote.WrongRange):
                file.part.unlink(missing_ok=True)
            length = size_of(file.part) or 0
            tries = 1 if length > longest else tries + 1
            if tries >= retry.TRIES:
                kept = f"; {length:,} bytes are kept; try again to resume" if length else ""
                raise FetchError(f"{shown(file.url)}: could not be fetched in {tries} tries: {broken}{kept}") from None
            longest = max(longest, length)
            retry.wait(tries, file.to.name, broken, progress)
    with disk(file.to):
        os.replace(file.part, file.to)


def _fetch_once(file: _File, progress: Progress) -> None:
    start, total, version = _begun(file)
    if start and start == total:
        return  # complete, but not renamed yet
    headers = {"Range": f"bytes={start}-", "If-Range": version} if start else {}
    with remote.opened(file.url, headers) as answer:
        if start and total and answer.status == 206:
            remote.check_range(answer, start, total)
        else:
            start, total = 0, remote.content_length(answer, file.url)
            write_note(file.note, {"bytes": total, "version": remote.version(answer)})
        need_space(file.to.parent, (total or 0) - start, file.to.name)
        with disk(file.part):
            out = open(file.part, "ab" if start else "wb")  # noqa: SIM115
        with out:
            done = _receive(answer, file, out, start, total, progress)
    if total is not None and done != total:
        raise remote.Broken(f"the connection ended after {done:,} of {total:,} bytes")
    if total is None:
        write_note(file.note, {"bytes": done})


def _begun(file: _File) -> tuple[int, int | None, str]:
    """Bytes that are there already, the total and the version; 0 bytes to start over."""
    start, note = size_of(file.part) or 0, read_note(file.note)
    total, version = note.get("bytes"), note.get("version")
    if isinstance(total, int) and isinstance(version, str) and 0 < start <= total:
        return start, total, version
    return 0, None, ""


def _receive(answer: HTTPResponse, file: _File, out: BinaryIO, done: int, total: int | None, progress: Progress) -> int:
    """Write the answer to a file. Returns the size of the file."""
    from http.client import HTTPException

    name = file.to.name
    progress(name, done, total)
    while True:
        try:
            data = answer.read(_CHUNK if done else _FIRST)
        except (OSError, HTTPException) as error:
            raise remote.Broken(f"the connection broke after {done:,} bytes: {remote.reason(error)}") from None
        if not data:
            break
        if not done and not data.startswith(MAGIC):
            file.part.unlink()
            raise refused(shown(file.url), data)
        if done + len(data) > remote.MAX_BYTES:
            file.part.unlink()
            raise FetchError(f"{shown(file.url)}: the server sent more than {remote.MAX_BYTES:,} bytes")
        with disk(file.part):
            out.write(data)
        done += len(data)
        progress(name, done, total)
    with disk(file.part):
        out.flush()
        os.fsync(out.fileno())
    return done
