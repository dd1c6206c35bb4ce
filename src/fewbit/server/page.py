"""The chat page at `/`, and at `/local` that of models that run in the browser: static files that are read once.

Both have a strict Content-Security-Policy. The files lie under an address with their hash in it, so that a browser may
keep them for ever and never mixes two versions. The pages themselves are asked for each time, and are a 304 if nothing
changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

FOLDER = Path(__file__).parent / "page"
INDEX, LOCAL = "index.html", "local.html"
VERSION = "@version@"  # stands in the page for the hash of its files
KINDS = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
LOCAL_POLICY = f"{POLICY}; connect-src 'self' https:"  # a page of models that run in it: files may lie elsewhere
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True, slots=True)
class Page:
    """The pages and all their files by path, and the hash of them."""

    version: str
    pages: dict[str, bytes]
    files: dict[str, bytes]


@cache
def load() -> Page:
    paths = sorted(path for path in FOLDER.rglob("*") if path.suffix in KINDS)
    files = {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in paths}
    digest = blake2b(digest_size=8)
    for name, data in files.items():
        digest.update(f"\0{name}\0{len(data)}\0".encode() + data)
    version = digest.hexdigest()
    pages = {name: files.pop(name).replace(VERSION.encode(), version.encode()) for name in (INDEX, LOCAL)}
    return Page(version, pages, files)


async def index(request: Request) -> Response:
    return _page(request, INDEX, POLICY)


async def local(request: Request) -> Response:
    return _page(request, LOCAL, LOCAL_POLICY)


def _page(request: Request, name: str, policy: str) -> Response:
    page = load()
    tag = f'"{page.version}"'
    headers = {**HEADERS, "Content-Security-Policy": policy, "Cache-Control": "no-cache", "ETag": tag}
    known = [one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")]
    if tag in known:
        return Response(status_code=304, headers=headers)
    return Response(page.pages[name], headers=headers, media_type="text/html")


async def file(request: Request) -> Response:
    page, name = load(), request.path_params["name"]
    if request.path_params["version"] != page.version or name not in page.files:
        raise HTTPException(404)
    headers = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
    return Response(page.files[name], headers=headers, media_type=KINDS[Path(name).suffix])


ROUTES: list[BaseRoute] = [
    Route("/", index, include_in_schema=False),
    Route("/local", local, include_in_schema=False),
    Route("/page/{version}/{name:path}", file, include_in_schema=False),
]
