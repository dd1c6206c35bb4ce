"""The application on the cluster of the tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

PORT = 18_231
URL = f"http://127.0.0.1:{PORT}"
LOADING = {"ctx": 2048, "threads": 1, "batch_invariant": True}


def args_of(path: Path, **changes: Any) -> dict[str, Any]:
    return {"models": {"tiny": str(path)}, "replicas": 2, "cpus": 0.5, "loading": LOADING, **changes}


def start_http() -> None:
    from ray import serve

    serve.start(http_options={"host": "127.0.0.1", "port": PORT}, proxy_location="HeadOnly")


@contextmanager
def deployed(path: Path, **changes: Any) -> Iterator[str]:
    """The address of a server over two replicas of a model."""
    from ray import serve

    from fewbit.cluster.app import build

    start_http()
    serve.run(build(args_of(path, **changes)), name="fewbit", route_prefix="/")
    wait_until(lambda: num_replicas() >= changes.get("replicas", 2))
    yield URL
    delete()


def delete() -> None:
    """End the application; the next one must not be reached by the routes of this one."""
    from ray import serve

    serve.delete("fewbit")
    wait_until(lambda: httpx.get(f"{URL}/stats", timeout=30).status_code == 404)


def wait_until(is_so: Callable[[], bool], seconds: float = 60) -> float:
    """How long it took."""
    begun = time.monotonic()
    while not is_so():
        assert time.monotonic() - begun < seconds, "it did not come to be"
        time.sleep(0.05)
    return time.monotonic() - begun


def stats() -> Mapping[str, Any]:
    """What the server tells of its one model."""
    found: Mapping[str, Any] = httpx.get(f"{URL}/stats", timeout=30).json()["models"][0]
    return found


def num_replicas() -> int:
    """Replicas that answer; none while Ray's proxy does not know the application yet."""
    answer = httpx.get(f"{URL}/stats", timeout=30)
    return len(answer.json()["models"][0].get("replicas", [])) if answer.status_code == 200 else 0


def actor_names(part: str) -> list[tuple[str, str]]:
    """Actors of the cluster by a part of their names: namespace and name."""
    from ray.util import list_named_actors

    return [(one["namespace"], one["name"]) for one in list_named_actors(all_namespaces=True) if part in one["name"]]


def kill_actor(part: str) -> None:
    """End the process of an actor at once."""
    import ray

    namespace, name = actor_names(part)[0]
    ray.kill(ray.get_actor(name, namespace=namespace))
