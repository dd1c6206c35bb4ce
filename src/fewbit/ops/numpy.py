"""The operations in plain NumPy: slow, obvious, and what every device is compared with.

`run` walks a graph. There is a function for each operation, by its name: it takes the step, the inputs and the
attributes. Weights are decoded, everything is float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ..arrays import Doubles, Floats, Ints, Longs
from ..formats.decode import decode
from ..tensor import QuantTensor
from . import recurrent
from .collective import ThreadGroup
from .experts import route
from .graph import Graph, Rope, Value
from .inserts import Inserted
from .low_rank import AdapterRows, ProductKey, to_floats
from .specs import AttentionParams, AttentionSpec, RecurrentSpec, Routing


class Kept(Protocol):
    """The cache of a step's sequences: K and V, and recurrent states."""

    def append(self, layer: int, sequences: Sequence[int], k: Floats, v: Floats) -> None: ...

    def attend(self, layer: int, sequences: Sequence[int], q: Floats, params: AttentionParams) -> Floats: ...

    def states(self, layer: int, offset: int, shape: tuple[int, ...]) -> Iterator[tuple[slice, Floats]]:
        """The rows of each sequence and a part of its state, which is stored after it was changed."""
        ...


class DecodedWeights:
    """Matrices decoded by NumPy, each once."""

    def __init__(self) -> None:
        self._decoded: dict[int, tuple[QuantTensor, Floats]] = {}

    def __call__(self, w: QuantTensor) -> Floats:
        if id(w) not in self._decoded:
            self._decoded[id(w)] = w, decode(w.format, w.data.reshape(w.rows, -1), w.shape[-1]).reshape(w.shape)
        return self._decoded[id(w)][1]


@dataclass
class NumpyStep:
    """The inputs of a step: tokens, positions, rows whose logits are needed, and the KV cache."""

    tokens: Ints
    positions: Ints
    logits_indices: Ints
    cache: Kept
    sequences: Sequence[int]
    given: Floats | None = None  # rows that another device made, for a graph that begins with them
    weights: Callable[[QuantTensor], Floats] = field(default_factory=DecodedWeights)
    adapters: Sequence[AdapterRows] = ()  # whose `adapter` is a `Terms`
    inserted: Sequence[Inserted] = ()
    axes: Ints | None = None  # (axes, tokens) positions, for ropes that have axes
    spans: Longs | None = None  # of each token

    def own_spans(self) -> Longs:
        """The span of each token; one that is part of none is its own."""
        if self.spans is not None:
            return self.spans
        return np.stack([self.positions, self.positions + 1], axis=1).astype(np.int64)


def run(graph: Graph, step: NumpyStep) -> Floats:
    """The result of a graph."""
    values: dict[Value, Floats] = {}
    for node in graph.nodes:
        inputs = (values[value] for value in node.inputs)
        result = FUNCTIONS[node.operation](step, *inputs, **node.attributes)
        values.update(zip(node.outputs, result if isinstance(result, list) else [result], strict=True))
    return values[graph.result]


def embed(step: NumpyStep, *, table: QuantTensor, scale: float) -> Floats:
    return step.weights(table)[step.tokens] * np.float32(scale)


def given(step: NumpyStep) -> Floats:
    assert step.given is not None
    return step.given


def insert(step: NumpyStep, x: Floats, *, part: int, adds: bool) -> Floats:
    out = x.copy()
    for one in step.inserted:
        if one.part == part:
            out[one.tokens] = out[one.tokens] + one.rows if adds else one.rows
    return out


def by_head(x: Floats, heads: int) -> Floats:
    """(rows, heads, values of a head), for any number of rows."""
    return x.reshape(len(x), heads, x.shape[1] // heads)


def positions(step: NumpyStep, *, table: QuantTensor) -> Floats:
    return step.weights(table)[step.positions]


def norm(step: NumpyStep, x: Floats, *, weight: Floats, eps: float, heads: int = 1) -> Floats:
    rows = by_head(x, heads).astype(np.float64)
    mean = np.mean(rows**2, axis=2, keepdims=True)
    return np.asarray(rows / np.sqrt(mean + eps) * weight, np.float32).reshape(x.shape)


def layer_norm(step: NumpyStep, x: Floats, *, weight: Floats, bias: Floats | None, eps: float) -> Floats:
    centered = x.astype(np.float64) - np.mean(x, axis=1, keepdims=True, dtype=np.float64)
    out = centered / np.sqrt(np.mean(centered**2, axis=1, keepdims=True) + eps) * weight
    return np.asarray(out if bias is None else out + bias, np.float32)


def linear(step: NumpyStep, x: Floats, *, w: QuantTensor, bias: Floats | None) -> Floats:
    y = x @ step.weights(w).T
    return np.asarray(y if bias is None else y + bias, np.float32)


def gate(step: NumpyStep, gate: Floats, up: Floats, *, kind: str) -> Floats:
    if kind == "swiglu_oai":
        gate, up = np.minimum(gate, SWIGLU_LIMIT), np.clip(up, -SWIGLU_LIMIT, SWIGLU_LIMIT) + np.float32(1)
        return np.asarray(gate * _sigmoid(SWIGLU_SLOPE * gate.astype(np.float64)) * up, np.float32)
    return np.asarray(ACTIVATION_FUNCTIONS[kind](gate.astype(np.float64)) * up, np.float32)


gate_rows = gate  # for functions with a parameter `gate`


def activate(step: NumpyStep, x: Floats, *, kind: str) -> Floats:
    return np.asarray(ACTIVATION_FUNCTIONS[kind](x.astype(np.float64)), np.float32)


def scale(step: NumpyStep, x: Floats, *, by: float) -> Floats:
    return x * np.float32(by)


def softcap(step: NumpyStep, x: Floats, *, cap: float) -> Floats:
    return np.asarray(cap * np.tanh(x.astype(np.float64) / cap), np.float32)


def clamp(step: NumpyStep, x: Floats, *, low: float, high: float) -> Floats:
    return np.clip(x, np.float32(low), np.float32(high))


def shift(step: NumpyStep, x: Floats, *, by: Floats) -> Floats:
    return x + by


def columns(step: NumpyStep, x: Floats, *, start: int, width: int, heads: int) -> Floats:
    return by_head(x, heads)[:, :, start : start + width].reshape(len(x), heads * width)


def join(step: NumpyStep, a: Floats, b: Floats, *, heads: int, b_heads: int | None) -> Floats:
    first, second = by_head(a, heads), by_head(b, b_heads or heads)
    both = np.concatenate([first, np.broadcast_to(second, (*first.shape[:2], second.shape[2]))], axis=2)
    return both.reshape(len(a), both.shape[1] * both.shape[2])


def linear_heads(step: NumpyStep, x: Floats, *, w: QuantTensor) -> Floats:
    heads, n, _ = w.shape
    y = np.einsum("thk,hnk->thn", by_head(x, heads), step.weights(w))
    return np.asarray(y).reshape(len(x), heads * n)


def experts(
    step: NumpyStep,
    x: Floats,
    scores: Floats,
    *,
    up: QuantTensor,
    down: QuantTensor,
    routing: Routing,
    gate: QuantTensor | None,
    kind: str,
    up_bias: Floats | None,
    gate_bias: Floats | None,
    down_bias: Floats | None,
) -> Floats:
    chosen, weights = route(scores, routing)
    out = np.zeros(x.shape)
    for expert in np.unique(chosen).tolist():
        rows, place = np.nonzero(chosen == expert)

        def times(w: QuantTensor, bias: Floats | None, x: Floats, expert: int = expert) -> Floats:
            y = x @ step.weights(w)[expert].T
            return np.asarray(y if bias is None else y + bias[expert])

        h = times(up, up_bias, x[rows])
        if gate is None:
            h = activate(step, h, kind=kind)
        else:
            h = gate_rows(step, times(gate, gate_bias, x[rows]), h, kind=kind)
        out[rows] += weights[rows, place][:, None] * times(down, down_bias, h)
    return out.astype(np.float32)


def conv(
    step: NumpyStep, x: Floats, *, layer: int, weight: Floats, bias: Floats | None, kind: str, spec: RecurrentSpec,
    offset: int,
) -> Floats:  # fmt: skip
    out = np.empty(x.shape, np.float32)
    for rows, state in step.cache.states(layer, offset, (weight.shape[1] - 1, weight.shape[0])):
        out[rows] = recurrent.conv(x[rows], state, weight, bias)
    return out if kind == "none" else activate(step, out, kind=kind)


def delta_rule(
    step: NumpyStep, q: Floats, k: Floats, v: Floats, a: Floats, b: Floats, *, layer: int, heads: int, v_heads: int,
    spec: RecurrentSpec, offset: int, **rest: Any,
) -> Floats:  # fmt: skip
    queries, keys, values = (by_head(x, n) for x, n in ((q, heads), (k, heads), (v, v_heads)))
    out = np.empty(values.shape, np.float32)
    for rows, state in step.cache.states(layer, offset, (v_heads, queries.shape[2], values.shape[2])):
        parts = queries[rows], keys[rows], values[rows], a[rows], b[rows]
        out[rows] = recurrent.delta_rule(*parts, state, **rest)
    return out.reshape(v.shape)


def scan(
    step: NumpyStep, x: Floats, dt: Floats, b: Floats, c: Floats, *, layer: int, heads: int, groups: int,
    spec: RecurrentSpec, offset: int, **rest: Any,
) -> Floats:  # fmt: skip
    values, inputs, outputs = (by_head(y, n) for y, n in ((x, heads), (b, groups), (c, groups)))
    out = np.empty(values.shape, np.float32)
    for rows, state in step.cache.states(layer, offset, (heads, inputs.shape[2], values.shape[2])):
        out[rows] = recurrent.scan(values[rows], dt[rows], inputs[rows], outputs[rows], state, **rest)
    return out.reshape(x.shape)


def add(step: NumpyStep, a: Floats, b: Floats) -> Floats:
    return a + b


def rope(step: NumpyStep, x: Floats, *, heads: int, rope: Rope) -> Floats:
    pairs = len(rope.inv_freq)
    angles = _rope_positions(step, rope)[:, None] * rope.inv_freq.astype(np.float64)
    cos, sin = (np.float32(rope.scale) * f(angles).astype(np.float32) for f in (np.cos, np.sin))
    out = by_head(x, heads).copy()
    if rope.neox:
        first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    else:
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    a, b = out[..., first].copy(), out[..., second].copy()
    out[..., first] = a * cos - b * sin
    out[..., second] = a * sin + b * cos
    return out.reshape(x.shape)


def _rope_positions(step: NumpyStep, rope: Rope) -> Ints:
    """What each pair is rotated by: (tokens, pairs)."""
    pairs = len(rope.inv_freq)
    if rope.axes is None or step.axes is None:
        return np.repeat(step.positions[:, None], pairs, axis=1)
    return np.asarray(step.axes[list(rope.axes)].T)


def attend(
    step: NumpyStep, q: Floats, k: Floats, v: Floats, *, layer: int, spec: AttentionSpec, keep: bool, spans: bool,
    **params: Any,
) -> Floats:  # fmt: skip
    rows = len(q)
    queries, keys = (x.reshape(rows, -1, spec.k_dim) for x in (q, k))
    if keep:
        step.cache.append(layer, step.sequences, keys, v.reshape(rows, -1, spec.v_dim))
    own = step.own_spans() if spans else None
    scores = AttentionParams(window=spec.window, chunked=spec.chunked, spans=own, **params)
    return step.cache.attend(layer, step.sequences, queries, scores).reshape(rows, -1)


def gather(step: NumpyStep, x: Floats) -> Floats:
    return x[step.logits_indices]


def all_reduce(step: NumpyStep, x: Floats, *, group: ThreadGroup, rank: int) -> Floats:
    return group.all_reduce(rank, x)


def all_gather(step: NumpyStep, x: Floats, *, group: ThreadGroup, rank: int, bounds: Sequence[int]) -> Floats:
    return group.all_gather(rank, x)


def linears(
    step: NumpyStep,
    x: Floats,
    residual: Floats | None = None,
    *,
    terms: Sequence[tuple[QuantTensor, Floats | None]],
    norm: tuple[Floats, float] | None,
) -> list[Floats]:
    rows = _normed(step, x, norm)
    products = [linear(step, rows, w=w, bias=bias) for w, bias in terms]
    return products if residual is None else [residual + y for y in products]


def gated(
    step: NumpyStep, x: Floats, *, gate: QuantTensor, up: QuantTensor, kind: str, norm: tuple[Floats, float] | None
) -> Floats:
    (rows,) = linears(step, x, terms=[(gate, None)], norm=norm)
    (others,) = linears(step, x, terms=[(up, None)], norm=norm)
    return gate_rows(step, rows, others, kind=kind)


def low_rank(
    step: NumpyStep, x: Floats, *results: Floats, products: Sequence[ProductKey], logits_only: bool
) -> list[Floats]:
    """Adds to the results in place."""
    for key, y in zip(products, results, strict=True):
        for one in step.adapters:
            term = one.adapter.get(key)
            if term is None:
                continue
            rows, weights = (one.logits_rows, one.logits_weights) if logits_only else (one.rows, one.weights)
            t = x[rows] if term.a is None else x[rows] @ to_floats(term.a).T
            added = t if term.b is None else t @ to_floats(term.b).T
            y[rows] += np.float32(term.scale) * weights[:, None] * added
    return []


def low_rank_rows(step: NumpyStep, rows: Floats, *, product: ProductKey) -> list[Floats]:
    """Adds to rows of an embedding table in place."""
    for one in step.adapters:
        term = one.adapter.get(product)
        if term is not None:
            t = to_floats(term.a[step.tokens[one.rows]])
            added = t if term.b is None else t @ to_floats(term.b).T
            rows[one.rows] += np.float32(term.scale) * one.weights[:, None] * added
    return []


def _normed(step: NumpyStep, x: Floats, given: tuple[Floats, float] | None) -> Floats:
    return x if given is None else norm(step, x, weight=given[0], eps=given[1])


def _sigmoid(x: Doubles) -> Doubles:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, 1) / (1 + e))


_erf = np.vectorize(math.erf, otypes=[np.float64])

ACTIVATION_FUNCTIONS: dict[str, Callable[[Doubles], Doubles]] = {
    "silu": lambda x: x * _sigmoid(x),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x * _sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "sigmoid": _sigmoid,
    "none": lambda x: x,
}
SWIGLU_LIMIT, SWIGLU_SLOPE = np.float32(7), 1.702

FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        embed, positions, norm, layer_norm, linear, linear_heads, gate, activate, scale, softcap, clamp, shift, columns,
        join, add, insert, experts, conv, delta_rule, scan, rope, attend, given, gather, linears, gated,
        all_reduce, all_gather, low_rank, low_rank_rows,
    )
}  # fmt: skip
