"""Running the app on a port until it is told to end: running requests finish first, up to a limit."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import resource
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette

from ..errors import ArgumentError
from . import memory
from .listening import BACKLOG, Listener
from .log import Seldom, UvicornLog, log
from .protocol import Connection
from .settings import Settings
from .state import State

OTHER_FILES = 128  # beside connections
ACCEPTED_AT_ONCE = 8  # between two looks at other connections; also the tries when no descriptors are left
SWITCH_SECONDS = 0.0005  # the event loop gives up the GIL with each write, and waits so long to get it back


class Server(uvicorn.Server):
    """Drains before it ends: new requests get 503, running ones go on for a while. A second signal ends it at once."""

    def __init__(self, config: uvicorn.Config, state: State, ready: Callable[[], object]) -> None:
        super().__init__(config)
        self._state, self._ready, self._drain_end = state, ready, 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for one in sockets or ():
            if isinstance(one, Listener):
                one.connections, one.has_tls = self._state.connections, self.config.is_ssl
        await super().startup(sockets)
        for one in sockets or ():
            one.listen(BACKLOG)
        asyncio.get_running_loop().set_exception_handler(AcceptErrors())
        gc.collect()
        gc.freeze()  # what is there now stays: collections while requests run need not look at it
        sys.setswitchinterval(SWITCH_SECONDS)
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
        is_late = time.monotonic() > self._drain_end
        if self._state.is_draining and (is_late or not self._state.open_runs):
            self.should_exit = True
        if self.should_exit and not self._state.is_over:
            if self._state.open_runs:
                log("ending requests", requests=self._state.open_runs)
            self._state.end()
        return await super().on_tick(counter)


class AcceptErrors:
    """Logs connections that cannot be accepted once a minute; asyncio waits a second before it tries again."""

    def __init__(self) -> None:
        self._seldom = Seldom()

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            if self._seldom.is_due():
                log("cannot accept connections", reason=error.strerror or str(error))
            return
        loop.default_exception_handler(context)


def raise_file_limit(connections: int) -> None:
    """Have as many file descriptors as connections need, or refuse to start."""
    wanted = connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return
    raise ArgumentError(
        f"{connections} connections need {wanted} file descriptors, and {soft} may be open; "
        f"give --max-connections {max(1, soft - OTHER_FILES)}, or raise the limit: ulimit -n {wanted}"
    )


def serve(app: Starlette, at: socket.socket, ready: Callable[[], object] = lambda: None) -> None:
    """Answer requests until SIGINT or SIGTERM comes. `ready` is called when the first can come."""
    memory.set_up()
    Server(make_config(app), app.state.fewbit, ready).run(sockets=[at])


def make_config(app: Starlette) -> uvicorn.Config:
    settings: Settings = app.state.fewbit.settings
    logging.getLogger("uvicorn.error").handlers = [UvicornLog(logging.WARNING)]
    return uvicorn.Config(
        app,
        http=Connection,
        loop="asyncio",  # uvloop, where it is installed, accepts connections past the `Listener`
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="on",
        backlog=ACCEPTED_AT_ONCE,  # asyncio takes one number for both
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        timeout_keep_alive=settings.keep_alive_seconds,  # type: ignore[arg-type]
        timeout_graceful_shutdown=2,  # requests had their time already
    )
