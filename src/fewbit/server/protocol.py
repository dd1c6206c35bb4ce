"""HTTP connections: uvicorn's, with a limit of their number, and time limits for what a client does not send."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .state import State

TOO_SLOW = b"the headers came too slowly; send them at once"
TOO_MANY = b"too many connections are open; try again later"


class Connection(H11Protocol):
    """It may be idle for a while, but headers must come at once, and so must the rest of a body that was refused before
    it was read. One too many gets a 503 and is closed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._state: State = self.config.app.state.fewbit  # type: ignore[union-attr]
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        if self._state.connections.are_too_many(address):
            self._answer(503, b"Service Unavailable", TOO_MANY)
            transport.close()
            return
        seconds = self._state.settings.first_request_seconds
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_keepalive_if_required()
        self._stop()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Begin to wait when the client owes something, and end when it came."""
        if self.transport.is_closing() or not (self._in_headers() or self._in_refused_body()):
            self._stop()
        elif self._timer is None:
            seconds = self._state.settings.head_seconds + self._state.pauses.lenience
            self._timer = self.loop.call_later(seconds, self._give_up)

    def _in_headers(self) -> bool:
        return self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])

    def _in_refused_body(self) -> bool:
        return self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if self._in_headers():
            self._answer(408, b"Request Timeout", TOO_SLOW)
        self.transport.close()

    def _answer(self, status: int, reason: bytes, text: bytes) -> None:
        """An answer to what was not read."""
        headers = [("Content-Type", "text/plain"), ("Connection", "close"), ("Content-Length", str(len(text)))]
        response = h11.Response(status_code=status, headers=headers, reason=reason)
        for event in (response, h11.Data(text), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
