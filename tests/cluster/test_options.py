from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fewbit.cluster.options import read_options
from fewbit.cluster.scaling import QUEUED_TOKENS, QueuedTokensPolicy
from fewbit.errors import FewbitError

MODELS = {"tiny": "tiny.gguf"}


def test_options_of_a_config() -> None:
    found = read_options({"models": MODELS, "replicas": 2, "cpus": 4, "loading": {"kv": "q8_0"},
                          "settings": {"max_queue": 8, "api_keys": ["a"]}})  # fmt: skip
    assert found.load_options == {"threads": 4, "kv": "q8_0"}
    assert found.server_settings.api_keys == ("a",)
    assert found.resources == {"CPU": 4}
    on_gpu = read_options({"models": MODELS, "gpus": 1})
    assert on_gpu.load_options == {"device": "cuda"}
    assert on_gpu.resources == {"CPU": 1.0, "GPU": 1}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "args must have models by name"),
        ({"models": {}}, "at least one model"),
        ({"models": "tiny.gguf"}, "args must have models by name"),
        ({"models": MODELS, "replica": 2}, "unknown name 'replica'; there are: models, replicas"),
        ({"models": MODELS, "replicas": 0}, "at least 1 and at most max_replicas, got 0 and 0"),
        ({"models": MODELS, "replicas": 3, "max_replicas": 2}, "got 3 and 2"),
        ({"models": MODELS, "settings": {"ports": 3}}, "settings has an unknown name 'ports'"),
        ({"models": MODELS, "loading": {"kv": "q9"}}, "q9"),
        ({"models": MODELS, "loading": {"kvs": 1}}, "loading has an unknown name 'kvs'"),
    ],
)
def test_wrong_options(args: dict[str, Any], message: str) -> None:
    with pytest.raises(FewbitError, match=message):
        read_options(args)


@pytest.mark.parametrize(("queued", "expected"), [([], 1), ([0, 0], 1), ([900], 1), ([1000], 1), ([900, 200], 2)])
def test_replicas_follow_queued_tokens(queued: list[float], expected: int) -> None:
    context = SimpleNamespace(aggregated_metrics={QUEUED_TOKENS: dict(enumerate(queued))})
    assert QueuedTokensPolicy(1000)(context) == (expected, {})
    assert QueuedTokensPolicy()(SimpleNamespace(aggregated_metrics=None)) == (1, {})
