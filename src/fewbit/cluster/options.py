"""What is deployed: models, replicas and the settings of the server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..errors import ArgumentError
from ..load_options import LoadOptions
from ..server.settings import Settings


@dataclass(frozen=True)
class ClusterOptions:
    """What `build` takes, from `serve.yaml` or the command line.

    Args:
        models: Models by the names that clients give: a path that each machine has, a URL, `hf:org/repo` or a built-in
            name.
        replicas: Number of replicas of each model; the least, with `max_replicas`.
        max_replicas: The most replicas, started when many tokens are queued. Defaults to `replicas`.
        tokens_per_replica: Queued tokens of a replica above which another one is started.
        cpus: CPUs that are reserved for a replica, and its threads unless `loading` names others.
        gpus: GPUs that are reserved for a replica; its device is a GPU then.
        frontends: Number of processes that answer HTTP. With more than one, responses that clients refer to by
            `previous_response_id` are known to one of them only.
        start_seconds: Time to load a model, also one that is fetched.
        loading: Options of `LLM`, by name.
        settings: Fields of the server's `Settings`, by name.
    """

    models: Mapping[str, str]
    replicas: int = 1
    max_replicas: int | None = None
    tokens_per_replica: float = 20_000.0
    cpus: float = 1.0
    gpus: float = 0.0
    frontends: int = 1
    start_seconds: float = 600.0
    loading: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.models:
            raise ArgumentError("models must name at least one model, such as {'tiny': 'tiny.gguf'}")
        most = self.replicas if self.max_replicas is None else self.max_replicas
        if not 1 <= self.replicas <= most:
            raise ArgumentError(f"replicas must be at least 1 and at most max_replicas, got {self.replicas} and {most}")
        _check_names(self.loading, LoadOptions, "loading")
        LoadOptions(**self.load_options)
        _ = self.server_settings

    @property
    def load_options(self) -> dict[str, Any]:
        """Options of `LLM` for each replica."""
        own: dict[str, Any] = {"device": "cuda"} if self.gpus else {"threads": max(1, int(self.cpus))}
        return own | dict(self.loading)

    @property
    def server_settings(self) -> Settings:
        given: dict[str, Any] = {
            name: tuple(one) if isinstance(one, list) else one for name, one in self.settings.items()
        }
        _check_names(given, Settings, "settings")
        return Settings(**given)

    @property
    def resources(self) -> dict[str, float]:
        """What Ray reserves for an engine."""
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}


def read_options(args: Mapping[str, Any]) -> ClusterOptions:
    """Options from `args` of a Serve config, checked.

    >>> read_options({"models": {"tiny": "tiny.gguf"}, "replicas": 2}).replicas
    2
    """
    _check_names(args, ClusterOptions, "args")
    if not isinstance(args.get("models"), Mapping):
        raise ArgumentError("args must have models by name, such as models: {tiny: /models/tiny.gguf}")
    return ClusterOptions(**args)


def deployment_name(model: str) -> str:
    """
    >>> deployment_name("org/model:q4")
    'model-org-model-q4'
    """
    return "model-" + re.sub(r"[^\w.-]", "-", model)


def _check_names(given: Mapping[str, Any], record: type, what: str) -> None:
    known = [one.name for one in fields(record)]
    for name in given:
        if name not in known:
            raise ArgumentError(f"{what} has an unknown name {name!r}; there are: {', '.join(known)}")
