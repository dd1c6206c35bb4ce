"""Requests to a web server: only HTTP and HTTPS, with a time limit, and answers that say what they hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ...errors import FetchError
from .folder import MAGIC

if TYPE_CHECKING:
    from http.client import HTTPResponse
    from urllib.request import OpenerDirector

TIMEOUT = 30.0  # seconds without a byte
MAX_BYTES = 1 << 42  # more than any model that a machine could run

_NO_SERVER = re.compile(
    r"name or service not known|name resolution|nodename nor servname|is unreachable", re.IGNORECASE
)
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)", re.ASCII)


class Broken(Exception):
    """A download that ended early; the next try can resume it."""


class WrongRange(Broken):
    """The server cannot resume the download; the next try starts over."""


def shown(url: str) -> str:
    """A URL for messages: without its query, which may hold a secret.

    >>> shown("https://example.org/a.gguf?key=secret")
    'https://example.org/a.gguf'
    """
    return url.partition("?")[0].partition("#")[0]


@contextmanager
def opened(url: str, headers: dict[str, str]) -> Iterator[HTTPResponse]:
    """The server's answer. Raises `Broken` if another try may succeed, else FetchError."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request

    request = Request(url, headers={"User-Agent": "fewbit", "Accept-Encoding": "identity", **headers})
    try:
        answer = _opener().open(request, timeout=TIMEOUT)
    except FetchError:
        raise
    except HTTPError as error:
        error.close()
        answer_text = f"the server answered {error.code} {error.reason}"
        if error.code == 416:
            raise WrongRange(answer_text) from None
        if error.code in (408, 425, 429) or error.code >= 500:
            raise Broken(answer_text) from None
        raise FetchError(f"{shown(url)}: {answer_text}") from None
    except (OSError, HTTPException, ValueError) as error:
        if _may_pass(error):
            raise Broken(f"the server cannot be reached: {reason(error)}") from None
        raise FetchError(f"{shown(url)}: the server cannot be reached: {reason(error)}") from None
    with answer:
        yield answer


def content_length(answer: HTTPResponse, url: str) -> int | None:
    """The size of the whole file; None if the server marks its end instead."""
    text = answer.headers.get("Content-Length")
    if answer.status != 200:
        raise FetchError(f"{shown(url)}: the server answered {answer.status} {answer.reason}, expected 200")
    if text is None and answer.chunked:
        return None
    if text is None or not (text.isascii() and text.isdecimal()):
        raise FetchError(f"{shown(url)}: the server sent no valid Content-Length (got {text})")
    if not len(MAGIC) <= int(text) <= MAX_BYTES:
        raise FetchError(
            f"{shown(url)}: the file would have {int(text):,} bytes; a model has {len(MAGIC)} to {MAX_BYTES:,}"
        )
    return int(text)


def check_range(answer: HTTPResponse, start: int, total: int) -> None:
    """Refuse an answer that is not the rest of the same file from `start` on."""
    text = answer.headers.get("Content-Range", "")
    found = _RANGE.fullmatch(text)
    if not found or (int(found[1]), int(found[2]) + 1, int(found[3])) != (start, total, total):
        raise WrongRange(f"asked for bytes {start}-/{total}, got {text or 'others'}")


def version(answer: HTTPResponse) -> str | None:
    """The version of the server's file: a strong ETag, or the date of its last change."""
    tag = answer.headers.get("ETag", "")
    return tag if tag.startswith('"') else answer.headers.get("Last-Modified")


def _may_pass(error: Exception) -> bool:
    """Whether another try may succeed: refused, dropped, timed out; not a wrong name or certificate."""
    from http.client import HTTPException, InvalidURL
    from socket import EAI_AGAIN, gaierror
    from ssl import SSLCertVerificationError

    why = getattr(error, "reason", error)
    if isinstance(why, gaierror):
        return why.errno == EAI_AGAIN
    return isinstance(why, OSError | HTTPException) and not isinstance(why, SSLCertVerificationError | InvalidURL)


def reason(error: BaseException) -> str:
    """Why a request failed, in the words of the system."""
    return with_hint(str(getattr(error, "reason", None) or error) or type(error).__name__)


def with_hint(why: str) -> str:
    """The system's message, or a plainer one if the server cannot be found.

    >>> with_hint("[Errno -2] Name or service not known")
    'the server cannot be found; is there a network?'
    """
    return "the server cannot be found; is there a network?" if _NO_SERVER.search(why) else why


def _opener() -> OpenerDirector:
    """Made by hand: the usual one also opens files and FTP, and follows from HTTPS to HTTP."""
    from urllib import request as web

    class Redirects(web.HTTPRedirectHandler):
        def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
            if urlsplit(newurl).scheme not in {urlsplit(req.full_url).scheme, "https"}:
                fp.close()
                raise FetchError(f"{shown(req.full_url)}: refused a redirect to {shown(newurl)}")
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    opener = web.OpenerDirector()
    kinds = (web.ProxyHandler, web.HTTPHandler, web.HTTPSHandler, web.HTTPDefaultErrorHandler, web.HTTPErrorProcessor)
    for handler in (*(kind() for kind in kinds), Redirects(), web.UnknownHandler()):
        opener.add_handler(handler)
    return opener
