"""`fewbit serve --replicas`: deploys the application, and takes it away again at the end."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import ceil
from typing import Any
from urllib.request import urlopen

import ray
from ray import serve

from ..errors import ArgumentError
from ..server.settings import Settings
from .app import application
from .options import ClusterOptions

APP = "fewbit"
ANSWER_SECONDS = 20.0  # for a proxy to begin


def serve_on_cluster(options: ClusterOptions, address: str | None, url: str, ready: Callable[[], object]) -> None:
    """Serve until SIGINT or SIGTERM comes.

    Args:
        options: What is deployed. With `cpus` 0, the CPUs that there are are shared out.
        address: Of a Ray cluster; None: one of this machine, for so long.
        url: Where clients reach the server.
        ready: Called when the first request can come.
    """
    with _signals() as ended, connected(address, options) as cpus:
        settings = options.server_settings
        serve.start(proxy_location="EveryNode", http_options=http_options(settings))
        deployed = options if options.cpus else replace(options, cpus=cpus_for_each(options, cpus))
        try:
            serve.run(application(deployed), name=APP, route_prefix="/")
            check_reachable(url, settings)
            ready()
            ended.wait()
        finally:
            serve.delete(APP)


@contextmanager
def connected(address: str | None, options: ClusterOptions) -> Iterator[float]:
    """A connection to a cluster; gives its number of CPUs."""
    quiet: dict[str, Any] = {"logging_level": logging.WARNING, "configure_logging": True}
    if address is None:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # this machine's loopback address only
        cores = len(os.sched_getaffinity(0))
        wanted = ceil(options.cpus * most_replicas(options) * len(options.models))
        ray.init("local", num_cpus=max(cores, wanted), include_dashboard=False, **quiet)
    else:
        try:
            ray.init(address, **quiet)
        except (ConnectionError, ValueError) as error:
            raise ArgumentError(f"there is no Ray cluster at {address}: {error}") from None
    try:
        yield float(ray.cluster_resources().get("CPU", 0))
    finally:
        if address is None:
            serve.shutdown()
        ray.shutdown()


def cpus_for_each(options: ClusterOptions, cpus: float) -> float:
    """The CPUs of a replica where nobody said how many: all of them, shared out.

    Args:
        options: Models and replicas.
        cpus: Of the cluster.
    """
    smallest = min(float(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"])
    share = min(cpus / (most_replicas(options) * len(options.models)), smallest)
    return float(int(share)) if share >= 1 else share


def most_replicas(options: ClusterOptions) -> int:
    return options.max_replicas or options.replicas


def http_options(settings: Settings) -> dict[str, Any]:
    """Where Serve's proxies listen."""
    found = {
        "host": settings.host, "port": settings.port, "keep_alive_timeout_s": int(settings.keep_alive_seconds)
    }  # fmt: skip
    if settings.tls_cert is None:
        return found
    return {**found, "ssl_certfile": settings.tls_cert, "ssl_keyfile": settings.tls_key}


def check_reachable(url: str, settings: Settings) -> None:
    """Refuse to go on where nothing answers. A Serve that runs already keeps its port."""
    if settings.tls_cert is not None:
        return
    end = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < end:
        with suppress(OSError), urlopen(f"{url}/health", timeout=5):
            return
        time.sleep(0.1)
    raise ArgumentError(
        f"nothing answers at {url}: Serve runs on this cluster already, with another host or port; give its own, or "
        "end it with `serve shutdown`"
    )


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """An event for SIGINT and SIGTERM. The second one ends the process."""
    ended = threading.Event()

    def end(number: int, frame: object) -> None:
        if ended.is_set():
            os._exit(1)
        ended.set()

    before = {one: signal.signal(one, end) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ended
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
