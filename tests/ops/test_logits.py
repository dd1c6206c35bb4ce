"""Logits in 8 bits with the largest in 16, beside all of them in 16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.devices.batch import Batch, Row, Sample, Score, lay_out
from fewbit.devices.cpu import max_candidates
from fewbit.ops import cpu
from fewbit.ops.cpu.plan import build
from fewbit.ops.passes import select_logits
from fewbit.ops.recorder import Ops, record
from fewbit.ops.sampling import SamplingParams

from .steps import Store

TOKENS = 6


def weights(n: int, k: int, format: str, seed: int) -> fb.QuantTensor:
    """Rows of very different norms, as vocabularies have them."""
    rng = np.random.default_rng((n, k, seed))
    rows = rng.standard_normal((n, k), np.float32) * rng.lognormal(0, 1, (n, 1)).astype(np.float32)
    return fb.quantize(rows, format)


class Head:
    """Tokens whose rows have a few large values, and logits of them."""

    def __init__(self, w: fb.QuantTensor, *, batch_invariant: bool = False, softcap: float = 0.0) -> None:
        k = w.shape[1]
        table = np.random.default_rng(k).standard_t(2, (TOKENS, k)).astype(np.float32)
        embeddings = fb.quantize(table, "f32")

        def forward(ops: Ops) -> Any:
            x = ops.norm(ops.embed(embeddings), np.ones(k, np.float32), 1e-5)
            logits = ops.linear(x, w)
            return ops.softcap(logits, softcap) if softcap else logits

        graph = select_logits(record(forward))
        self.width, self.plan = graph.result.width, build(graph, Store(graph, 1), batch_invariant=batch_invariant)

    def logits(self, tokens: list[int], tops: list[int] | None, threads: int = 1) -> Floats:
        count = len(tokens)
        out = np.full((count, self.width), np.nan, np.float32)
        self.plan.run(
            np.array(tokens, np.int32), [], np.ones(count, np.int64), np.arange(count + 1, dtype=np.int64),
            np.arange(count, dtype=np.int32), out, "int8", threads, None, None,
            None if tops is None else np.array(tops, np.int32),
        )  # fmt: skip
        return out


def alone(head: Head, tokens: list[int]) -> Floats:
    """All logits in 16 bits, of each token by itself."""
    return np.concatenate([head.logits([token], None) for token in tokens])


def check_largest(found: Floats, expected: Floats, tops: list[int]) -> None:
    for row, full, top in zip(found, expected, tops, strict=True):
        order = np.argsort(-full, kind="stable")[:top]
        assert np.argsort(-row, kind="stable")[: len(order)].tolist() == order.tolist()
        assert (row[order] == full[order]).all()  # bit for bit


@pytest.mark.parametrize("format", ["q4_0", "q8_0", "q4_k", "q6_k", "iq4_xs", "q5_1", "int8"])
@pytest.mark.parametrize("n", [15, 16, 1000, 3001])
def test_the_largest_logits_are_those_of_16_bits(isa: str, format: str, n: int) -> None:
    w = weights(n, 512, format, 1)
    for layout in (w, cpu.repack(w)):
        head = Head(layout)
        for tokens, tops in (([0], [1]), ([3], [40]), ([1, 2, 5], [1, 40, 7]), (list(range(6)), [5] * 6)):
            check_largest(head.logits(tokens, tops, 2), alone(head, tokens), tops)


@pytest.mark.parametrize("k", [32, 96, 288, 576, 640])
def test_ragged_rows(isa: str, k: int) -> None:
    head = Head(weights(777, k, "q8_0", 2), softcap=3.0)
    check_largest(head.logits([2, 4], [40, 1]), alone(head, [2, 4]), [40, 1])


def test_most_logits_stay_in_8_bits() -> None:
    """Otherwise nothing is gained."""
    head = Head(weights(20_000, 576, "q8_0", 3))
    full, found = head.logits([1], None), head.logits([1], [40])
    assert (full != found).mean() > 0.5


@pytest.mark.parametrize("tops", [[0], [1025], [20_000_000]])
def test_all_logits_are_in_16_bits_where_all_are_read(tops: list[int]) -> None:
    head = Head(weights(300, 256, "q4_k", 4))
    assert (head.logits([0], tops) == head.logits([0], None)).all()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_batch_invariant_bits(isa: str, threads: int) -> None:
    head = Head(weights(999, 512, "q4_k", 5), batch_invariant=True)
    together = head.logits([0, 1, 2, 3, 4], [40, 1, 40, 3, 40], threads)
    for row, (token, top) in enumerate(zip(range(5), [40, 1, 40, 3, 40], strict=True)):
        assert (head.logits([token], [top]) == together[row]).all()


def test_rows_with_nan_stay_so() -> None:
    w = weights(64, 256, "q8_0", 6)
    table = np.ones((TOKENS, 256), np.float32)
    table[1, 3] = np.nan
    embeddings = fb.QuantTensor.from_bytes(table.tobytes(), table.shape, "f32")
    graph = select_logits(record(lambda ops: ops.linear(ops.embed(embeddings), w)))
    out, rows, starts = np.zeros((2, 64), np.float32), np.arange(2, dtype=np.int32), np.arange(3, dtype=np.int64)
    tops = np.ones(2, np.int32)
    build(graph, Store(graph, 1)).run(rows, [], np.ones(2, np.int64), starts, rows, out, "int8", 1, None, None, tops)
    assert np.isfinite(out[0]).all()
    assert np.isnan(out[1]).any()


def test_tops_of_the_wrong_size_are_refused() -> None:
    with pytest.raises(ValueError, match="rows of tops"):
        Head(weights(64, 256, "q8_0", 7)).logits([0, 1], [1])


def batch(*rows: Row) -> Batch:
    return lay_out(rows, None)  # type: ignore[arg-type]


def test_how_many_logits_a_batch_reads() -> None:
    greedy, usual, free = SamplingParams(temperature=0), SamplingParams(top_k=7), SamplingParams(top_k=0)
    both = [
        Row(1, [0], 1, [Sample(greedy, 0.0)]),
        Row(1, (), samples=[Sample(usual, 0.5)]),
        Row(2, [1], 1, [Sample(usual, 0.0)]),
    ]
    counts = max_candidates(batch(*both))
    assert counts is not None
    assert counts.tolist() == [7, 7]
    ids = np.array([1], np.int32)
    for other in (
        Sample(free, 0.0),
        Sample(greedy, 0.0, seen=(ids, ids)),
        Sample(greedy, 0.0, bias=(ids, np.ones(1, np.float32))),
        Sample(greedy, 0.0, mask=np.ones(1, np.uint32)),
        Sample(greedy, 0.0, num_logprobs=0),
    ):
        assert max_candidates(batch(*both, Row(3, [1], 1, [other]))) is None
    assert max_candidates(batch(*both, Row(3, [1], 1, score=Score([1])))) is None
