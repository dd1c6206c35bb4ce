"""What all handlers of a server share."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from starlette.requests import Request

from .metrics import Metrics
from .pauses import PauseWatch
from .pool import Pool
from .settings import Settings


@dataclass(slots=True)
class State:
    """One for each app."""

    settings: Settings
    pool: Pool
    metrics: Metrics
    is_draining: bool = False  # the server ends: no new requests
    open_runs: int = 0
    pauses: PauseWatch = field(default_factory=PauseWatch)
    started: float = field(default_factory=time.time)


def state_of(request: Request) -> State:
    state: State = request.app.state.fewbit
    return state
