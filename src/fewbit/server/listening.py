"""The port: its connections are counted from the moment they are accepted, so that TLS handshakes count too."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

from ..errors import PathError
from .log import Seldom, log
from .settings import Settings

BACKLOG = 1024  # connections that wait to be accepted


class Connections:
    """Open connections by address."""

    def __init__(self, settings: Settings) -> None:
        self._limits, self._open, self._seldom = settings, Counter[str](), Seldom()

    def total(self) -> int:
        return self._open.total()

    def add(self, address: str) -> None:
        self._open[address] += 1

    def remove(self, address: str) -> None:
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    def are_too_many(self, address: str) -> bool:
        """Whether an open connection is one too many. The log says so once a minute."""
        limits, total, same = self._limits, self._open.total(), self._open[address]
        found = total > limits.max_connections or same > limits.max_connections_per_address
        if found and self._seldom.is_due():
            log("too many connections", open=total - 1, address=address, of_address=same - 1)
        return found


class Listener(socket.socket):
    """A socket that counts what it accepts, when it is told where. With TLS, one too many is closed without a word."""

    connections: Connections | None = None
    has_tls = False

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        counts = self.connections
        if counts is None:
            return connection, address
        name = str(address[0])
        counts.add(name)
        if self.has_tls and counts.are_too_many(name):
            counts.remove(name)
            connection.close()
            raise ConnectionAbortedError("too many connections")  # asyncio goes on with the next
        return Accepted(connection, lambda: counts.remove(name)), address


class Accepted(socket.socket):
    """A connection that tells when it is closed."""

    def __init__(self, connection: socket.socket, on_close: Callable[[], None]) -> None:
        super().__init__(connection.family, connection.type, connection.proto, fileno=connection.detach())
        self._on_close: Callable[[], None] | None = on_close

    def close(self) -> None:
        super().close()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()


def listen(settings: Settings) -> Listener:
    """A socket on the host and port, before any model is loaded for it."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    found = Listener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # for others asyncio sets no TCP_NODELAY
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((settings.host, settings.port))
        found.listen(BACKLOG)
    except OSError as error:
        found.close()
        why = error.strerror or str(error)
        raise PathError(
            f"cannot listen on {settings.host} port {settings.port}: {why[:1].lower()}{why[1:]}; try another --port"
        ) from None
    return found
