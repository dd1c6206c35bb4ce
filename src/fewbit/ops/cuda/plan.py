"""Graphs to launches: a step is then a list of kernels, which can be captured once and replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from ...arrays import Floats
from ...tensor import QuantTensor
from ..graph import Graph, Node, Rope, Value
from ..low_rank import ProductKey, add_terms
from ..passes import fuse, logits_nodes
from ..placement import Placement
from ..specs import AttentionSpec, Routing
from . import attention, collective, experts, products, prompt_attention, recurrent, row_maths
from .adapters import GpuAdapters, Target
from .attention import Fragments, Int8Row, RopeTable, make_rope_table
from .fused import Fused
from .host_experts import Compute, HostExperts, experts_on_host
from .pages import DeviceStore
from .placement import allocate
from .products import Form
from .ranges import many_dtype
from .session import Session
from .shapes import MAX_SHARED
from .steps import StepLists
from .values import Collector, Launcher, Rows, StepInputs
from .weights import Weights

Launch = Callable[[Launcher, StepInputs], None]


@dataclass(frozen=True)
class Segment:
    """Kernels that are launched behind each other, or an operation in which the host takes part."""

    launches: tuple[Launch, ...]
    has_host: bool = False
    recorded: StepLists = field(default_factory=StepLists)

    def launch(self, run: Launcher, step: StepInputs) -> None:
        """All of them. Those of sizes that came before are launched by one call."""
        if self.has_host or isinstance(run, Collector):
            self._launch_each(run, step)
        else:
            self.recorded.launch(run, step, self._launch_each)

    def _launch_each(self, run: Launcher, step: StepInputs) -> None:
        for one in self.launches:
            one(run, step)


@dataclass(frozen=True)
class Plan:
    """The kernels of a step, in their order, and where its result is."""

    segments: tuple[Segment, ...]
    labels: tuple[str, ...]  # of the launches: what they are, for those who measure them
    result: Rows
    given: Rows | None  # rows that another device made, if it begins with them
    buffers: tuple[Any, ...]  # memory of the rows

    @property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(one for segment in self.segments for one in segment.launches)

    def launch(self, run: Launcher, step: StepInputs) -> None:
        """All kernels of a step."""
        for segment in self.segments:
            segment.launch(run, step)


@dataclass(frozen=True)
class PlanOptions:
    max_tokens: int  # of a step
    max_logits: int
    ctx: int  # tokens of the longest sequence
    int16: bool = False  # one token is taken in 16 bits, not in 8
    batch_invariant: bool = False
    precise: bool = False  # many rows are taken in f16 wherever the weights allow it
    host_experts: HostExperts = field(default_factory=HostExperts)


def build(
    graph: Graph, store: DeviceStore, weights: Weights, options: PlanOptions, adapters: GpuAdapters | None = None
) -> Plan:
    """The plan of a graph whose logits are selected; with what adapters add, if there are some."""
    fused = fuse(graph)
    if adapters is not None:
        fused = add_terms(fused, adapters.products, split=False)
    return Builder(fused, store, weights, options, adapters).build()


HOSTED = ("all_reduce", "all_gather")  # operations in which the host takes part

# Operations that one function launches. It takes the node's attributes, as they are on the GPU.
FUNCTIONS: dict[str, Callable[..., None]] = {
    **{
        name: getattr(row_maths, name)
        for name in (
            "embed", "positions", "norm", "layer_norm", "gate", "add", "activate", "scale", "softcap", "clamp", "shift",
            "columns", "join", "gather", "rope", "linear_heads", "insert",
        )
    },
    **{name: getattr(recurrent, name) for name in ("delta_rule", "scan")},
    **{name: getattr(collective, name) for name in HOSTED},
}  # fmt: skip


class Builder:
    """Has a method for each operation that is not in `FUNCTIONS`, by its name: it takes the node and its attributes."""

    def __init__(
        self,
        graph: Graph,
        store: DeviceStore,
        weights: Weights,
        options: PlanOptions,
        adapters: GpuAdapters | None = None,
    ) -> None:
        self.graph, self.store, self.weights, self.options = graph, store, weights, options
        self._adapters = adapters
        self.device: Session = weights.device
        self.uses, self.makers = graph.uses(), graph.makers()
        self.readers = _readers(graph)
        self.logits = logits_nodes(graph)[0].outputs[0]
        self.scores = experts.score_products(graph)
        self.ropes: dict[Rope, RopeTable] = {}
        self.rows: dict[Value, Rows] = {}
        self.formed: dict[Value, Form] = {}  # what attention wrote as the product after it takes it, in this launch

    def build(self) -> Plan:
        folded = {node for node in self.graph.nodes if self._is_folded(node)}
        nodes = [node for node in self.graph.nodes if node not in folded]
        buffers = self._place(nodes, folded)
        launches = [self._launch_of(node) for node in nodes]
        given = next((self.rows[node.outputs[0]] for node in nodes if node.operation == "given"), None)
        labels = tuple(f"{node.operation} {_counted(node).width}" for node in nodes)
        launches[0] = self._begin(launches[0])
        hosted = [node.operation in HOSTED or self._host_experts(node) is not None for node in nodes]
        return Plan(_segments(launches, hosted), labels, self.rows[self.graph.result], given, buffers)

    def _launch_of(self, node: Node) -> Launch:
        launch: Launch
        if node.operation in FUNCTIONS:
            launch = self._call(node, FUNCTIONS[node.operation], **self._sent(node))
        else:
            launch = getattr(self, node.operation)(node, **node.attributes)
        if not _counted(node).logits_only:
            return launch
        return lambda run, step: launch(run, step) if step.num_logits else None  # a piece of a prompt may want none

    def _begin(self, first: Launch) -> Launch:
        """The first launch of a step; a step that failed may have left something."""

        def launch(run: Launcher, step: StepInputs) -> None:
            self.formed.clear()
            for rope in self.ropes.values():
                attention.gather_turns(run, step, rope)
            first(run, step)

        return launch

    # Where rows lie

    def _is_folded(self, node: Node) -> bool:
        """Whether attention does this rotation itself: of q and k alike, which nobody else reads."""
        if node.operation != "rope" or self.uses[node.outputs[0]] != 1:
            return False
        reader = self.readers.get(node.outputs[0])
        return reader is not None and reader.operation == "attend" and self._rotation(reader) is not None

    def _rotation(self, node: Node) -> Rope | None:
        """What attention rotates q and k by."""
        q, k, _ = (self.makers[value] for value in node.inputs)
        needed = [q, k] if node.attributes["keep"] else [q]
        if any(maker.operation != "rope" or self.uses[maker.outputs[0]] != 1 for maker in needed):
            return None
        ropes = {maker.attributes["rope"] for maker in needed}
        return ropes.pop() if len(ropes) == 1 else None

    def _place(self, nodes: Sequence[Node], folded: set[Node]) -> tuple[Any, ...]:
        """Give every value its rows."""
        aliases = {node.outputs[0]: node.inputs[0] for node in folded}
        placement = Placement(self.graph, aliases)
        for node in nodes:
            parts = None
            if len(node.outputs) > 1:
                fused = self._fused(node, node.attributes["terms"])
                parts = fused.product_width, fused.offsets
            placement.add(node, parts)
        rows, buffers = allocate(placement, self.device, self._count)
        self.rows = rows
        return buffers

    def _count(self, value: Value) -> int:
        return self.options.max_logits if value.logits_only else self.options.max_tokens

    # Operations on rows

    def _call(self, node: Node, function: Callable[..., None], **attributes: Any) -> Launch:
        """One function launches the operation."""
        out, inputs, count = self.rows[node.outputs[0]], [self.rows[x] for x in node.inputs], _counter(node.outputs[0])

        def launch(run: Launcher, step: StepInputs) -> None:
            if tokens := count(step):
                function(run, step, out, *inputs, tokens=tokens, **attributes)

        return launch

    def _sent(self, node: Node) -> dict[str, Any]:
        """A node's attributes with what is on the GPU for them: arrays, tensors, tables, the states of its layer."""
        every = node.attributes
        states = {"states": self.store.states(every["layer"])} if "layer" in every else {}
        return {name: self._send(name, every[name]) for name in every.keys() - {"layer", "spec"}} | states

    def _send(self, name: str, value: Any) -> Any:
        if isinstance(value, np.ndarray) or name.endswith("bias"):
            return self.weights.floats(value)
        if isinstance(value, QuantTensor):
            return self.weights.tensor(value) if len(value.shape) == 2 else self.weights.stack(value)
        return self._rope(value) if isinstance(value, Rope) else value

    def given(self, node: Node) -> Launch:
        return lambda run, step: None

    # Products

    def linear(self, node: Node, *, w: QuantTensor, bias: Floats | None) -> Launch:
        return self.linears(node, terms=((w, bias),), norm=None)

    def linears(
        self,
        node: Node,
        *,
        terms: Sequence[tuple[QuantTensor, Floats | None]],
        norm: tuple[Floats, float] | None,
    ) -> Launch:
        fused, x = self._fused(node, terms), self.rows[node.inputs[0]]
        residual = self.rows[node.inputs[1]] if len(node.inputs) > 1 else None
        first = self.rows[node.outputs[0]]
        out = Rows(first.pointer - 4 * fused.offsets[0], fused.product_width, first.stride)
        return self._product(node, fused, x, out, norm, bias=fused.bias, residual=residual)

    def _fused(self, node: Node, terms: Sequence[tuple[QuantTensor, Floats | None]]) -> Fused:
        """The weights of `linears`. Scores of experts are made in f32: rounded ones would choose other experts."""
        return self.weights.fused(terms, [i for i, value in enumerate(node.outputs) if value in self.scores])

    def gated(
        self,
        node: Node,
        *,
        gate: QuantTensor,
        up: QuantTensor,
        kind: str,
        norm: tuple[Floats, float] | None,
        changes: tuple[ProductKey, ProductKey] | None = None,
    ) -> Launch:
        if changes is not None:
            return self._gated_with_terms(node, self.weights.gated(gate, up, kind), changes, norm)
        fused, x, out = self.weights.gated(gate, up, kind), self.rows[node.inputs[0]], self.rows[node.outputs[0]]
        if self.options.precise or not self._feeds_product(node.outputs[0]):
            return self._product(node, fused, x, out, norm)
        given = self._norm(norm)
        count, source, value = _counter(node.outputs[0]), node.inputs[0], node.outputs[0]
        many = self._many(node, fused)

        def launch(run: Launcher, step: StepInputs) -> None:
            tokens = count(step)
            form = self.formed.pop(source, None) or products.make_form(
                run, x, tokens, given, self.options.int16, many=many
            )
            made = products.multiply_gated(run, fused, form, tokens, out)
            if made is not None:
                self.formed[value] = made

        return launch

    def _many(self, node: Node, fused: Fused) -> str:
        return many_dtype(node, self.makers, fused, self.options.precise)

    def _gated_with_terms(
        self, node: Node, fused: Fused, keys: tuple[ProductKey, ProductKey], norm: tuple[Floats, float] | None
    ) -> Launch:
        """Adapters add to the products before the gate."""
        x, out, count = self.rows[node.inputs[0]], self.rows[node.outputs[0]], _counter(node.outputs[0])
        invariant, many = self.options.batch_invariant, self._many(node, fused)
        adapters, logits_only, given = self._adapters, node.outputs[0].logits_only, self._norm(norm)
        assert adapters is not None
        every = [(key, part) for part, key in enumerate(keys) if key in adapters.products]

        def launch(run: Launcher, step: StepInputs) -> None:
            tokens = count(step)
            form = products.make_form(run, x, tokens, given, self.options.int16, invariant=invariant, many=many)

            def add(rows: Rows, columns: int, apart: int) -> None:
                targets = [Target(rows.columns(part * apart, fused.width), key, columns) for key, part in every]
                adapters.add(run, step, x, targets, tokens, logits_only, given)

            products.multiply_then_gate(run, fused, form, tokens, out, add, invariant=invariant)

        return launch

    def low_rank(
        self,
        node: Node,
        *,
        products: Sequence[ProductKey],
        logits_only: bool,
        norm: tuple[Floats, float] | None = None,
    ) -> Launch:
        x, count, adapters = self.rows[node.inputs[0]], _counter(node.inputs[0]), self._adapters
        assert adapters is not None
        given = self._norm(norm)
        targets = [Target(self.rows[value], key) for value, key in zip(node.inputs[1:], products, strict=True)]
        return lambda run, step: adapters.add(run, step, x, targets, count(step), logits_only, given)

    def _norm(self, norm: tuple[Floats, float] | None) -> tuple[int, float] | None:
        """A norm with its weight on the GPU."""
        return None if norm is None else (self.weights.floats(norm[0]), norm[1])

    def low_rank_rows(self, node: Node, *, product: ProductKey) -> Launch:
        target, adapters, value = Target(self.rows[node.inputs[0]], product), self._adapters, node.inputs[0]
        assert adapters is not None
        tokens = self.makers[value].attributes["table"].shape[0]
        return lambda run, step: adapters.add_rows(run, step, target, step.num_tokens, tokens)

    def _product(
        self, node: Node, fused: Fused, x: Rows, out: Rows, norm: tuple[Floats, float] | None, **epilogue: Any
    ) -> Launch:
        given = self._norm(norm)
        count, source = _counter(node.outputs[0]), node.inputs[0]
        int16 = self.options.int16 or self.logits in node.outputs  # nothing after logits makes good what they lose
        invariant, exact = self.options.batch_invariant, all(t.is_exact for t in fused.tensors)
        many = self._many(node, fused)

        def launch(run: Launcher, step: StepInputs) -> None:
            tokens = count(step)
            form = self.formed.pop(source, None) or products.make_form(
                run, x, tokens, given, int16, invariant=invariant, exact=exact, many=many
            )
            products.multiply(run, fused, form, tokens, out, invariant=invariant, **epilogue)

        return launch

    def experts(self, node: Node, *, routing: Routing, **_others: Any) -> Launch:
        if (compute := self._host_experts(node)) is not None:
            return self._call(node, experts_on_host, rows=self.options.host_experts.rows, compute=compute)
        layer = experts.Layer(
            **self._sent(node),
            routing_bias=self.weights.floats(routing.bias),
            expert_scale=self.weights.floats(routing.expert_scale),
        )
        return self._call(node, experts.experts, layer=layer, batch_invariant=self.options.batch_invariant)

    def _host_experts(self, node: Node) -> Compute | None:
        """What computes experts on the CPU, if they stay there."""
        is_one = node.operation == "experts"
        return self.options.host_experts.layers.get(id(node.attributes["up"])) if is_one else None

    # What looks at other tokens

    def conv(self, node: Node, *, weight: Floats, **_others: Any) -> Launch:
        return self._call(node, recurrent.conv, taps=weight.shape[1], **self._sent(node))

    def _rope(self, rope: Rope) -> RopeTable:
        if rope not in self.ropes:
            self.ropes[rope] = make_rope_table(self.device, rope, self.options.ctx)
        return self.ropes[rope]

    def attend(
        self,
        node: Node,
        *,
        layer: int,
        spec: AttentionSpec,
        scale: float,
        softcap: float,
        sinks: Floats | None,
        causal: bool,
        radius: int,
        keep: bool,
        spans: bool,
    ) -> Launch:
        q, k, v = (self.rows[value] for value in node.inputs)
        out, pages = self.rows[node.outputs[0]], self.store.kv(layer)
        rotation, invariant = self._rotation(node), self.options.batch_invariant
        rope = self._rope(rotation) if rotation else None
        given: dict[str, Any] = {"scale": scale, "softcap": softcap, "sinks": self.weights.floats(sinks), "rope": rope}
        value, feeds = node.outputs[0], self._feeds_product(node.outputs[0])

        def launch(run: Launcher, step: StepInputs) -> None:
            has_spans = spans and step.max_span > 0
            is_few = step.max_q <= attention.FEW_TOKENS and step.num_tokens <= MAX_SHARED and not has_spans
            if (step.max_q == 1 and not has_spans) or ((invariant or is_few) and causal):
                target = self._decoded(run, value, step.num_tokens, spec.v_dim) if feeds else out
                attention.decode_attention(
                    run, step, pages, q, k, v, target, keep=keep, batch_invariant=invariant, **given
                )
                if has_spans:
                    prompt_attention.prompt_attention(run, step, pages, q, out, spans=True, spans_only=True, **given)
                return
            if keep:
                attention.write_rows(run, step, pages, k, v, rope=rope)
            if step.runs and causal and not has_spans:
                mixed(run, step)
                return
            target, dtype = self._attended(run, value, step.num_tokens) if feeds else (out, "f32")
            prompt_attention.prompt_attention(
                run, step, pages, q, target, causal=causal, radius=radius, dtype=dtype, spans=has_spans, **given
            )

        def mixed(run: Launcher, step: StepInputs) -> None:
            """Prompts and single tokens, each as they are fastest."""
            for one in step.runs:
                if one.is_prompt:
                    prompt_attention.prompt_attention(run, step, pages, q, out, sequences=one.sequences, **given)
                else:
                    attention.decode_attention(run, step, pages, q, k, v, out, keep=False, rows=one.rows, **given)

        return launch

    def _feeds_product(self, value: Value) -> bool:
        """Whether one product alone reads these rows, so that they can be written in the form that it takes."""
        reader = self.readers.get(value)
        if reader is None or self.uses[value] != 1 or self.options.batch_invariant:
            return False
        plain = reader.operation == "linears" and reader.attributes["norm"] is None
        return plain and self.logits not in reader.outputs and self.scores.isdisjoint(reader.outputs)

    def _decoded(self, run: Launcher, value: Value, tokens: int, dim: int) -> Rows | Int8Row | Fragments:
        """Where attention of single tokens writes: 8 bits, f16 fragments, or rows."""
        tensors = self.weights.fused(self.readers[value].attributes["terms"]).tensors
        is_whole = value.width % 128 == 0 and dim % 32 == 0
        if not all(t.tiles for t in tensors) or (tokens == 1 and (self.options.int16 or not is_whole)):
            return self.rows[value]
        form = products.empty_form(run, value.width, tokens)
        if form is None:
            return self.rows[value]
        self.formed[value] = form
        if form.kind == "bytes":
            return Int8Row(form.pointer, form.scales)
        return Fragments(form.pointer, form.tiles, form.kind == "panels")

    def _attended(self, run: Launcher, value: Value, tokens: int) -> tuple[Rows, str]:
        """Where attention of prompts writes: f16 or bf16 rows, if there are so many that the product takes those."""
        if not products.takes_rows(run, tokens):
            return self.rows[value], "f32"
        reader, width = self.readers[value], -(-value.width // 8) * 8
        dtype = many_dtype(reader, self.makers, self._fused(reader, reader.attributes["terms"]))
        pointer = run.scratch("attended.rows16", 2 * tokens * width)
        self.formed[value] = Form("rows16", pointer, stride=width, dtype=dtype)
        return Rows(pointer, width, width), dtype


def _segments(launches: Sequence[Launch], hosted: Sequence[bool]) -> tuple[Segment, ...]:
    """`hosted`: the operations in which the host takes part."""
    pairs = groupby(zip(hosted, launches, strict=True), key=lambda pair: pair[0])
    return tuple(Segment(tuple(launch for _, launch in group), has_host) for has_host, group in pairs)


def _readers(graph: Graph) -> dict[Value, Node]:
    """The last node that reads each value."""
    return {value: node for node in graph.nodes for value in node.inputs}


def _counted(node: Node) -> Value:
    """The value that tells how many rows a node has: one that adds to others in place has no result."""
    return node.outputs[0] if node.outputs else node.inputs[0]


def _counter(value: Value) -> Callable[[StepInputs], int]:
    if value.logits_only:
        return lambda step: step.num_logits
    return lambda step: step.num_tokens
