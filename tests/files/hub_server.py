"""A real web server for the tests of `fewbit.files.hub`, on this machine, in a thread."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR

Page = bytes | Callable[["Handler"], None]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Site(ThreadingHTTPServer):
    """Pages by path: bytes, or a function that answers itself. `log` keeps method, path and headers of each request."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.pages: dict[str, Page] = {}
        self.log: list[tuple[str, str, dict[str, str]]] = []
        self.ranges = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add_repository(self, repo: str, files: dict[str, bytes]) -> None:
        """Pages as huggingface_hub wants them."""
        info = {"id": repo, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
        self.pages[f"/api/models/{repo}"] = json.dumps(info).encode()
        for name, data in files.items():
            for revision in ("main", COMMIT):
                self.pages[f"/{repo}/resolve/{revision}/{name}"] = data

    def add_wheel(self, name: str, wheel: str, data: bytes) -> None:
        """Pages as pip wants them."""
        link = (
            f'<!DOCTYPE html><html><body><a href="/{wheel}#sha256={sha256(data).hexdigest()}">{wheel}</a></body></html>'
        )
        self.pages[f"/simple/{name}/"] = link.encode()
        self.pages[f"/{wheel}"] = data

    def asked(self, path: str) -> list[dict[str, str]]:
        """The headers of the requests for a path."""
        return [headers for method, asked, headers in self.log if (method, asked) == ("GET", path)]

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may go away."""


class Handler(BaseHTTPRequestHandler):
    server: Site

    def log_message(self, format: str, *args: object) -> None:
        """Not to the terminal."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.log.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
        page = self.server.pages.get(path, not_found)
        if isinstance(page, bytes):
            self.send_file(page)
        else:
            page(self)

    do_HEAD = do_GET  # noqa: N815

    def send_file(self, data: bytes) -> None:
        """The whole, or from where a Range asks if it is of the same version."""
        tag = f'"{sha256(data).hexdigest()}"'
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start = int(asked[1]) if asked and self.server.ranges and self.headers.get("If-Range", tag) == tag else 0
        if start >= len(data) > 0:
            self.send_error(416)
            return
        headers = {"Content-Length": str(len(data) - start), "ETag": tag, "X-Repo-Commit": COMMIT}
        if self.path.startswith("/simple/"):
            headers["Content-Type"] = "text/html"
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self.send(206 if start else 200, headers, data[start:])

    def send(self, code: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def not_found(handler: Handler) -> None:
    handler.send(404, {"Content-Length": "0"})


def truncated(data: bytes, length: int, times: int = 1_000_000) -> Callable[[Handler], None]:
    """Says the size of all and ends after `length` bytes of what was asked for, the first few times."""
    left = [times]

    def page(handler: Handler) -> None:
        left[0] -= 1
        if left[0] < 0:
            handler.send_file(data)
            return
        handler.send(200, {"Content-Length": str(len(data)), "ETag": f'"{sha256(data).hexdigest()}"'}, data[:length])

    return page


def redirect(to: str) -> Callable[[Handler], None]:
    return lambda handler: handler.send(302, {"Location": to, "Content-Length": "0"})


def dropped(data: bytes, times: int) -> Callable[[Handler], None]:
    """Ends the connection without a word, the first few times."""
    left = [times]

    def page(handler: Handler) -> None:
        left[0] -= 1
        if left[0] >= 0:
            handler.connection.shutdown(SHUT_RDWR)
            handler.close_connection = True
        else:
            handler.send_file(data)

    return page


@contextmanager
def running(port: int = 0) -> Iterator[Site]:
    site = Site(port)
    thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        site.shutdown()
        thread.join()
        site.server_close()
