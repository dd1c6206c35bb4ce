"""Graphs to launches: a step is then a list of kernels, which can be captured once and replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...arrays import Floats
from ...errors import RequestError
from ...tensor import QuantTensor
from ..graph import Graph, Node, Rope, Value
from ..low_rank import add_terms
from ..passes import fuse
from ..placement import Placement
from ..specs import AttentionSpec, Routing
from . import attention, collective, experts, products, prompt_attention, recurrent, row_maths
from .adapters import GpuAdapters
from .attention import Fragments, Int8Row, RopeTable, make_rope_table
from .host_experts import Compute, experts_on_host
from .pages import DeviceStore
from .placement import allocate
from .plan_products import ProductBuilder, counter
from .plan_segments import Launch, Plan, PlanOptions, segmented
from .products import Form
from .ranges import many_dtype
from .session import Session
from .shapes import MAX_SHARED
from .values import Launcher, Rows, StepInputs
from .weights import Weights


def build(
    graph: Graph, store: DeviceStore, weights: Weights, options: PlanOptions, adapters: GpuAdapters | None = None
) -> Plan:
    """The plan of a graph whose logits are selected; with what adapters add, if there are some."""
    fused = fuse(graph)
    if adapters is not None:
        fused = add_terms(fused, adapters.products, split=False)
    return Builder(fused, store, weights, options, adapters).build()


def check(graph: Graph, device: Session) -> None:
    """Refuse a graph that has no plan on a card, before its weights are read."""
    for node in graph.nodes:
        if node.operation not in FUNCTIONS and not hasattr(Builder, node.operation):
            raise RequestError(f"GPUs have no operation {node.operation!r}")
        if node.operation == "attend":
            prompt_attention.card_shape(device, node.attributes["spec"])


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


class Builder(ProductBuilder):
    """Has a method for each operation that is not in `FUNCTIONS`, by its name: it takes the node and its attributes."""

    def build(self) -> Plan:
        folded = {node for node in self.graph.nodes if self._is_folded(node)}
        nodes = [node for node in self.graph.nodes if node not in folded]
        buffers = self._place(nodes, folded)
        launches = [self._launch_of(node) for node in nodes]
        given = next((self.rows[node.outputs[0]] for node in nodes if node.operation == "given"), None)
        labels = tuple(f"{node.operation} {_counted(node).width}" for node in nodes)
        launches[0] = self._begin(launches[0])
        hosted = [node.operation in HOSTED or self._host_experts(node) is not None for node in nodes]
        return Plan(segmented(launches, hosted), labels, self.rows[self.graph.result], given, buffers)

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
        out, inputs, count = self.rows[node.outputs[0]], [self.rows[x] for x in node.inputs], counter(node.outputs[0])

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


def _counted(node: Node) -> Value:
    """The value that tells how many rows a node has: one that adds to others in place has no result."""
    return node.outputs[0] if node.outputs else node.inputs[0]
