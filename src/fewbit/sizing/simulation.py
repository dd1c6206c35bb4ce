"""Many replicas and their clients, event by event. The same seed gives the same numbers."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from statistics import mean

from .figures import ReplicaFigures
from .load import ClientLoad, Clients, SimulatedRequest
from .replica import SimulatedReplica

LOAD_BOUND = 1.3  # of the mean load: how much more a replica may have that knows a prefix


@dataclass(frozen=True)
class SimulationResult:
    """What came of a simulation.

    Args:
        requests: All requests, in the order of their ends.
        seconds: When the last one ended.
        replicas: The replicas at the end.
    """

    requests: list[SimulatedRequest]
    seconds: float
    replicas: list[SimulatedReplica]


class Simulation:
    """Runs a load on replicas.

    Args:
        figures: Of each replica.
        load: The clients.
        replicas: Number of replicas.
    """

    def __init__(self, figures: ReplicaFigures, load: ClientLoad, replicas: int) -> None:
        self._figures, self._load = figures, load
        longest = load.prompt_tokens[1] + load.output_tokens[1]
        self._replicas = [SimulatedReplica(figures, longest) for _ in range(replicas)]
        self._clients = Clients(load)
        # time, number of the event, replica (or client, if none), version of the replica's plan
        self._events: list[tuple[float, int, int, int]] = []
        self._versions = [0] * replicas
        self._num_events = 0
        self._loads = [0] * replicas  # requests that wait or run

    def run(self) -> SimulationResult:
        """All requests of all clients."""
        for client, start in enumerate(self._clients.starts(self._cycle_seconds())):
            self._push(start, ~client)
        finished: list[SimulatedRequest] = []
        while self._events:
            now, _, place, version = heappop(self._events)
            if place < 0:
                self._arrive(~place, now)
            elif version == self._versions[place]:
                finished += self._go_on(place, now)
        end = max((request.finish_time for request in finished), default=0.0)
        return SimulationResult(finished, end, self._replicas)

    def _go_on(self, place: int, now: float) -> list[SimulatedRequest]:
        """A replica has come to the end of its steps, or begins: others may ask at the same time, before it goes on."""
        replica = self._replicas[place]
        if not replica.is_running:
            end = replica.begin(now)
            if end is not None:
                self._plan(place, end)
            return []
        finished = replica.complete()
        for request in finished:
            self._loads[place] -= 1
            self._push(now + self._clients.think(), ~request.client)
        self._plan(place, now)
        return finished

    def _arrive(self, client: int, now: float) -> None:
        request = self._clients.ask(client, now)
        if request is None:
            return
        place = self._route(request)
        replica = self._replicas[place]
        replica.add(request)
        self._loads[place] += 1
        self._plan(place, replica.interrupt(now) if replica.is_running else now)

    def _plan(self, place: int, end: float) -> None:
        self._versions[place] += 1
        self._push(end, place, self._versions[place])

    def _push(self, time: float, place: int, version: int = 0) -> None:
        self._num_events += 1
        heappush(self._events, (time, self._num_events, place, version))

    def _route(self, request: SimulatedRequest) -> int:
        """The replica with the least load; of those that know the prefix, if that is not much more."""
        loads = self._loads
        least = loads.index(min(loads))
        if not request.shared:
            return least
        bound = LOAD_BOUND * mean(loads) + 1
        knowing = [i for i, replica in enumerate(self._replicas) if loads[i] <= bound and replica.knows(request.group)]
        return min(knowing, key=loads.__getitem__, default=least)

    def _cycle_seconds(self) -> float:
        """About how long a client waits for an answer at first: one on a replica that is full."""
        figures, load = self._figures, self._load
        batch = min(figures.max_seqs, max(1, load.clients // len(self._replicas)))
        return figures.decode_seconds[batch] * sum(load.output_tokens) / 2
