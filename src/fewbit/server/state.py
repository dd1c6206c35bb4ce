"""What all handlers of a server share."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from starlette.requests import Request

from .errors import ApiError, shutting_down
from .keys import Quota
from .listening import Connections
from .memory import Trimmer
from .pauses import PauseWatch
from .settings import Settings
from .text_work import TextWork

if TYPE_CHECKING:
    from ..files.feedback import FeedbackStore
    from .batch.batches import Batches
    from .files import FileStore
    from .learning import Learner
    from .metrics import Metrics
    from .pool import Pool


class Endable(Protocol):
    def end(self) -> None: ...


@dataclass(slots=True)
class State:
    """One for each app."""

    settings: Settings
    pool: Pool
    metrics: Metrics
    is_draining: bool = False  # the server ends: no new requests
    is_over: bool = False  # the time of running requests is over too
    open_runs: int = 0
    runs: set[Endable] = field(default_factory=set)  # that give events
    bodies: Counter[str] = field(default_factory=Counter)  # bytes of request bodies, by client
    text: TextWork = field(default_factory=TextWork)
    trimmer: Trimmer = field(default_factory=Trimmer)
    pauses: PauseWatch = field(default_factory=PauseWatch)
    started: float = field(default_factory=time.time)
    files: FileStore | None = None  # of clients, where they are kept
    batches: Batches | None = None
    feedback: FeedbackStore | None = None
    learner: Learner | None = None
    connections: Connections = field(init=False)
    quotas: dict[str, Quota] = field(init=False)  # of API keys, by their ids
    _ends: set[asyncio.Future[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.connections = Connections(self.settings)
        self.quotas = {key.id: Quota(key) for key in self.settings.keys}

    def end(self) -> None:
        """End all requests now: they get an error, or what they have."""
        self.is_over = True
        for run in [*self.runs]:
            run.end()
        for one in self._ends:
            if not one.done():
                one.set_result(None)

    async def until_over(self) -> None:
        """Wait until running requests must end."""
        if self.is_over:
            return
        end = asyncio.get_running_loop().create_future()
        self._ends.add(end)
        try:
            await end
        finally:
            self._ends.discard(end)

    def take_body(self, client: str, nbytes: int) -> None:
        """Count bytes of a body, until `release_body`; refuse them if there are too many already."""
        most = self.settings.max_bodies_bytes
        if self.bodies.total() + nbytes > most or self.bodies[client] + nbytes > most // 2:
            raise ApiError(503, "too many large requests are being answered; try again later", code="overloaded",
                           retry_after=5)  # fmt: skip
        self.bodies[client] += nbytes

    def release_body(self, client: str, nbytes: int) -> None:
        self.bodies[client] -= nbytes
        self.bodies += Counter()  # without those that are zero
        self.trimmer.after(nbytes)

    def check_open(self) -> None:
        """Refuse new requests at the end."""
        if self.is_draining:
            raise shutting_down()


def state_of(request: Request) -> State:
    state: State = request.app.state.fewbit
    return state


def client_name(request: Request, user: str = "") -> str:
    """Who is to get a fair share: the holder of a key; without keys the user that a request names, or its machine."""
    host = "" if request.client is None else request.client.host
    return getattr(request.state, "key_id", "") or user or host


def charge(request: Request, tokens: int) -> None:
    """Count tokens against the quota of a request's key."""
    quota: Quota | None = getattr(request.state, "quota", None)
    if quota is not None:
        quota.charge(tokens)
