"""A Ray cluster of two nodes on this machine, reached by its loopback address only."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ..cli.tiny import write_tiny

os.environ.update(
    RAY_DISABLE_IMPORT_WARNING="1", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0", RAY_USAGE_STATS_ENABLED="0",
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",  # clusters on the loopback address, as on other systems
    RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S="1",
)  # fmt: skip


@contextmanager
def two_nodes() -> Iterator[Any]:
    """Two nodes of two CPUs, and this process connected to them."""
    import ray
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # the paths of sockets are short
    node = {"num_cpus": 2, "object_store_memory": 80 << 20, "node_ip_address": "127.0.0.1"}
    found = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False, "temp_dir": folder})
    found.add_node(**node)
    ray.init(address=found.address, log_to_driver=False, logging_level=logging.ERROR)
    yield found
    ray.shutdown()
    found.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    pytest.importorskip("ray")
    with two_nodes() as found:
        yield found


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf")
