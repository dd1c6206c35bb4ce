"""Running the app on a port until it is told to end: running requests finish first, up to a limit."""

from __future__ import annotations

import gc
import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from ..errors import PathError
from .log import log
from .protocol import Connection
from .settings import Settings
from .state import State


class Server(uvicorn.Server):
    """Drains before it ends: new requests get 503, running ones go on. A second signal ends it at once."""

    def __init__(self, config: uvicorn.Config, state: State, ready: Callable[[], object]) -> None:
        super().__init__(config)
        self._state, self._ready, self._drain_end = state, ready, 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # what is there now stays: collections while requests run need not look at it
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._state.is_draining:
            self.should_exit = self.force_exit = True
            return
        self._state.is_draining = True
        self._drain_end = time.monotonic() + self._state.settings.drain_seconds
        if self._state.open_runs:
            log("shutting down", requests=self._state.open_runs)

    async def on_tick(self, counter: int) -> bool:
        over = not self._state.open_runs or time.monotonic() > self._drain_end
        if self._state.is_draining and over:
            self.should_exit = True
        return await super().on_tick(counter)


def listen(settings: Settings) -> socket.socket:
    """A socket on the host and port, before any model is loaded for it."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    found = socket.socket(family)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((settings.host, settings.port))
        found.listen(1024)
    except OSError as error:
        found.close()
        why = error.strerror or str(error)
        raise PathError(
            f"cannot listen on {settings.host} port {settings.port}: {why[:1].lower()}{why[1:]}; try another --port"
        ) from None
    return found


def serve(app: Starlette, at: socket.socket, ready: Callable[[], object] = lambda: None) -> None:
    """Answer requests until SIGINT or SIGTERM comes. `ready` is called when the first can come."""
    Server(make_config(app), app.state.fewbit, ready).run(sockets=[at])


def make_config(app: Starlette) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Connection,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="on",
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,  # requests had their time already
    )
