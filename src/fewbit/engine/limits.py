"""How many requests an engine takes. More are refused at once, in the thread that submits them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from ..errors import QueueFull, RequestError
from ..validation import to_size
from .request import Request
from .request_checks import check_count


class QueueLimits:
    """Counts requests from `take` to their end, those that run and those that wait; None: no limit.

    `max_open` is for all clients together, `max_per_client` for each of them.
    """

    def __init__(self, max_open: int | None = None, max_per_client: int | None = None) -> None:
        self.max_open, self.max_per_client = max_open, max_per_client
        self._open: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, requests: Sequence[Request]) -> None:
        """Count requests of one call, once: all of them, or QueueFull."""
        new = [request for request in requests if not request.is_counted]
        if not new:
            return
        client = new[0].client
        with self._lock:
            if self.max_per_client is not None and self._open[client] + len(new) > self.max_per_client:
                raise QueueFull(
                    f"a client may have {self.max_per_client} requests at once, this one has {self._open[client]}; "
                    "wait until one of them ends",
                    of_client=True,
                )
            if self.max_open is not None and self._open.total() + len(new) > self.max_open:
                raise QueueFull(f"the queue is full: {self._open.total()} requests run or wait; try again later")
            self._open[client] += len(new)
            for request in new:
                request.is_counted = True

    def release(self, request: Request) -> None:
        """A request has ended."""
        with self._lock:
            if request.is_counted:
                request.is_counted = False
                self._open[request.client] -= 1
                if not self._open[request.client]:
                    del self._open[request.client]


def make_limits(max_seqs: int, max_waiting: int | None, max_per_client: int | None) -> QueueLimits:
    """Limits of an engine that runs so many requests at once."""
    waiting = None if max_waiting is None else to_size(max_waiting, "max_waiting", error=RequestError)
    return QueueLimits(
        None if waiting is None else max_seqs + waiting,
        None if max_per_client is None else check_count(max_per_client, "max_per_client"),
    )
