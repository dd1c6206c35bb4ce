"""The part of a plan's builder that multiplies: products, gated ones, and what adapters add to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...arrays import Floats
from ...tensor import QuantTensor
from ..graph import Graph, Node, Rope, Value
from ..low_rank import ProductKey
from ..passes import logits_nodes, score_products
from . import products
from .adapters import GpuAdapters, Target
from .attention import RopeTable
from .fused import Fused
from .pages import DeviceStore
from .plan_segments import Launch, PlanOptions
from .products import Form
from .ranges import many_dtype
from .session import Session
from .values import Launcher, Rows, StepInputs
from .weights import Weights


class ProductBuilder:
    """What the builder of a plan knows, and its methods for operations that are products."""

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
        self.readers = readers_of(graph)
        self.logits = logits_nodes(graph)[0].outputs[0]
        self.scores = score_products(graph)
        self.ropes: dict[Rope, RopeTable] = {}
        self.rows: dict[Value, Rows] = {}
        self.formed: dict[Value, Form] = {}  # what attention wrote as the product after it takes it, in this launch

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
        count, source, value = counter(node.outputs[0]), node.inputs[0], node.outputs[0]
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
        x, out, count = self.rows[node.inputs[0]], self.rows[node.outputs[0]], counter(node.outputs[0])
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
        x, count, adapters = self.rows[node.inputs[0]], counter(node.inputs[0]), self._adapters
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
        count, source = counter(node.outputs[0]), node.inputs[0]
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

    def _feeds_product(self, value: Value) -> bool:
        """Whether one product alone reads these rows, so that they can be written in the form that it takes."""
        reader = self.readers.get(value)
        if reader is None or self.uses[value] != 1 or self.options.batch_invariant:
            return False
        plain = reader.operation == "linears" and reader.attributes["norm"] is None
        return plain and self.logits not in reader.outputs and self.scores.isdisjoint(reader.outputs)


def readers_of(graph: Graph) -> dict[Value, Node]:
    """The last node that reads each value."""
    return {value: node for node in graph.nodes for value in node.inputs}


def counter(value: Value) -> Callable[[StepInputs], int]:
    if value.logits_only:
        return lambda step: step.num_logits
    return lambda step: step.num_tokens
