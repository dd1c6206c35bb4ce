"""The router of handles to engines. It only learns which replicas are there; jobs go to the engines themselves."""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import FIFOMixin, PendingRequest, ReplicaID, RequestRouter, RunningReplica

from .membership import publish


class MembershipRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]
    """Any replica will do for the few calls that are made through it."""

    def initialize_state(self, **kwargs: Any) -> None:
        self._deployment: str = kwargs["deployment"]

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        return [candidate_replicas]

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._publish()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._publish()

    def _publish(self) -> None:
        publish(self.app_name, self._deployment, [one.unique_id for one in self.curr_replicas])
