"""`/metrics`: counts and times as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from starlette.requests import Request
from starlette.responses import Response

from ..cache.disk import DiskStats
from ..cache.stats import DIVERGENCE_BUCKETS
from .pool import Pool

if TYPE_CHECKING:
    from ..llm import LLM

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0)
_BETWEEN = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_GAUGES = {
    "fewbit_requests_running": "Outputs in the batch now.",
    "fewbit_requests_waiting": "Requests that wait for room in the batch.",
    "fewbit_pages_total": "Pages of the KV cache.",
    "fewbit_pages_used": "Pages that running requests use.",
    "fewbit_pages_shared": "Pages that more than one running request uses.",
    "fewbit_pages_cached": "Pages kept for prompts to come.",
    "fewbit_pages_free": "Pages that hold nothing.",
    "fewbit_prefix_hit_rate": "Part of the full prompt pages that were found in the cache, since the start.",
}
_DIVERGENCE = "Tokens of a prompt up to the page in which it leaves the text in the cache that it begins like."
_COUNTERS = {
    "fewbit_steps": "Steps that were run.",
    "fewbit_generated_tokens": "Tokens that were generated.",
    "fewbit_computed_prompt_tokens": "Prompt tokens that were run; not those found in the cache.",
    "fewbit_preemptions": "Requests that released their pages for others.",
    "fewbit_prefix_lookups": "Full prompt pages that were looked for in the cache.",
    "fewbit_prefix_hits": "Full prompt pages that were found in the cache.",
    "fewbit_disk_pages_written": "Pages that were written to --cache-dir.",
    "fewbit_disk_pages_dropped": "Pages that were not kept in --cache-dir: too many waited, or it failed.",
    "fewbit_disk_errors": "Pages that could not be written to --cache-dir: it is gone, full or read-only.",
}


class Metrics:
    """What requests tell; what engines and caches count is read when somebody asks."""

    def __init__(self, pool: Pool) -> None:
        self.registry = CollectorRegistry()
        own = self.registry
        self.requests = Counter(
            "fewbit_http_requests", "Requests by path and status.", ["path", "status"], registry=own
        )
        self.finished = Counter("fewbit_outputs", "Outputs by why they ended.", ["model", "reason"], registry=own)
        self.prompt_tokens = Counter("fewbit_prompt_tokens", "Tokens of prompts.", ["model"], registry=own)
        self.batch = Histogram(
            "fewbit_batch_size", "Outputs in the batch when a request begins.", ["model"],
            buckets=(1, 2, 4, 8, 16, 32, 64, 128), registry=own,
        )  # fmt: skip
        self.first_token = Histogram(
            "fewbit_time_to_first_token_seconds", "From a request's arrival.", ["model"], buckets=_SECONDS, registry=own
        )
        self.between = Histogram(
            "fewbit_inter_token_seconds", "Between two tokens of an output.", ["model"], buckets=_BETWEEN, registry=own
        )
        self.cached_share = Histogram(
            "fewbit_prompt_cached_share", "Part of a prompt that was found in the cache.", ["model"], buckets=_SHARES,
            registry=own,
        )  # fmt: skip
        self.registry.register(_Engines(pool))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Engines:
    """Reads the counts of every loaded model."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        gauges = {name: GaugeMetricFamily(name, text, labels=["model"]) for name, text in _GAUGES.items()}
        counters = {name: CounterMetricFamily(name, text, labels=["model"]) for name, text in _COUNTERS.items()}
        divergence = HistogramMetricFamily("fewbit_prefix_divergence_tokens", _DIVERGENCE, labels=["model"])
        for model, llm in self._pool.loaded():
            values = read(llm)
            found = llm.engine.cache.stats().divergence
            names = (*(f"{float(bucket)}" for bucket in DIVERGENCE_BUCKETS), "+Inf")
            divergence.add_metric([model], [*zip(names, accumulate(found.counts), strict=True)], found.tokens)
            for name, gauge in gauges.items():
                gauge.add_metric([model], values[name])
            for name, counter in counters.items():
                counter.add_metric([model], values[name])
        yield from gauges.values()
        yield from counters.values()
        yield divergence


def read(llm: LLM) -> dict[str, float]:
    """The counts of a model, by their names in Prometheus."""
    engine, cache, disk = llm.engine.stats(), llm.engine.cache.stats(), disk_stats(llm)
    return {
        "fewbit_requests_running": engine.active,
        "fewbit_requests_waiting": engine.waiting,
        "fewbit_pages_total": cache.total,
        "fewbit_pages_used": cache.used,
        "fewbit_pages_shared": cache.shared,
        "fewbit_pages_cached": cache.cached,
        "fewbit_pages_free": cache.free,
        "fewbit_prefix_hit_rate": cache.hit_rate,
        "fewbit_steps": engine.steps,
        "fewbit_generated_tokens": engine.tokens,
        "fewbit_computed_prompt_tokens": engine.prompt_tokens,
        "fewbit_preemptions": engine.preemptions,
        "fewbit_prefix_lookups": cache.lookups,
        "fewbit_prefix_hits": cache.hits,
        "fewbit_disk_pages_written": disk.written,
        "fewbit_disk_pages_dropped": disk.dropped,
        "fewbit_disk_errors": disk.failed,
    }


def disk_stats(llm: LLM) -> DiskStats:
    """What happened in the folder of `--cache-dir`, if there is one."""
    disk = llm.engine.cache.disk
    return DiskStats() if disk is None else disk.stats()


async def metrics(request: Request) -> Response:
    found: Metrics = request.app.state.fewbit.metrics
    return Response(found.text(), headers={"Content-Type": CONTENT_TYPE})
