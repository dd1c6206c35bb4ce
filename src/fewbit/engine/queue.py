"""Who waits, and who is next: the highest priority, then the client that was served least, then the first to come.

Requests of one client and one priority stand in one line, in the order of arrival. A line from which nobody was
admitted for `AGING_SECONDS` counts as one priority higher, and so on, so that every line moves; one with a hundred
requests ages no faster than one with a single request. A request keeps the level at which it was admitted: only those
above it can preempt it, so that it does not lose what it waited for.

Service is counted in tokens, those of prompts that are run and those of outputs. A client that comes back after a pause
has saved up nothing: it begins with what the client that was chosen last has.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from itertools import count

from .request import Request

AGING_SECONDS = 10.0
MAX_CLIENTS = 4096  # whose service is remembered while they are away

Key = tuple[str, int]  # client and priority


class WaitingQueue:
    """Requests that wait, in lines.

    `choose` gives the one that is next, if any; `remove` takes it out.
    """

    def __init__(self) -> None:
        self._lines: dict[Key, list[Request]] = {}
        self._moved: dict[Key, float] = {}  # when somebody of the line was admitted last
        self._served: dict[str, int] = {}
        self._virtual_time = 0  # what the client that was chosen last had been served
        self._arrivals = count(1)

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[Request]:
        for line in self._lines.values():
            yield from line

    def push(self, request: Request, now: float) -> None:
        """A request waits from now on; one that was preempted stands where it stood before."""
        client = request.client
        if not request.arrival:
            request.arrival, request.level = next(self._arrivals), request.priority
        if all(line[0].client != client for line in self._lines.values()):
            self._served[client] = max(self.served(client), self._virtual_time)
        request.wait_time = now
        insort(self._lines.setdefault(_key(request), []), request, key=lambda one: one.arrival)

    def choose(self, now: float, is_ready: Callable[[Request], bool]) -> Request | None:
        """The next one of those that are ready."""
        heads = [next(filter(is_ready, line), None) for line in self._lines.values()]
        ready = [head for head in heads if head is not None]
        return min(
            ready, key=lambda head: (-self._level(head, now), self.served(head.client), head.arrival), default=None
        )

    def remove(self, request: Request, now: float) -> None:
        """A request that was chosen is admitted."""
        request.level = self._level(request, now)
        self._virtual_time = self.served(request.client)
        self._moved[_key(request)] = now
        self._lines[_key(request)].remove(request)
        self._forget()

    def charge(self, client: str, tokens: int) -> None:
        """Tokens were run for a client."""
        self._served[client] = self.served(client) + tokens

    def served(self, client: str) -> int:
        return self._served.get(client, 0)

    def drop_finished(self) -> bool:
        """Whether there were any."""
        before = len(self)
        for line in self._lines.values():
            line[:] = [request for request in line if not request.is_finished]
        self._forget()
        return len(self) < before

    def _level(self, request: Request, now: float) -> int:
        since = max(request.wait_time, self._moved.get(_key(request), request.wait_time))
        return request.level + int((now - since) / AGING_SECONDS)

    def _forget(self) -> None:
        for key in [key for key, line in self._lines.items() if not line]:
            del self._lines[key]
            self._moved.pop(key, None)
        if len(self._served) > MAX_CLIENTS:
            present = {client for client, _ in self._lines}
            self._served = {client: tokens for client, tokens in self._served.items() if client in present}


def _key(request: Request) -> Key:
    return request.client, request.priority
