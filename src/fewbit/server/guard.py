"""Who may ask: the host and origin of a request, and its API key. It also numbers requests and writes the log."""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from contextlib import suppress
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .bodies import JsonResponse
from .errors import ApiError, body_for, shutting_down
from .jobs import Usage
from .log import log
from .pool import ALLOWED
from .state import State

PUBLIC = frozenset(("/health", "/", "/openapi.json", "/local"))  # need no key: they tell nothing of anybody
PUBLIC_FOLDER = "/page/"
SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")


class Guard:
    """The outermost layer, in plain ASGI: streams pass through it untouched."""

    def __init__(self, app: ASGIApp, state: State) -> None:
        self._app, self._state = app, state
        self._keys = [(key, key.key.encode(), state.quotas[key.id]) for key in state.settings.keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status, headers = time.perf_counter(), 0, Headers(scope=scope)
        scope["fewbit.request_id"] = request_id = sane_id(headers.get("x-request-id"))

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        try:
            self._check(scope, headers)
            await self._app(scope, receive, watched)
        except ApiError as error:
            await _refuse(error, scope, receive, watched)
        except asyncio.CancelledError:  # the server ends, and did not wait for this one
            if not self._state.is_over:
                raise
            if not status:
                await _refuse(shutting_down(), scope, receive, watched)
        finally:
            if (nbytes := scope.get("fewbit.body_bytes")) is not None:
                self._state.release_body(scope["fewbit.client"], nbytes)
            self._report(scope, status, time.perf_counter() - begun)

    def _check(self, scope: Scope, headers: Headers) -> None:
        ALLOWED.set(None)
        is_public = scope["path"] in PUBLIC or scope["path"].startswith(PUBLIC_FOLDER)
        if "transfer-encoding" in headers and "content-length" in headers:
            raise ApiError(400, "a request has Content-Length or Transfer-Encoding, not both", code="invalid_request",
                           closes=True)  # fmt: skip
        self._check_host(headers, is_public)
        if is_public or not self._keys:
            return
        given = _given_key(headers)
        found = [one for one in self._keys if hmac.compare_digest(one[1], given)]  # all of them: each takes its time
        if not found:
            raise ApiError(401, "this server needs an API key: Authorization: Bearer KEY", code="invalid_api_key")
        key, _, quota = found[0]
        if scope["method"] == "POST":
            quota.admit()
        ALLOWED.set(key.models)
        scope.setdefault("state", {}).update(key_id=key.id, key_name=key.name, quota=quota)

    def _check_host(self, headers: Headers, is_public: bool) -> None:
        """Web pages of others must not reach a server that trusts its own machine."""
        settings = self._state.settings
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._is_allowed(host):
            raise ApiError(403, f"this server does not answer for {host[:100]!r}; see --allowed-host",
                           code="forbidden_host")  # fmt: skip
        if origin is not None and (origin in settings.cors_origins or "*" in settings.cors_origins):
            return
        if origin is not None and _netloc(origin) != host:
            raise ApiError(403, f"pages from {origin[:100]!r} may not use this server; see --cors-origin",
                           code="forbidden_origin")  # fmt: skip
        if headers.get("sec-fetch-site") == "cross-site" and not is_public:
            raise ApiError(403, "pages of other sites may not use this server; see --cors-origin",
                           code="forbidden_origin")  # fmt: skip

    def _is_allowed(self, host: str) -> bool:
        """Whether a Host header may name this server. A foreign name may be another site's, whose pages would come by
        it (DNS rebinding). With a key any name will do unless some are given: such pages do not know the key."""
        settings = self._state.settings
        name = host_name(host)
        if is_local(host) or name in settings.allowed_hosts:
            return True
        if settings.is_loopback or settings.allowed_hosts:
            return False
        return bool(self._keys) or name == settings.host or is_address(name)

    def _report(self, scope: Scope, status: int, seconds: float) -> None:
        route = scope.get("route")
        path = getattr(route, "path", None) or "other"
        self._state.metrics.requests.labels(path, str(status)).inc()
        fields: dict[str, Any] = {"id": scope["fewbit.request_id"]}
        if name := scope.get("state", {}).get("key_name"):
            fields["key"] = name
        if (reason := scope.get("fewbit.reason")) is not None:
            fields["reason"] = reason
        used = scope.get("fewbit.usage")
        if used is not None:
            usage: Usage = used[1]
            fields |= {"model": used[0], "prompt": usage.prompt_tokens, "cached": usage.cached_tokens,
                     "tokens": usage.completion_tokens}  # fmt: skip
        log("request", method=scope["method"], path=scope["path"][:200], status=status, seconds=round(seconds, 3),
            **fields)  # fmt: skip


async def _refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    with suppress(OSError):
        await error_response(error, scope)(scope, receive, send)


def error_response(error: ApiError, scope: Scope) -> JsonResponse:
    """An error in the shape of the API at a path. The log says why, too."""
    scope["fewbit.reason"] = f"{error.code or 'error'}: {error.message[:200]}"
    return JsonResponse(body_for(scope["path"])(error), error.status, error.headers)


def sane_id(given: str | None) -> str:
    """The id that a client gave its request, if it can stand in a log; else a new one.

    >>> sane_id("job-17"), len(sane_id("no good")), len(sane_id(None))
    ('job-17', 32, 32)
    """
    return given if given is not None and SANE_ID.fullmatch(given) else uuid4().hex


def host_name(host: str) -> str:
    """The name in a Host header, without its port; empty if there is none.

    >>> host_name("Example.org:80"), host_name("[::1"), host_name("[::1]:80")
    ('example.org', '', '::1')
    """
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_local(host: str) -> bool:
    """Whether a Host header names this machine.

    >>> is_local("localhost:8000"), is_local("[::1]:80"), is_local("example.org")
    (True, True, False)
    """
    name = host_name(host)
    if name == "localhost" or name.endswith(".localhost"):
        return True
    return is_address(name) and ip_address(name).is_loopback


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _given_key(headers: Headers) -> bytes:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return key.strip().encode()
    return headers.get("x-api-key", "").encode()
