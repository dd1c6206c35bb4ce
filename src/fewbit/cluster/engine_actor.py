"""The process of an engine: a Ray actor that frontends call."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from ..llm import LLM
from ..server import memory
from ..server.errors import Interrupted
from ..server.local import LocalBackend
from ..server.serving import SWITCH_SECONDS
from .engine_host import EngineHost

Load = Callable[..., LLM]

NAMESPACE = "fewbit"  # of the actors' names
MAX_CALLS = 10_000  # at a time; what an engine has to do is limited by the frontends


class EngineActor(EngineHost):
    """An engine in a process of its own.

    Args:
        source: What `LLM` takes for the model.
        loading: Options of `LLM`.
        load: What makes an `LLM` of them.
    """

    def __init__(self, source: str, loading: dict[str, Any], load: Load = LLM) -> None:
        memory.set_up()
        llm = load(source, **loading)
        super().__init__(LocalBackend(llm, llm.model_name))
        gc.collect()
        gc.freeze()
        sys.setswitchinterval(SWITCH_SECONDS)

    async def ping(self) -> None:
        pass

    async def until_over(self) -> None:
        """Never ends while the process is there."""
        await asyncio.Event().wait()


class ActorClient:
    """Calls an engine's actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def call(self, method: str, *given: Any) -> Any:
        try:
            return await getattr(self._actor, method).remote(*given)
        except RayActorError:
            raise Interrupted from None


def actor_name(app: str, deployment: str, replica: str) -> str:
    return f"{app}/{deployment}/{replica}"


def start_engine(name: str, given: tuple[Any, ...], resources: dict[str, float], strategy: Any) -> Any:
    """An engine's actor. It ends with the process that starts it.

    Args:
        name: The actor's, see `actor_name`.
        given: What `EngineActor` takes.
        resources: What Ray reserves for it, by the names of Ray's options.
        strategy: Where it is placed.
    """
    actor = ray.remote(EngineActor).options(
        name=name, namespace=NAMESPACE, max_concurrency=MAX_CALLS, scheduling_strategy=strategy, **resources
    )
    return actor.remote(*given)


def find_engine(app: str, deployment: str, replica: str) -> ActorClient | None:
    """The engine of a replica, if it is there."""
    try:
        return ActorClient(ray.get_actor(actor_name(app, deployment, replica), namespace=NAMESPACE))
    except (ValueError, RayError):
        return None
