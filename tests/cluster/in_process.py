"""Replicas in this process: what frontends and engines send each other is pickled, and no Ray is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fewbit.cluster.engine_host import EngineHost
from fewbit.cluster.replicas import ReplicaBackend, Replicas
from fewbit.llm import LLM
from fewbit.server.backend import Backend
from fewbit.server.errors import Interrupted
from fewbit.server.local import LocalBackend


class LocalEngine:
    """An engine's host that may die."""

    def __init__(self, backend: Backend) -> None:
        self.host, self.is_dead = EngineHost(backend), False
        self.calls: list[str] = []

    async def call(self, method: str, *given: Any) -> Any:
        self.calls.append(method)
        if self.is_dead:
            raise Interrupted
        result = await getattr(self.host, method)(*given)
        if self.is_dead:
            raise Interrupted
        return result


class LocalReplicas(Replicas):
    """Replicas that are found when the first job comes, in its event loop."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self.engines = {f"replica{number}": LocalEngine(backend) for number, backend in enumerate(backends)}
        super().__init__(self._living)

    def _living(self, name: str) -> LocalEngine | None:
        engine = self.engines[name]
        return None if engine.is_dead else engine

    async def find(self, key: Any = ()) -> Any:
        if not self._names:
            self.update(self.engines)
        return await super().find(key)


def replicas_of(*llms: LLM) -> ReplicaBackend:
    """A backend over a replica for each of these."""
    backends = [LocalBackend(llm, llm.model_name) for llm in llms]
    return ReplicaBackend(LocalReplicas(backends), backends[0].facts)
