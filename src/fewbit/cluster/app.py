"""The application on Ray Serve: frontends that answer HTTP, and replicas that have an engine each.

A replica is an actor of Serve, which restarts, scales and updates it. It starts the engine's actor, a process of its
own. Frontends call that one directly: a call through Serve's handles would cost milliseconds.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import RequestRouterConfig
from ray.util import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ..llm import LLM
from ..server.app import make_app
from ..server.backend import ModelFacts
from ..server.log import use_json
from ..server.pool import Pool
from ..server.settings import Settings
from . import membership
from .engine_actor import Load, actor_name, find_engine, start_engine
from .options import ClusterOptions, deployment_name, read_options
from .replicas import ReplicaBackend, Replicas
from .scaling import QUEUED_TOKENS

HEALTH_SECONDS = 1.0  # between two checks of a replica
HEALTH_TIMEOUT_SECONDS = 30.0
MAX_REQUESTS = 100_000  # at a frontend, which refuses more than it is told in its `Settings`
PACKAGE = __package__
QUIET = {"enable_access_log": False}  # the server has a log of its own


class Replica:
    """Has an engine in a process of its own, and ends with it.

    Args:
        given: What `EngineActor` takes: the model, options of `LLM`, and what loads it.
        resources: What is reserved for the engine.
    """

    async def __init__(self, given: tuple[Any, ...], resources: dict[str, float]) -> None:  # type: ignore[misc]
        context = serve.get_replica_context()
        name = actor_name(context.app_name, context.deployment, context.replica_id.unique_id)
        placed = PlacementGroupSchedulingStrategy(get_current_placement_group())
        options = {"num_cpus": resources.get("CPU", 0), "num_gpus": resources.get("GPU", 0)}
        self._engine = start_engine(name, given, options, placed)
        self._facts: ModelFacts = await self._engine.facts.remote()
        self._watch = asyncio.ensure_future(self._end_with_engine())

    async def facts(self) -> ModelFacts:
        return self._facts

    async def check_health(self) -> None:
        await self._engine.ping.remote()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        counts = await self._engine.counts.remote()
        return {QUEUED_TOKENS: float(counts.queued_tokens)}

    async def __del__(self) -> None:
        """Jobs go on to their end; Serve says how long that may take."""
        while await self._engine.num_open.remote():
            await asyncio.sleep(0.1)

    async def _end_with_engine(self) -> None:
        try:
            await self._engine.until_over.remote()
        except RayActorError:
            os._exit(1)


class Frontend:
    """Answers HTTP over the replicas.

    Args:
        settings: The server's.
        engines: Handles to the deployments of replicas, by the models' names.
    """

    async def __init__(self, settings: Settings, engines: Mapping[str, Any]) -> None:  # type: ignore[misc]
        use_json(settings.log_json)
        self._settings, self._backends = settings, {name: await connect(one) for name, one in engines.items()}

    def __serve_build_asgi_app__(self) -> Any:
        return make_app(self._settings, Pool.of_backends(self._backends))

    async def check_health(self) -> None:
        pass


async def connect(handle: Any) -> ReplicaBackend:
    """The backend over the replicas of a deployment."""
    app, deployment = serve.get_replica_context().app_name, handle.deployment_name
    replicas = Replicas(lambda replica: find_engine(app, deployment, replica))
    loop = asyncio.get_running_loop()

    def update(names: list[str]) -> None:
        loop.call_soon_threadsafe(replicas.update, names)

    membership.listen(app, deployment, update)
    return ReplicaBackend(replicas, await handle.facts.remote())


def build(args: Mapping[str, Any]) -> Any:
    """The application of a Serve config; see `ClusterOptions` for `args`."""
    return application(read_options(args))


def application(options: ClusterOptions, load: Load = LLM) -> Any:
    """The application, bound: for `serve.run`.

    Args:
        options: What is deployed.
        load: What makes an `LLM` of a model and options, in the process of each engine.
    """
    settings = options.server_settings
    engines = {
        name: replica_deployment(name, (source, options.load_options, load), options)
        for name, source in options.models.items()
    }
    frontend = serve.deployment(serve.ingress()(Frontend)).options(
        name="frontend", num_replicas=options.frontends, max_ongoing_requests=MAX_REQUESTS,
        ray_actor_options={"num_cpus": 0}, graceful_shutdown_timeout_s=settings.drain_seconds,
        health_check_period_s=HEALTH_SECONDS, health_check_timeout_s=HEALTH_TIMEOUT_SECONDS, logging_config=QUIET,
    )  # fmt: skip
    return frontend.bind(settings, engines)


def replica_deployment(model: str, given: tuple[Any, ...], options: ClusterOptions) -> Any:
    """The replicas of a model, bound."""
    name = deployment_name(model)
    router = RequestRouterConfig(
        request_router_class=f"{PACKAGE}.router:MembershipRouter", request_router_kwargs={"deployment": name}
    )
    return serve.deployment(Replica).options(
        name=name, **replica_numbers(options), ray_actor_options={"num_cpus": 0}, request_router_config=router,
        placement_group_bundles=[options.resources], max_ongoing_requests=MAX_REQUESTS,
        graceful_shutdown_timeout_s=options.server_settings.drain_seconds,
        health_check_period_s=HEALTH_SECONDS, health_check_timeout_s=HEALTH_TIMEOUT_SECONDS, logging_config=QUIET,
    ).bind(given, options.resources)  # fmt: skip


def replica_numbers(options: ClusterOptions) -> dict[str, Any]:
    """How many replicas there are, as options of a deployment."""
    if options.max_replicas is None or options.max_replicas == options.replicas:
        return {"num_replicas": options.replicas}
    policy = {
        "policy_function": f"{PACKAGE}.scaling:QueuedTokensPolicy",
        "policy_kwargs": {"tokens_per_replica": options.tokens_per_replica},
    }
    return {"autoscaling_config": {
        "min_replicas": options.replicas, "max_replicas": options.max_replicas, "policy": policy,
        "upscale_delay_s": 5.0, "downscale_delay_s": 120.0,
    }}  # fmt: skip
