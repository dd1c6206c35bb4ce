"""The operations that a model is written in.

To add an operation, write it as a method of `Recorder`: its body checks the shapes and returns the width of the
result. Parameters annotated `Value` are its inputs, all others its attributes. Then give it a function in
`ops/numpy.py`, the reference, and a builder in `ops/cpu/plan.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from ..arrays import Floats
from ..errors import ArgumentError, DtypeError
from ..tensor import QuantTensor
from .graph import OPERATIONS, Graph, Node, Operation, Rope, Value
from .shape_rules import ACTIVATIONS, GATES, check_experts, expect, head_dim
from .specs import AttentionSpec, LayerSpec, RecurrentSpec, Routing

MAX_PARTS = 64  # of rows that are inserted

P = ParamSpec("P")


def operation(
    *, all_rows: bool = False
) -> Callable[[Callable[Concatenate[Recorder, P], int]], Callable[Concatenate[Recorder, P], Value]]:
    """Register a shape rule, and turn it into the method that records a node."""

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


class Recorder:
    """Records the operations of a model on the rows of a step."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.specs: dict[int, LayerSpec] = {}
        self.parts: dict[int, list[tuple[int, int]]] = {}  # bytes of recurrent states, by layer

    def own(self, value: object, what: str) -> Value:
        """The value, if it was recorded here."""
        if not isinstance(value, Value) or value.recorder is not self:
            kind = "rows of another step" if isinstance(value, Value) else type(value).__name__
            raise DtypeError(f"{what} must be rows of this step, not {kind}")
        return value

    def keep(self, layer: int, spec: LayerSpec) -> None:
        """Declare what a layer keeps of each sequence."""
        expect(layer >= 0 and layer not in self.specs, f"layer {layer} cannot keep {spec}: one layer, one operation")
        self.specs[layer] = spec

    def keep_part(self, layer: int, spec: RecurrentSpec, offset: int, nbytes: int, what: str) -> None:
        """Declare the part of a recurrent layer's state that an operation uses. Several may share the layer."""
        fits = offset >= 0 and offset % 4 == 0 and offset + nbytes <= spec.nbytes
        expect(fits, f"{what}: {nbytes} bytes from {offset} on do not fit a state of {spec.nbytes}")
        if self.specs.get(layer) != spec:
            self.keep(layer, spec)
        taken = self.parts.setdefault(layer, [])
        free = all(offset + nbytes <= begin or end <= offset for begin, end in taken)
        expect(free, f"{what}: bytes from {offset} on of layer {layer} belong to another operation")
        taken.append((offset, offset + nbytes))

    def given(self, width: int) -> Value:
        """Rows that come from outside, one for each token. Only one such value is in a graph."""
        expect(width > 0, f"given: rows need at least one value, not {width}")
        out = Value(self, width)
        self.nodes.append(Node("given", (), (out,), {}))
        return out

    @operation(all_rows=True)
    def embed(self, table: QuantTensor, scale: float = 1.0) -> int:
        """The row of the table for each token, times scale."""
        expect(len(table.shape) == 2 and table.shape[0] > 0, f"embed: the table must be a matrix, it is {table.shape}")
        return table.shape[1]

    @operation(all_rows=True)
    def insert(self, x: Value, part: int = 0, adds: bool = False) -> int:
        """x, with rows from outside in the place of those of some tokens, or added to them: those of a step's part."""
        expect(0 <= part < MAX_PARTS, f"insert: a part must be a number from 0 to {MAX_PARTS - 1}, it is {part}")
        return x.width

    @operation(all_rows=True)
    def positions(self, table: QuantTensor) -> int:
        """The row of the table for each token's position."""
        expect(len(table.shape) == 2, f"positions: the table must be a matrix, it is {table.shape}")
        return table.shape[1]

    @operation()
    def norm(self, x: Value, weight: Floats, eps: float, heads: int = 1) -> int:
        """x / sqrt(mean(x ** 2) + eps) * weight, for each head by itself."""
        dim = head_dim("norm", x, heads)
        expect(weight.shape == (dim,), f"norm: a weight of {weight.shape} does not fit rows of {dim} values")
        return x.width

    @operation()
    def layer_norm(self, x: Value, weight: Floats, bias: Floats | None, eps: float) -> int:
        """(x - mean(x)) / sqrt(variance(x) + eps) * weight + bias."""
        for what in (weight, bias):
            fits = what is None or what.shape == (x.width,)
            expect(fits, f"layer_norm: {getattr(what, 'shape', None)} does not fit rows of {x.width} values")
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
        """kind(gate) * up; kind is one of GATES. "none": gate * up. "swiglu_oai": see `ops/numpy.py`."""
        expect(gate.width == up.width, f"gate: rows of {gate.width} values cannot gate rows of {up.width}")
        if kind not in GATES:
            raise ArgumentError(f"gate: there is no {kind!r}; there are: {', '.join(GATES)}")
        return gate.width

    @operation()
    def add(self, a: Value, b: Value) -> int:
        """a + b."""
        expect(a.width == b.width, f"add: rows of {a.width} values cannot be added to rows of {b.width}")
        return a.width

    @operation()
    def activate(self, x: Value, kind: str) -> int:
        """kind(x); kind is one of ACTIVATIONS."""
        if kind not in ACTIVATIONS:
            raise ArgumentError(f"activate: there is no {kind!r}; there are: {', '.join(ACTIVATIONS)}")
        return x.width

    @operation()
    def scale(self, x: Value, by: float) -> int:
        """by * x."""
        return x.width

    @operation()
    def softcap(self, x: Value, cap: float) -> int:
        """cap * tanh(x / cap)."""
        expect(cap > 0, f"softcap: the cap must be positive, it is {cap}")
        return x.width

    @operation()
    def clamp(self, x: Value, low: float, high: float) -> int:
        """x, but at least low and at most high."""
        expect(low <= high, f"clamp: the least value must not exceed the largest, they are {low} and {high}")
        return x.width

    @operation()
    def shift(self, x: Value, by: Floats) -> int:
        """x + by, the same for every row."""
        expect(by.shape == (x.width,), f"shift: {by.shape} does not fit rows of {x.width} values")
        return x.width

    @operation()
    def columns(self, x: Value, start: int, width: int, heads: int = 1) -> int:
        """Columns `start` to `start + width` of each head."""
        dim = head_dim("columns", x, heads)
        fits = start >= 0 and 0 < width <= dim - start
        expect(fits, f"columns: {start} to {start + width} are not columns of heads of {dim} values")
        return heads * width

    @operation()
    def join(self, a: Value, b: Value, heads: int, b_heads: int | None = None) -> int:
        """Concatenate each head of a with that of b. If b has a single head, it follows each head of a."""
        own = heads if b_heads is None else b_heads
        expect(own in (1, heads), f"join: {own} heads cannot follow {heads} heads; 1 or {heads} can")
        return heads * (head_dim("join", a, heads) + head_dim("join", b, own))

    @operation()
    def linear_heads(self, x: Value, w: QuantTensor) -> int:
        """For each head h: x[h] @ w[h].T; w is (heads, n, k)."""
        expect(len(w.shape) == 3, f"linear_heads: w must be (heads, n, k), its shape is {w.shape}")
        heads, n, k = w.shape
        expect(x.width == heads * k, f"linear_heads: rows of {x.width} values are not {heads} heads of {k}")
        return heads * n

    @operation()
    def experts(
        self,
        x: Value,
        scores: Value,
        *,
        up: QuantTensor,
        down: QuantTensor,
        routing: Routing,
        gate: QuantTensor | None = None,
        kind: str = "silu",
        up_bias: Floats | None = None,
        gate_bias: Floats | None = None,
        down_bias: Floats | None = None,
    ) -> int:
        """The weighted sum of the chosen experts: down(kind(gate(x)) * up(x)), or down(kind(up(x))) without gate.

        Weights are (experts, rows, columns), biases (experts, rows); `scores` has a column for each expert.
        """
        check_experts(x, scores, up, down, gate, routing, (up_bias, gate_bias, down_bias), kind)
        return x.width

    @operation(all_rows=True)
    def conv(
        self,
        x: Value,
        layer: int,
        weight: Floats,
        bias: Floats | None = None,
        kind: str = "none",
        *,
        spec: RecurrentSpec,
        offset: int = 0,
    ) -> int:
        """A causal convolution of each column over tokens, weight (columns, taps); the last tap is the token's own.

        The rows of the last `taps - 1` tokens are kept as floats from byte `offset` of the layer's state on.
        """
        columns, taps = weight.shape
        expect(columns == x.width, f"conv: {columns} columns do not fit rows of {x.width} values")
        expect(bias is None or bias.shape == (columns,), "conv: the bias does not fit")
        if kind not in ("none", "silu"):
            raise ArgumentError(f"conv: there is no {kind!r}; there are: none, silu")
        self.keep_part(layer, spec, offset, 4 * columns * (taps - 1), "conv")
        return x.width

    @operation(all_rows=True)
    def delta_rule(
        self,
        q: Value,
        k: Value,
        v: Value,
        a: Value,
        b: Value,
        layer: int,
        *,
        heads: int,
        v_heads: int,
        decay: Floats,
        dt_bias: Floats,
        scale: float,
        tiled: bool = False,
        spec: RecurrentSpec,
        offset: int = 0,
    ) -> int:
        """The gated delta rule. A head keeps a matrix S, (dim of k, dim of v), floats from byte `offset` on:

            S *= exp(decay * softplus(a + dt_bias));  S += outer(k, sigmoid(b) * (v - k @ S));  y = scale * q @ S

        `heads` heads of q and k serve `v_heads` of v, a and b: head h of v that of h // (v_heads / heads), `tiled` that
        of h % heads.
        """
        dim = head_dim("delta_rule", q, heads)
        v_dim = head_dim("delta_rule", v, v_heads)
        expect(k.width == q.width, f"delta_rule: q has rows of {q.width} values, k of {k.width}")
        expect(v_heads % heads == 0, f"delta_rule: {v_heads} heads of v cannot share {heads} of q and k evenly")
        fits = a.width == b.width == v_heads == len(decay) == len(dt_bias)
        expect(fits, f"delta_rule: a, b, decay and dt_bias must have a value for each of {v_heads} heads")
        self.keep_part(layer, spec, offset, 4 * v_heads * dim * v_dim, "delta_rule")
        return v.width

    @operation(all_rows=True)
    def scan(
        self,
        x: Value,
        dt: Value,
        b: Value,
        c: Value,
        layer: int,
        *,
        heads: int,
        groups: int,
        decay: Floats,
        skip: Floats,
        dt_bias: Floats,
        spec: RecurrentSpec,
        offset: int = 0,
    ) -> int:
        """A state-space scan. A head keeps a matrix H, (dim of b, dim of x), floats from byte `offset` on:

            t = softplus(dt + dt_bias);  H = exp(decay * t) * H + outer(b, t * x);  y = c @ H + skip * x

        Heads of x share the heads of b and c, which are `groups`, evenly.
        """
        dim = head_dim("scan", x, heads)
        state = head_dim("scan", b, groups)
        expect(c.width == b.width, f"scan: b has rows of {b.width} values, c of {c.width}")
        expect(heads % groups == 0, f"scan: {heads} heads cannot share {groups} of b and c evenly")
        fits = dt.width == heads == len(decay) == len(skip) == len(dt_bias)
        expect(fits, f"scan: dt, decay, skip and dt_bias must have a value for each of {heads} heads")
        self.keep_part(layer, spec, offset, 4 * heads * dim * state, "scan")
        return x.width

    @operation(all_rows=True)
    def rope(self, x: Value, heads: int, rope: Rope) -> int:
        """Rotary position embedding of each head."""
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
        causal: bool = True,
        radius: int = 0,
        keep: bool = True,
        spans: bool = False,
    ) -> int:
        """Store k and v in the cache of a layer, and attend over all tokens of each sequence.

        Args:
            layer: Number of the layer.
            q: Rows of queries.
            k: Rows of keys.
            v: Rows of values.
            spec: Heads, their sizes, and the window.
            scale: Factor of the scores.
            softcap: If not 0, a score s becomes softcap * tanh(s / softcap).
            sinks: For each query head a logit without a value.
            causal: False if a token also sees those after it, which must be in the same step.
            radius: If not causal, how many tokens away a token sees, on both sides; 0 for all.
            keep: False if k and v are there already: an earlier `attend` of this layer kept them.
            spans: Tokens that are part of a span see all of it. If not causal, they see nothing else.
        """
        for name, x, dim in (("k", k, spec.k_dim), ("v", v, spec.v_dim)):
            heads = f"{spec.kv_heads} heads of {dim}"
            expect(x.width == spec.kv_heads * dim, f"attend: {name} has rows of {x.width} values, not {heads}")
        q_heads = q.width // spec.k_dim
        expect(q.width == q_heads * spec.k_dim, f"attend: q has rows of {q.width} values, not heads of {spec.k_dim}")
        fits = q_heads > 0 and q_heads % spec.kv_heads == 0
        expect(fits, f"attend: {q_heads} heads of q cannot share {spec.kv_heads} heads of K and V evenly")
        expect(sinks is None or sinks.shape == (q_heads,), f"attend: there must be a sink for each of {q_heads} heads")
        if keep and (causal or self.specs.get(layer) != spec):  # what sees both ways is kept for one step only
            self.keep(layer, spec)
        expect(self.specs.get(layer) == spec, f"attend: layer {layer} does not keep {spec}")
        return q_heads * spec.v_dim


Ops = Recorder  # what models are annotated with


def record(forward: Callable[[Ops], Value], has_head: bool = True) -> Graph:
    """The graph of a model's step. Its result is what `forward` returns: logits, or hidden rows without a head."""
    recorder = Recorder()
    result = recorder.own(forward(recorder), "the result of forward")
    specs = tuple(recorder.specs.get(layer) for layer in range(max(recorder.specs, default=-1) + 1))
    return Graph(tuple(recorder.nodes), result, specs, has_head)
