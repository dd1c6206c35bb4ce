"""A Ray cluster of two nodes on this machine, reached by its loopback address only."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ..cli.tiny import write_tiny

ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # no address but loopback
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@pytest.fixture(scope="session")
def cluster() -> Any:
    """Two nodes of two CPUs, and this process connected to them."""
    return start_cluster()


@cache
def start_cluster() -> Any:
    """The cluster of this process, until its end."""
    os.environ.update(ENVIRONMENT)
    ray: Any = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # the paths of sockets are short
    node = {"num_cpus": 2, "object_store_memory": 80 << 20, "node_ip_address": "127.0.0.1"}
    found = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False, "temp_dir": folder})
    found.add_node(**node)
    ray.init(address=found.address, log_to_driver=False, logging_level=logging.ERROR)
    atexit.register(_stop, ray, found, folder)
    return found


def _stop(ray: Any, cluster: Any, folder: str) -> None:
    ray.shutdown()
    cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf")
