"""A thread for an engine, so that requests can come from any thread."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue

from ..errors import FewbitError
from .engine import Engine
from .request import Request, Sink

Order = tuple[Callable[[Engine, Sequence[Request]], None], Sequence[Request]]
Inbox = SimpleQueue[Order | None]  # None: stop
# How long whoever drops a worker waits for its thread, so that its memory is free then. Not for ever: garbage may be
# collected where a lock is held that the thread waits for.
DROP_SECONDS = 10.0


class Worker:
    """Steps an engine in a thread of its own, from the first request on. It sleeps while there is nothing to do.

    The thread holds the engine only while it works: a worker that nobody holds any more goes, and its thread with it.
    At the end of the program the thread is stopped between two steps.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._inbox: Inbox = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._end: Callable[..., None] | None = None
        self._closed = False

    def submit(self, requests: Sequence[Request], sink: Sink, stream: bool = False) -> None:
        """Run what the engine made of one call, or raise QueueFull. Deltas go to `sink`, in the worker's thread."""
        self.submit_batch([requests], sink, stream)

    def submit_batch(self, groups: Sequence[Sequence[Request]], sink: Sink, stream: bool = False) -> None:
        """Run what the engine made of several calls, all or nothing. They begin together, so that they can share."""
        requests = [request for group in groups for request in group]
        for request in requests:
            request.sink, request.stream = sink, stream
        with self._lock:
            if self._closed:
                raise FewbitError("the model was closed; it takes no more requests")
            if self._thread is None:
                self._start()
            elif not self._thread.is_alive():
                raise FewbitError("the model's thread is gone, as in a forked process; load the model again")
            self.engine.limits.take(requests)
            self._inbox.put((lambda engine, _: engine.add_batch(groups), requests))

    def cancel(self, requests: Sequence[Request]) -> None:
        """End requests. This never waits, so that it can be called from a destructor."""
        if self._thread is not None:
            self._inbox.put((Engine.cancel, requests))

    def call(self, action: Callable[[Engine], None]) -> None:
        """Do something with the engine between two steps, and wait for it."""
        with self._lock:
            if self._closed or self._thread is None:
                action(self.engine)
                return
            done: SimpleQueue[BaseException | None] = SimpleQueue()
            self._inbox.put((partial(_do, action, done), ()))
        if (error := done.get()) is not None:
            raise error

    def close(self) -> None:
        """Stop the thread. Requests that are not over end with an error."""
        with self._lock:
            self._closed = True
        if self._end is not None:
            self._end()

    def _start(self) -> None:
        held = weakref.ref(self.engine), self._inbox
        self._thread = threading.Thread(target=_serve, args=held, name="fewbit-engine", daemon=True)
        self._thread.start()
        self._end = partial(_end, weakref.ref(self._thread), self._inbox)
        weakref.finalize(self, self._end, DROP_SECONDS).atexit = False
        weakref.finalize(self._thread, self._end)  # while it runs it lives: this waits as the program ends


def _end(reference: weakref.ref[threading.Thread], inbox: Inbox, seconds: float | None = None) -> None:
    """Stop a thread, if it still runs, and wait for it."""
    inbox.put(None)
    thread = reference()
    if thread is not None and thread is not threading.current_thread():  # which may be the one that collects garbage
        thread.join(seconds)


def _serve(reference: weakref.ref[Engine], inbox: Inbox) -> None:
    while (order := inbox.get()) is not None:
        engine = reference()
        if engine is None or not _work(engine, inbox, order):
            return
        del engine, order  # so that nothing is held while it sleeps


def _work(engine: Engine, inbox: Inbox, order: Order | None) -> bool:
    """Step until nothing is left to do. False: it was told to stop."""
    while order is not None:
        _act(engine, *order)
        while inbox.empty():
            if not _step(engine):
                return True
        order = inbox.get()
    _fail(engine, FewbitError("the model was closed before the output was complete"))
    return False


def _do(
    action: Callable[[Engine], None],
    done: SimpleQueue[BaseException | None],
    engine: Engine,
    requests: Sequence[Request],
) -> None:
    try:
        action(engine)
        done.put(None)
    except BaseException as error:
        done.put(error)


def _act(engine: Engine, act: Callable[[Engine, Sequence[Request]], None], requests: Sequence[Request]) -> None:
    try:
        act(engine, requests)
    except BaseException as error:  # ends those that it was about; the others go on
        _fail(engine, error, requests)


def _step(engine: Engine) -> bool:
    try:
        return engine.step()
    except BaseException as error:  # whatever it is, nobody is left waiting for an output
        _fail(engine, error)
        return False


def _fail(engine: Engine, error: BaseException, requests: Sequence[Request] | None = None) -> None:
    """End requests. They are told before anything else is done, and what is done then may fail too."""
    if not isinstance(error, Exception):  # SystemExit, say: a callback must not end this thread
        error = FewbitError(f"the request ended with {type(error).__name__}: {error}")
    with suppress(Exception):
        engine.fail(error, requests)
