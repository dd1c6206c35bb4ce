"""A router whose two best experts are as good as equal: f32 tells them apart, rounded rows or weights do not."""

from __future__ import annotations

from functools import cache

import numpy as np

import fewbit as fb
from fewbit import devices
from fewbit.arrays import Floats, Longs
from fewbit.cache.cache import Cache
from fewbit.cache.groups import pages_by_group
from fewbit.cache.layout import make_layout
from fewbit.devices.batch import Row
from fewbit.devices.forward import forward
from fewbit.load_options import LoadOptions
from fewbit.ops.graph import Graph, Value
from fewbit.ops.recorder import Ops, record
from fewbit.ops.specs import AttentionSpec, Routing

TOKENS, EXPERTS, K = 64, 8, 64
LEAST, MOST = 2e-5, 4e-4  # between the scores of the two best; f32 is off by some 1e-6
FORMATS = ["f32", "bf16", "q8_0"]
SPEC = AttentionSpec(kv_heads=1, k_dim=32, v_dim=32)


@cache
def tied_rows(format: str) -> tuple[Floats, fb.QuantTensor, Longs]:
    """Rows that nearly tie, the matrix of a router, and the expert of each row."""
    rng = np.random.default_rng(5)
    router = fb.quantize(rng.standard_normal((EXPERTS, K), np.float32) / np.float32(8), format)
    rows = rng.standard_normal((1 << 18, K), np.float32)
    scores = rows.astype(np.float64) @ router.dequantize().T
    best = np.sort(scores, axis=1)
    gaps = best[:, -1] - best[:, -2]
    chosen = np.flatnonzero((gaps > LEAST) & (gaps < MOST))[:TOKENS]
    assert len(chosen) == TOKENS
    return rows[chosen], router, scores[chosen].argmax(axis=1)


def tied_graph(format: str) -> Graph:
    """Its result has a large number in the column of the chosen expert, and small ones beside it."""
    rows, router, _ = tied_rows(format)
    ones = fb.quantize(np.ones((EXPERTS, 32, K), np.float32), "f32")
    columns = np.repeat(np.eye(EXPERTS, K, dtype=np.float32)[:, :, None], 32, axis=2)

    def routed(ops: Ops) -> Value:
        x = ops.embed(fb.quantize(rows, "f32"))
        ops.attend(0, *[ops.columns(x, 0, 32)] * 3, spec=SPEC, scale=1)
        return ops.experts(
            ops.scale(x, 0.0), ops.linear(x, router), up=ones, down=fb.quantize(columns, "f32"),
            routing=Routing(1, normalize=False), kind="relu", up_bias=np.ones((EXPERTS, 32), np.float32),
        )  # fmt: skip

    return record(routed)


def chosen_in(result: Floats) -> Longs:
    return np.asarray(result[:, :EXPERTS].argmax(axis=1))


def check_device(format: str, device: str, **options: object) -> None:
    """Choices of a device in steps of few tokens and of many."""
    graph, (_, _, expected) = tied_graph(format), tied_rows(format)
    made = devices.get(device, LoadOptions(device=device, max_batched_tokens=128, max_seqs=4, **options))  # type: ignore[arg-type]
    layout = make_layout(graph.specs, "f32")
    pages = pages_by_group(layout.groups, layout.page_tokens, tokens=512, max_seqs=4, step_tokens=128)
    cache = Cache(made.make_store(layout, pages))
    executor = made.make_executor(graph, cache.store, TOKENS)
    for tokens in (1, 7, 14, TOKENS):
        got = forward(executor, cache, [Row(cache.new(), [*range(tokens)], tokens)])
        np.testing.assert_array_equal(chosen_in(got), expected[:tokens])
