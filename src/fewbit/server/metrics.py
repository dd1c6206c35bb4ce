"""`/metrics`: counts and times as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from starlette.requests import Request
from starlette.responses import Response

from ..cache.stats import DIVERGENCE_BUCKETS
from .backend import Counts
from .pool import Pool

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0)
_BETWEEN = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_GAUGES = {  # by their names in Prometheus: what they are, and which of the `Counts`
    "requests_running": ("Outputs in the batch now.", "active"),
    "requests_waiting": ("Requests that wait for room in the batch.", "waiting"),
    "queued_tokens": ("Tokens of prompts and outputs that are still to come, at most.", "queued_tokens"),
    "pages_total": ("Pages of the KV cache.", "pages_total"),
    "pages_used": ("Pages that running requests use.", "pages_used"),
    "pages_shared": ("Pages that more than one running request uses.", "pages_shared"),
    "pages_cached": ("Pages kept for prompts to come.", "pages_cached"),
    "pages_free": ("Pages that hold nothing.", "pages_free"),
    "prefix_hit_rate": ("Part of the full prompt pages that were found in the cache, since the start.", "hit_rate"),
}
_DIVERGENCE = "Tokens of a prompt up to the page in which it leaves the text in the cache that it begins like."
_COUNTERS = {
    "steps": ("Steps that were run.", "steps"),
    "generated_tokens": ("Tokens that were generated.", "tokens"),
    "draft_tokens": ("Tokens that were guessed and verified.", "draft_tokens"),
    "accepted_tokens": ("Guessed tokens that were right.", "accepted_tokens"),
    "computed_prompt_tokens": ("Prompt tokens that were run; not those found in the cache.", "prompt_tokens"),
    "preemptions": ("Requests that released their pages for others.", "preemptions"),
    "images_encoded": ("Images that an encoder was run for.", "images_encoded"),
    "images_reused": ("Images of prompts whose rows were kept from before.", "images_reused"),
    "prefix_lookups": ("Full prompt pages that were looked for in the cache.", "lookups"),
    "prefix_hits": ("Full prompt pages that were found in the cache.", "hits"),
    "disk_pages_written": ("Pages that were written to --cache-dir.", "disk_written"),
    "disk_pages_dropped": ("Pages that were not kept in --cache-dir: too many waited, or it failed.", "disk_dropped"),
    "disk_errors": ("Pages that could not be written to --cache-dir: it is gone, full or read-only.", "disk_failed"),
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
        self._engines = _Engines(pool)
        own.register(self._engines)

    async def text(self) -> bytes:
        await self._engines.read()
        return generate_latest(self.registry)


class _Engines:
    """The counts of every loaded model, as they were read last: the sums, and those of each replica that has a name."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._found: dict[str, Mapping[str, Counts]] = {}

    async def read(self) -> None:
        self._found = {model: await backend.counts() for model, backend in self._pool.loaded()}

    def collect(self) -> Iterator[Metric]:
        whole: dict[tuple[str, ...], Counts] = {
            (model,): sum(found.values(), Counts()) for model, found in self._found.items()
        }
        yield from _families("fewbit_", ["model"], whole)
        divergence = HistogramMetricFamily("fewbit_prefix_divergence_tokens", _DIVERGENCE, labels=["model"])
        names = (*(f"{float(bucket)}" for bucket in DIVERGENCE_BUCKETS), "+Inf")
        for labels, counts in whole.items():
            buckets = zip(names, accumulate(counts.divergence.counts), strict=True)
            divergence.add_metric(labels, [*buckets], counts.divergence.tokens)
        yield divergence
        parts: dict[tuple[str, ...], Counts] = {
            (model, replica): counts
            for model, found in self._found.items()
            for replica, counts in found.items()
            if replica
        }
        if parts:
            yield from _families("fewbit_replica_", ["model", "replica"], parts)


def _families(prefix: str, labels: list[str], found: dict[tuple[str, ...], Counts]) -> Iterator[Metric]:
    for kind, texts in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
        for name, (text, field) in texts.items():
            family = kind(prefix + name, text, labels=labels)
            for values, counts in found.items():
                family.add_metric(values, getattr(counts, field))
            yield family


async def metrics(request: Request) -> Response:
    found: Metrics = request.app.state.fewbit.metrics
    return Response(await found.text(), headers={"Content-Type": CONTENT_TYPE})
