"""The operations in NumPy, beside what their formulas give."""

from __future__ import annotations

import cmath
import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.ops import cpu
from fewbit.ops import numpy as ops
from fewbit.ops.graph import Rope
from fewbit.ops.recorder import record
from fewbit.ops.specs import AttentionParams, AttentionSpec

from .steps import VOCAB, matrix, near, run_numpy, vector

ROWS = np.random.default_rng(3).standard_normal((4, 12), np.float32)


def step(**options: Any) -> ops.NumpyStep:
    """Four tokens, of which no cache is needed."""
    known: dict[str, Any] = {
        "tokens": np.array([2, 0, 1, 2], np.int32),
        "positions": np.array([5, 6, 0, 1], np.int32),
        "logits_indices": np.array([3, 1], np.int32),
        "cache": None,
        "sequences": [0, 1],
    }
    return ops.NumpyStep(**{**known, **options})


def test_embed_and_gather() -> None:
    table = matrix(3, 12)
    expected = table.dequantize()[[2, 0, 1, 2]]
    assert np.array_equal(ops.embed(step(), table=table, scale=2.0), 2 * expected)
    assert np.array_equal(ops.gather(step(), expected), expected[[3, 1]])


def test_norm() -> None:
    y = ops.norm(step(), ROWS, weight=vector(12), eps=0.25)
    for row, out in zip(ROWS.astype(float), y, strict=True):
        assert np.allclose(out, row * vector(12) / math.sqrt((row**2).mean() + 0.25))


def test_linear() -> None:
    w, bias = matrix(5, 12), vector(5)
    expected = ROWS @ w.dequantize().T
    assert np.allclose(ops.linear(step(), ROWS, w=w, bias=None), expected)
    assert np.allclose(ops.linear(step(), ROWS, w=w, bias=bias), expected + bias)


GATES = {
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: x / 2 * math.erfc(-x / math.sqrt(2)),
    "gelu_tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: max(x, 0.0),
}


@pytest.mark.parametrize("kind", GATES)
def test_gate(kind: str) -> None:
    expected = [[GATES[kind](float(x)) * 3 for x in row] for row in 4 * ROWS]
    assert near(ops.gate(step(), 4 * ROWS, np.full_like(ROWS, 3), kind=kind), np.array(expected), 1e-6)


@pytest.mark.parametrize("neox", [False, True], ids=["side by side", "neox"])
def test_rope_rotates_pairs(neox: bool) -> None:
    rope = Rope(np.array([1.0, 0.1], np.float32), scale=1.5, neox=neox)
    y = ops.rope(step(), ROWS, heads=2, rope=rope).reshape(4, 2, 6)
    pairs = [(0, 2), (1, 3)] if neox else [(0, 1), (2, 3)]
    for row, position in enumerate([5, 6, 0, 1]):
        for head in range(2):
            x = ROWS[row].reshape(2, 6)[head]
            for (a, b), frequency in zip(pairs, (1.0, 0.1), strict=True):
                rotated = 1.5 * complex(x[a], x[b]) * cmath.exp(1j * position * frequency)
                assert abs(complex(y[row, head, a], y[row, head, b]) - rotated) < 1e-5
            assert np.array_equal(y[row, head, 4:], x[4:])  # what is not rotated stays


class Heads:
    """A cache that remembers what it got, and gives values that name their heads."""

    def __init__(self) -> None:
        self.appended: list[Any] = []

    def append(self, *given: Any) -> None:
        self.appended.append(given)

    def attend(self, layer: int, sequences: Any, q: Any, params: AttentionParams) -> Any:
        self.asked = layer, sequences, q.shape, params
        return np.broadcast_to(np.arange(4, dtype=np.float32)[:, None], (len(q), 4, 5))


def test_attend_goes_to_the_cache() -> None:
    cache, spec = Heads(), AttentionSpec(2, 3, 5, window=7)
    k, v = np.ones((4, 6), np.float32), np.ones((4, 10), np.float32)
    logits: dict[str, Any] = {"scale": 0.5, "softcap": 2.0, "sinks": None, "causal": True, "radius": 0, "spans": False}
    y = ops.attend(step(cache=cache), ROWS, k, v, layer=1, spec=spec, keep=True, **logits)
    assert y[0].tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    ((layer, sequences, keys, values),) = cache.appended
    assert (layer, sequences, keys.shape, values.shape) == (1, [0, 1], (4, 2, 3), (4, 2, 5))
    assert cache.asked[:3] == (1, [0, 1], (4, 4, 3))
    assert asdict(cache.asked[3]) == {"window": 7, "chunked": False, **logits, "spans": None}


def test_weights_are_decoded_by_numpy_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    w = fb.repack(fb.quantize(ROWS @ np.ones((12, 64), np.float32), "q8_0"))
    expected = w.dequantize()
    monkeypatch.setattr(cpu, "decode", None)
    weights = ops.DecodedWeights()
    assert np.array_equal(weights(w), expected)
    assert weights(w) is weights(w)


def test_run() -> None:
    table, w = matrix(VOCAB, 16), matrix(16, 16)
    graph = record(lambda ops: (x := ops.embed(table)) + ops.linear(x, w))
    x = table.dequantize()[[4, 9]]
    assert near(run_numpy(graph, [4, 9], []), x + x @ w.dequantize().T)
