"""The operations that a model is written in, and the graph that is recorded of them.

A model's `forward` is called once, with a `Recorder`. Each call of an operation becomes a `Node`, and gives a `Value`:
the rows that a step will hold there, one for each token. Passes (`ops/passes.py`) rewrite the graph, and devices
execute it.

To add an operation, write it as a method of `Recorder`: its body checks the shapes and returns the width of the
result. Parameters annotated `Value` are its inputs, all others its attributes. Then give it a function in
`ops/numpy.py`, the reference, and a builder in `ops/cpu/plan.py`.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from ..arrays import Floats
from ..errors import ArgumentError, DtypeError, ShapeError
from ..tensor import QuantTensor
from .specs import AttentionSpec, LayerSpec

GATES = ("silu", "gelu", "gelu_tanh", "relu")

P = ParamSpec("P")


@dataclass(frozen=True, eq=False, slots=True)
class Rope:
    """Rotary positions: pair i of a head is rotated by position * inv_freq[i]; cosines and sines are scaled."""

    inv_freq: Floats
    scale: float = 1.0
    neox: bool = False  # pairs lie in the two halves of what is rotated, else side by side


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """Rows of a width, one for each token of a step; `a + b` adds two of them."""

    recorder: Recorder = field(repr=False)
    width: int
    logits_only: bool = False  # rows of the tokens whose logits are wanted, no others

    def __add__(self, other: Value) -> Value:
        return self.recorder.add(self, other)


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One operation of a graph."""

    operation: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True, eq=False, slots=True)
class Graph:
    """What a step does: nodes in an order in which they can run, and the value that is its result."""

    nodes: tuple[Node, ...]
    result: Value
    specs: tuple[LayerSpec, ...]  # what each layer keeps of a sequence

    def uses(self) -> Counter[Value]:
        """How often each value is read; the result is read once more, at the end."""
        return Counter([self.result, *(value for node in self.nodes for value in node.inputs)])

    def makers(self) -> dict[Value, Node]:
        """The node that makes each value."""
        return {value: node for node in self.nodes for value in node.outputs}


@dataclass(frozen=True, slots=True)
class Operation:
    """An entry of the table. `all_rows`: it looks at other tokens or at positions, so it runs on all tokens' rows."""

    name: str
    inputs: tuple[str, ...]
    attributes: tuple[str, ...]
    all_rows: bool = False


# Those of `Recorder` join when it is defined; these three are made by passes only.
OPERATIONS: dict[str, Operation] = {
    "gather": Operation("gather", ("x",), ()),
    "linears": Operation("linears", ("x", "residual"), ("terms", "norm")),
    "gated": Operation("gated", ("x",), ("gate", "up", "kind", "norm")),
}


def operation(
    *, all_rows: bool = False
) -> Callable[[Callable[Concatenate[Recorder, P], int]], Callable[Concatenate[Recorder, P], Value]]:
    """Enter a shape rule into the table, and make of it the method that records a node."""

    def register(rule: Callable[Concatenate[Recorder, P], int]) -> Callable[Concatenate[Recorder, P], Value]:
        signature, name = inspect.signature(rule), rule.__name__
        kinds = {p.name: p.annotation for p in list(signature.parameters.values())[1:]}
        inputs = tuple(key for key, kind in kinds.items() if kind == "Value")
        attributes = tuple(key for key in kinds if key not in inputs)
        OPERATIONS[name] = Operation(name, inputs, attributes, all_rows)

        @wraps(rule)
        def record_node(self: Recorder, /, *args: P.args, **kwargs: P.kwargs) -> Value:
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            values = tuple(self.own(bound.arguments[key], f"{name}: {key}") for key in inputs)
            out = Value(self, rule(self, *args, **kwargs))
            self.nodes.append(Node(name, values, (out,), {key: bound.arguments[key] for key in attributes}))
            return out

        return record_node

    return register


def expect(holds: bool, message: str) -> None:
    if not holds:
        raise ShapeError(message)


class Recorder:
    """Writes down what a model does with the rows of a step."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.specs: dict[int, LayerSpec] = {}

    def own(self, value: object, what: str) -> Value:
        """The value, if it was recorded here."""
        if not isinstance(value, Value) or value.recorder is not self:
            kind = "rows of another step" if isinstance(value, Value) else type(value).__name__
            raise DtypeError(f"{what} must be rows of this step, not {kind}")
        return value

    def keep(self, layer: int, spec: LayerSpec) -> None:
        """Note what a layer keeps of a sequence, for operations that keep something."""
        expect(layer >= 0 and layer not in self.specs, f"layer {layer} cannot keep {spec}: one layer, one operation")
        self.specs[layer] = spec

    @operation(all_rows=True)
    def embed(self, table: QuantTensor, scale: float = 1.0) -> int:
        """The row of the table for each token, times scale."""
        expect(len(table.shape) == 2 and table.shape[0] > 0, f"embed: the table must be a matrix, it is {table.shape}")
        return table.shape[1]

    @operation()
    def norm(self, x: Value, weight: Floats, eps: float) -> int:
        """x / sqrt(mean(x ** 2) + eps) * weight."""
        expect(weight.shape == (x.width,), f"norm: a weight of {weight.shape} does not fit rows of {x.width} values")
        return x.width

    @operation()
    def linear(self, x: Value, w: QuantTensor, bias: Floats | None = None) -> int:
        """x @ w.T + bias."""
        expect(len(w.shape) == 2, f"linear: w must be a matrix, its shape is {w.shape}")
        n, k = w.shape
        expect(x.width == k, f"linear: rows of {x.width} values do not fit a matrix of {n} x {k}")
        fits = bias is None or bias.shape == (n,)
        expect(fits, f"linear: a bias of {getattr(bias, 'shape', None)} does not fit a matrix of {n} x {k}")
        return n

    @operation()
    def gate(self, gate: Value, up: Value, kind: str = "silu") -> int:
        """kind(gate) * up; kind is one of GATES."""
        expect(gate.width == up.width, f"gate: rows of {gate.width} values cannot gate rows of {up.width}")
        if kind not in GATES:
            raise ArgumentError(f"gate: there is no {kind!r}; there are: {', '.join(GATES)}")
        return gate.width

    @operation()
    def add(self, a: Value, b: Value) -> int:
        """a + b."""
        expect(a.width == b.width, f"add: rows of {a.width} values cannot be added to rows of {b.width}")
        return a.width

    @operation(all_rows=True)
    def rope(self, x: Value, heads: int, rope: Rope) -> int:
        """Heads rotated by their tokens' positions."""
        expect(heads >= 1 and x.width % heads == 0, f"rope: rows of {x.width} values are not {heads} heads")
        dim, rotary_dim = x.width // heads, 2 * len(rope.inv_freq)
        expect(rotary_dim <= dim, f"rope: {rotary_dim} values of a head are to be rotated, it has {dim}")
        return x.width

    @operation(all_rows=True)
    def attend(
        self,
        layer: int,
        q: Value,
        k: Value,
        v: Value,
        *,
        spec: AttentionSpec,
        scale: float,
        softcap: float = 0.0,
        sinks: Floats | None = None,
    ) -> int:
        """Keep k and v in the cache of a layer, and attend to what it holds of each sequence."""
        for name, x, dim in (("k", k, spec.k_dim), ("v", v, spec.v_dim)):
            heads = f"{spec.kv_heads} heads of {dim}"
            expect(x.width == spec.kv_heads * dim, f"attend: {name} has rows of {x.width} values, not {heads}")
        q_heads = q.width // spec.k_dim
        expect(q.width == q_heads * spec.k_dim, f"attend: q has rows of {q.width} values, not heads of {spec.k_dim}")
        fits = q_heads > 0 and q_heads % spec.kv_heads == 0
        expect(fits, f"attend: {q_heads} heads of q cannot share {spec.kv_heads} heads of K and V evenly")
        expect(sinks is None or sinks.shape == (q_heads,), f"attend: there must be a sink for each of {q_heads} heads")
        self.keep(layer, spec)
        return q_heads * spec.v_dim


Ops = Recorder  # what models are annotated with


def record(forward: Callable[[Ops], Value]) -> Graph:
    """The graph of a model's step; its result is what `forward` returns."""
    recorder = Recorder()
    result = recorder.own(forward(recorder), "the result of forward")
    specs = tuple(recorder.specs.get(layer) for layer in range(max(recorder.specs, default=-1) + 1))
    return Graph(tuple(recorder.nodes), result, specs)
