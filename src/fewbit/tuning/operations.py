"""The operations of a model in torch: what `ops/numpy.py` computes, with gradients. Sequences are whole.

`run` walks over nodes. There is a function for each operation that a model records, by its name: it takes the step, the
inputs and the attributes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from ..arrays import Longs
from ..errors import RequestError
from ..ops.graph import Node, Rope, Value
from ..ops.numpy import SWIGLU_LIMIT, SWIGLU_SLOPE
from ..ops.specs import AttentionParams, AttentionSpec, RecurrentSpec, Routing
from ..tensor import QuantTensor
from . import attention, recurrent
from .experts import route
from .packed import packed_linear

Term = Callable[[Any], Any]  # what an adapter adds to a product, from its inputs


@dataclass
class TorchStep:
    """Whole sequences behind each other, and what an adapter adds to products with some matrices, by their `id`."""

    tokens: Longs
    starts: Sequence[int]  # of each sequence, and the end of the last
    logits_indices: Any  # rows whose logits are needed
    terms: Mapping[int, Term] = field(default_factory=dict)
    threads: int | None = None
    kept: dict[int, tuple[Any, Any]] = field(default_factory=dict)  # K and V, by layer

    @property
    def sequences(self) -> list[slice]:
        return [slice(begin, end) for begin, end in pairwise(self.starts)]

    @property
    def positions(self) -> Longs:
        return np.concatenate([np.arange(end - begin) for begin, end in pairwise(self.starts)])


def refuse_unknown(nodes: Sequence[Node], architecture: str) -> None:
    """Refuse a model whose graph has operations without a gradient here."""
    unknown = sorted({node.operation for node in nodes} - set(FUNCTIONS))
    if unknown:
        raise RequestError(f"{architecture} models cannot be tuned: there are no gradients of {', '.join(unknown)}")


def run(nodes: Sequence[Node], result: Value, step: TorchStep, values: dict[Value, Any] | None = None) -> Any:
    """The value of `result`. `values` holds those that are known already."""
    known = dict(values or {})
    uses = Counter([result, *(value for node in nodes for value in node.inputs)])
    for node in nodes:
        inputs = [known[value] for value in node.inputs]
        (out,) = node.outputs
        known[out] = FUNCTIONS[node.operation](step, *inputs, **node.attributes)
        for value in node.inputs:  # what nobody reads again is only kept for gradients
            uses[value] -= 1
            if not uses[value]:
                known.pop(value, None)
    return known[result]


def constant(values: Any) -> Any:
    """An array of the model as a tensor."""
    return torch.from_numpy(np.array(values, np.float32))


def rows_of(table: QuantTensor, numbers: Any) -> Any:
    return torch.from_numpy(table[np.asarray(numbers)].dequantize())


def by_head(x: Any, heads: int) -> Any:
    """(rows, heads, values of a head)."""
    return x.reshape(len(x), heads, x.shape[1] // heads)


def embed(step: TorchStep, *, table: QuantTensor, scale: float) -> Any:
    return rows_of(table, step.tokens) * scale


def positions(step: TorchStep, *, table: QuantTensor) -> Any:
    return rows_of(table, step.positions)


def norm(step: TorchStep, x: Any, *, weight: Any, eps: float, heads: int = 1) -> Any:
    rows = by_head(x, heads)
    mean = rows.square().mean(2, keepdim=True)
    return (rows * torch.rsqrt(mean + eps) * constant(weight)).reshape(x.shape)


def layer_norm(step: TorchStep, x: Any, *, weight: Any, bias: Any, eps: float) -> Any:
    return functional.layer_norm(x, x.shape[1:], constant(weight), None if bias is None else constant(bias), eps)


def linear(step: TorchStep, x: Any, *, w: QuantTensor, bias: Any) -> Any:
    y = packed_linear(x, w, step.threads)
    if bias is not None:
        y = y + constant(bias)
    term = step.terms.get(id(w))
    return y if term is None else y + term(x)


def gate(step: TorchStep, gate: Any, up: Any, *, kind: str) -> Any:
    if kind == "swiglu_oai":
        limit = float(SWIGLU_LIMIT)
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit) + 1
        return gate * torch.sigmoid(SWIGLU_SLOPE * gate) * up
    return ACTIVATION_FUNCTIONS[kind](gate) * up


gate_rows = gate  # for functions with a parameter `gate`


def activate(step: TorchStep, x: Any, *, kind: str) -> Any:
    return ACTIVATION_FUNCTIONS[kind](x)


def scale(step: TorchStep, x: Any, *, by: float) -> Any:
    return x * by


def softcap(step: TorchStep, x: Any, *, cap: float) -> Any:
    return cap * torch.tanh(x / cap)


def shift(step: TorchStep, x: Any, *, by: Any) -> Any:
    return x + constant(by)


def columns(step: TorchStep, x: Any, *, start: int, width: int, heads: int) -> Any:
    return by_head(x, heads)[:, :, start : start + width].reshape(len(x), heads * width)


def join(step: TorchStep, a: Any, b: Any, *, heads: int, b_heads: int | None) -> Any:
    first, second = by_head(a, heads), by_head(b, b_heads or heads)
    return torch.cat([first, second.expand(-1, heads, -1)], 2).flatten(1)


def linear_heads(step: TorchStep, x: Any, *, w: QuantTensor) -> Any:
    rows = by_head(x, w.shape[0])
    return torch.cat([packed_linear(rows[:, head], w[head], step.threads) for head in range(w.shape[0])], 1)


def experts(
    step: TorchStep, x: Any, scores: Any, *, up: QuantTensor, down: QuantTensor, routing: Routing,
    gate: QuantTensor | None, kind: str, up_bias: Any, gate_bias: Any, down_bias: Any,
) -> Any:  # fmt: skip
    chosen, weights = route(scores, routing)
    out = torch.zeros_like(x)
    for expert in torch.unique(chosen).tolist():
        rows, place = (chosen == expert).nonzero(as_tuple=True)

        def times(w: QuantTensor, bias: Any, x: Any, expert: int = expert) -> Any:
            y = packed_linear(x, w[expert], step.threads)
            return y if bias is None else y + constant(bias[expert])

        h = times(up, up_bias, x[rows])
        if gate is None:
            h = activate(step, h, kind=kind)
        else:
            h = gate_rows(step, times(gate, gate_bias, x[rows]), h, kind=kind)
        out = out.index_add(0, rows, weights[rows, place][:, None] * times(down, down_bias, h))
    return out


def conv(
    step: TorchStep, x: Any, *, layer: int, weight: Any, bias: Any, kind: str, spec: RecurrentSpec, offset: int
) -> Any:  # fmt: skip
    taps, added = constant(weight), None if bias is None else constant(bias)
    out = torch.cat([recurrent.conv(x[rows], taps, added) for rows in step.sequences])
    return out if kind == "none" else activate(step, out, kind=kind)


def delta_rule(
    step: TorchStep, q: Any, k: Any, v: Any, a: Any, b: Any, *, layer: int, heads: int, v_heads: int, decay: Any,
    dt_bias: Any, scale: float, tiled: bool, spec: RecurrentSpec, offset: int,
) -> Any:  # fmt: skip
    inputs = by_head(q, heads), by_head(k, heads), by_head(v, v_heads), a, b
    rest: dict[str, Any] = {"decay": constant(decay), "dt_bias": constant(dt_bias), "scale": scale, "tiled": tiled}
    parts = [recurrent.delta_rule(*(x[rows] for x in inputs), **rest) for rows in step.sequences]
    return torch.cat(parts).reshape(v.shape)


def scan(
    step: TorchStep, x: Any, dt: Any, b: Any, c: Any, *, layer: int, heads: int, groups: int, decay: Any, skip: Any,
    dt_bias: Any, spec: RecurrentSpec, offset: int,
) -> Any:  # fmt: skip
    inputs = by_head(x, heads), dt, by_head(b, groups), by_head(c, groups)
    rest = {"decay": constant(decay), "skip": constant(skip), "dt_bias": constant(dt_bias)}
    parts = [recurrent.scan(*(x[rows] for x in inputs), **rest) for rows in step.sequences]
    return torch.cat(parts).reshape(x.shape)


def add(step: TorchStep, a: Any, b: Any) -> Any:
    return a + b


def rope(step: TorchStep, x: Any, *, heads: int, rope: Rope) -> Any:
    pairs = len(rope.inv_freq)
    angles = step.positions[:, None, None] * rope.inv_freq.astype(np.float64)
    cos, sin = (constant(rope.scale * f(angles)) for f in (np.cos, np.sin))
    rows = by_head(x, heads)
    turned, rest = rows[..., : 2 * pairs], rows[..., 2 * pairs :]
    a, b = turned.chunk(2, -1) if rope.neox else (turned[..., ::2], turned[..., 1::2])
    new = a * cos - b * sin, a * sin + b * cos
    joined = torch.cat(new, -1) if rope.neox else torch.stack(new, -1).flatten(-2)
    return torch.cat([joined, rest], -1).reshape(x.shape)


def attend(
    step: TorchStep, q: Any, k: Any, v: Any, *, layer: int, spec: AttentionSpec, keep: bool, **params: Any
) -> Any:
    if keep:
        step.kept[layer] = k, v
    keys, values = step.kept[layer]
    scores = AttentionParams(window=spec.window, chunked=spec.chunked, **params)
    queries, heads = q.reshape(len(q), -1, spec.k_dim), keys.reshape(len(q), -1, spec.k_dim)
    rows_of_v = values.reshape(len(q), -1, spec.v_dim)
    parts = [attention.attend(queries[s], heads[s], rows_of_v[s], scores) for s in step.sequences]
    return torch.cat(parts).flatten(1)


def gather(step: TorchStep, x: Any) -> Any:
    return x[step.logits_indices]


ACTIVATION_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
    "sigmoid": torch.sigmoid,
    "none": lambda x: x,
}

FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        embed, positions, norm, layer_norm, linear, linear_heads, gate, activate, scale, softcap, shift, columns, join,
        add, experts, conv, delta_rule, scan, rope, attend, gather,
    )
}  # fmt: skip
