"""Who may ask: the host and origin of a request, and its API key. It also writes the log."""

from __future__ import annotations

import hmac
import time
from hashlib import blake2b
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .bodies import JsonResponse
from .errors import ApiError, body_for
from .jobs import Usage
from .log import log
from .state import State

PUBLIC = frozenset(("/health", "/", "/openapi.json"))  # need no key: they tell nothing of anybody
PUBLIC_FOLDER = "/page/"


class Guard:
    """The outermost layer, in plain ASGI: streams pass through it untouched."""

    def __init__(self, app: ASGIApp, state: State) -> None:
        self._app, self._state = app, state
        self._keys = [key.encode() for key in state.settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            try:
                self._check(scope)
            except ApiError as error:
                response = JsonResponse(body_for(scope["path"])(error), error.status, error.headers)
                await response(scope, receive, watched)
                return
            await self._app(scope, receive, watched)
        finally:
            self._report(scope, status, time.perf_counter() - begun)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        self._check_host(headers)
        if scope["path"] in PUBLIC or scope["path"].startswith(PUBLIC_FOLDER) or not self._keys:
            return
        given = _given_key(headers)
        found = [key for key in self._keys if hmac.compare_digest(key, given)]  # all of them: each takes its time
        if not found:
            raise ApiError(401, "this server needs an API key: Authorization: Bearer KEY", code="invalid_api_key")
        scope.setdefault("state", {})["key_id"] = blake2b(found[0], digest_size=8).hexdigest()

    def _check_host(self, headers: Headers) -> None:
        """Web pages of others must not reach a server that trusts its own machine."""
        settings = self._state.settings
        host, origin = headers.get("host", ""), headers.get("origin")
        if settings.is_loopback and not is_local(host):
            raise ApiError(403, f"this server is for this machine only, not for {host[:100]!r}; see --host",
                           code="forbidden_host")  # fmt: skip
        if origin is None or origin in settings.cors_origins or "*" in settings.cors_origins:
            return
        if urlsplit(origin).netloc != host:
            raise ApiError(403, f"pages from {origin[:100]!r} may not use this server; see --cors-origin",
                           code="forbidden_origin")  # fmt: skip

    def _report(self, scope: Scope, status: int, seconds: float) -> None:
        route = scope.get("route")
        path = getattr(route, "path", None) or "other"
        self._state.metrics.requests.labels(path, str(status)).inc()
        more: dict[str, object] = {}
        used = scope.get("fewbit.usage")
        if used is not None:
            usage: Usage = used[1]
            more = {"model": used[0], "prompt": usage.prompt_tokens, "cached": usage.cached_tokens,
                    "tokens": usage.completion_tokens}  # fmt: skip
        log("request", method=scope["method"], path=scope["path"][:200], status=status, seconds=round(seconds, 3),
            **more)  # fmt: skip


def is_local(host: str) -> bool:
    """Whether a Host header names this machine.

    >>> is_local("localhost:8000"), is_local("[::1]:80"), is_local("example.org")
    (True, True, False)
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _given_key(headers: Headers) -> bytes:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return key.strip().encode()
    return headers.get("x-api-key", "").encode()
