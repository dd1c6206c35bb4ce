"""The configs in deploy/: read by Ray's own schema, and deployed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from fewbit.cluster.options import read_options

from .deployed import LOADING, URL, start_http, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]

FOLDER = Path(__file__).parents[2] / "deploy"


def configs() -> dict[str, Any]:
    plain = yaml.safe_load((FOLDER / "serve.yaml").read_text())
    service = yaml.safe_load((FOLDER / "rayservice.yaml").read_text())
    return {"serve": plain, "rayservice": yaml.safe_load(service["spec"]["serveConfigV2"])}


@pytest.mark.parametrize("name", ["serve", "rayservice"])
def test_the_config_is_one_of_serve(name: str) -> None:
    pytest.importorskip("ray")
    from ray._common.utils import import_attr
    from ray.serve.schema import ServeDeploySchema

    config = ServeDeploySchema.model_validate(configs()[name])
    (application,) = config.applications
    bound = import_attr(application.import_path)(application.args)
    assert bound._bound_deployment.name == "frontend"
    assert read_options(application.args).replicas == 2


def test_it_is_deployed_as_serve_deploy_does(cluster: Any, path: Path) -> None:
    from ray.serve.context import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    config = configs()["serve"]
    config["applications"][0]["args"] |= {
        "models": {"tiny": str(path)}, "replicas": 1, "max_replicas": 1, "cpus": 0.5, "loading": LOADING,
    }  # fmt: skip
    start_http()
    client = _get_global_client()
    client.deploy_apps(ServeDeploySchema.model_validate(config))
    try:

        def answers() -> bool:
            try:
                return httpx.get(f"{URL}/v1/models", timeout=5).status_code == 200
            except httpx.TransportError:
                return False

        wait_until(answers, 120)
        found = httpx.post(f"{URL}/v1/completions", json={"prompt": "a", "max_tokens": 3}, timeout=60)
        assert found.json()["usage"]["completion_tokens"] == 3
    finally:
        client.delete_apps(["fewbit"])
