"""What a request asked for and did not get: one line in the log, and a header of the response."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .log import log

HEADER = "x-fewbit-ignored"
MAX_NAMES, MAX_CHARS = 16, 64  # in the header and the log: names come from clients


def note_ignored(request: Request, names: Iterable[str]) -> None:
    """Remember fields that have no effect."""
    found: dict[str, None] = request.scope.setdefault("fewbit.ignored", {})
    found.update(dict.fromkeys(names))


class IgnoredFields:
    """Tells of fields that were ignored when the response starts."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noted(message: Message) -> None:
            names = scope.get("fewbit.ignored")
            if message["type"] == "http.response.start" and names:
                text = shown([*names])
                log("ignored", path=scope["path"][:200], fields=text)
                message = {**message, "headers": [*message["headers"], (HEADER.encode(), text.encode())]}
            await send(message)

        await self._app(scope, receive, noted)


def shown(names: list[str]) -> str:
    """Names of fields as a header holds them.

    >>> shown(["tools", "bad\\nname"])
    'tools, bad?name'
    """
    clean = ["".join(one if " " <= one <= "~" else "?" for one in name[:MAX_CHARS]) for name in names[:MAX_NAMES]]
    return ", ".join(clean) + (f" and {len(names) - MAX_NAMES} others" if len(names) > MAX_NAMES else "")
