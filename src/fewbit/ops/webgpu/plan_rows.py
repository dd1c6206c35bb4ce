"""Part of plans: where rows lie, and what is done to each row by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...arrays import Floats
from ...errors import RequestError
from ...tensor import QuantTensor
from ..graph import Graph, Node, Rope, Value
from ..passes import fuse, logits_nodes, score_products
from ..placement import Placement
from . import experts, rows
from .activations import KINDS
from .decoders import decoder
from .device import Dispatch, Gpu, Memory, Size
from .inputs import StepLayout
from .joining import join_ropes
from .model_weights import Joined, ModelWeights
from .multiply import Product, RowsAt, packed_bytes, packing
from .pages import PageStore
from .products import table_rows
from .weights import Matrix
from .wgsl import COUNTS, Kernel, blocks


@dataclass(frozen=True)
class PlanOptions:
    max_tokens: int  # of a step
    max_logits: int
    ctx: int  # tokens of the longest sequence
    activations: str = "exact"  # or f16; or int8, for products of up to 8 rows but those of logits


@dataclass(frozen=True)
class Program:
    """The kernels of a step, in their order, and where its result is."""

    dispatches: tuple[Dispatch, ...]
    result: RowsAt
    tokens: int  # classes of `token_class`: how many tokens and logits it is for
    logits: int

    @property
    def weight_bytes(self) -> int:
        """Bytes of packed weights that a step of one token reads, but for those of tables and experts."""
        read = {id(m): m for d in self.dispatches for m in d.buffers if m.name == "weights" and d.label != "embed"}
        return sum(memory.nbytes for memory in read.values())


class RowBuilder:
    """Where rows of values lie, in buffers that programs share; the operations on rows, products too."""

    def __init__(
        self, graph: Graph, store: PageStore, weights: ModelWeights, step: Memory, layout: StepLayout,
        options: PlanOptions,
    ) -> None:  # fmt: skip
        self.graph, self.store, self.weights, self.options = fuse(graph), store, weights, options
        self.gpu: Gpu = weights.gpu
        self.step, self.layout = step, layout
        self.scratches: dict[str, Memory] = {}
        self.rows = self._place()
        self.scores = score_products(self.graph)
        self.logits_value = logits_nodes(self.graph)[0].outputs[0] if graph.has_head else None
        self.tokens = self.logits = 1  # classes of the program that is being built
        self.given_rows = next((self.rows[n.outputs[0]] for n in self.graph.nodes if n.operation == "given"), None)

    def program(self, tokens: int, logits: int) -> Program:
        """For steps of so many tokens and logits: classes of `token_class`."""
        self.tokens, self.logits = tokens, logits
        out: list[Dispatch] = []
        for node in self.graph.nodes:
            out += getattr(self, node.operation)(node, **node.attributes)
        return Program(tuple(join_ropes(out)), self.rows[self.graph.result], tokens, logits)

    def buffers(self) -> list[Memory]:
        """Memory of rows and of intermediate results."""
        found = {id(rows.memory): rows.memory for rows in self.rows.values()}
        return [*found.values(), *self.scratches.values()]

    # Where rows lie

    def _place(self) -> dict[Value, RowsAt]:
        placement = Placement(self.graph, {})
        for node in self.graph.nodes:
            joined = self._joined(node) if len(node.outputs) > 1 else None
            placement.add(node, (joined.width, joined.offsets) if joined else None)
        counts = placement.counts(self._count)
        widths = [-(-width // 4) * 4 for width in placement.widths]
        memories = [self.gpu.allocate(4 * width * counts[slot] + 64, "rows") for slot, width in enumerate(widths)]
        return {
            value: RowsAt(memories[slot], value.width, widths[slot], first)
            for value, (_, slot, first) in placement.places.items()
        }

    def _joined(self, node: Node) -> Joined:
        return self.weights.joined(node.attributes["terms"])

    def _count(self, value: Value) -> int:
        return self.options.max_logits if value.logits_only else self.options.max_tokens

    def _scratch(self, name: str, count: int, width: int) -> RowsAt:
        """Rows that one operation hands to itself; the next user of the name overwrites them."""
        stride = -(-width // 4) * 4
        nbytes = 4 * stride * count + 64
        if name not in self.scratches or self.scratches[name].nbytes < nbytes:
            self.scratches[name] = self.gpu.allocate(nbytes, name)
        return RowsAt(self.scratches[name], width, stride)

    # Dispatches

    def _rows_of(self, value: Value) -> tuple[str, int]:
        """The name of a value's number of rows, and its class."""
        return ("logits", self.logits) if value.logits_only else ("tokens", self.tokens)

    def _each(
        self, kernel: Kernel, node: Node, inputs: Sequence[RowsAt], extra: Sequence[Memory] = (),
        values: Mapping[str, float] | None = None, *, threads: int = 64, out: RowsAt | None = None,
        items: int | None = None,
    ) -> list[Dispatch]:  # fmt: skip
        """A kernel of row maths: a thread for each number of a row, or for each of `items`."""
        y, count = out or self.rows[node.outputs[0]], self._rows_of(node.outputs[0])[0]
        known: dict[str, float] = {"width": y.width, **(values or {}), "count_at": COUNTS.index(count)}
        for name, one in zip("xb", inputs, strict=False):
            known |= {f"{name}_offset": one.offset, f"{name}_stride": one.stride}
        known |= {"y_offset": y.offset, "y_stride": y.stride}
        x, z = blocks(-(-(y.width if items is None else items) // threads))
        memories = (self.step, *(one.memory for one in inputs), *extra, y.memory)
        grid: tuple[Size, Size, Size] = (("one", x), (count, 1), ("one", z))
        taken = {name: known[name] for name, _ in kernel.parameters}
        return [Dispatch(kernel, memories, taken, grid, node.operation)]

    def _inputs(self, node: Node) -> list[RowsAt]:
        return [self.rows[value] for value in node.inputs]

    # Row maths

    def embed(self, node: Node, *, table: QuantTensor, scale: float = 1.0, ids: str = "tokens") -> list[Dispatch]:
        matrix, y = self.weights.matrix(table), self.rows[node.outputs[0]]
        kernel, out = table_rows(matrix.format), []
        x, z = blocks(-(-matrix.k // (16 * 64)))
        for part in matrix.parts:
            values = {
                **matrix.values, "n": part.rows, "first": part.first, "y_offset": y.offset, "y_stride": y.stride,
                "count_at": COUNTS.index("tokens"), "ids_at": self.layout.at(ids), "scale": scale,
            }  # fmt: skip
            buffers = (self.step, *matrix.buffers(part), y.memory)
            out.append(Dispatch(kernel, buffers, values, (("one", x), ("tokens", 1), ("one", z)), node.operation))
        return out

    def positions(self, node: Node, *, table: QuantTensor) -> list[Dispatch]:
        return self.embed(node, table=table, ids="positions")

    def insert(self, node: Node, *, part: int, adds: bool) -> list[Dispatch]:
        raise RequestError("device 'webgpu' takes no rows of image encoders; use device='cpu'")

    def given(self, node: Node) -> list[Dispatch]:
        """Rows that another device made: the host has sent them."""
        return []

    def norm(self, node: Node, *, weight: Floats, eps: float, heads: int = 1) -> list[Dispatch]:
        return self._norm(node, self._inputs(node)[0], self.rows[node.outputs[0]], weight, eps, heads)

    def _norm(
        self, node: Node, x: RowsAt, y: RowsAt, weight: Floats, eps: float, heads: int = 1, bias: Floats | None = None,
        has_mean: bool = False,
    ) -> list[Dispatch]:  # fmt: skip
        extra = [self.weights.floats(weight), *([self.weights.floats(bias)] if bias is not None else [])]
        kernel = rows.norm(has_mean, bias is not None)
        sizes = {"dim": x.width // heads, "eps": eps}
        return self._each(kernel, node, [x], extra, sizes, threads=1, out=y, items=heads)

    def layer_norm(self, node: Node, *, weight: Floats, bias: Floats | None, eps: float) -> list[Dispatch]:
        x, y = self._inputs(node)[0], self.rows[node.outputs[0]]
        return self._norm(node, x, y, weight, eps, 1, bias, has_mean=True)

    def add(self, node: Node) -> list[Dispatch]:
        return self._each(rows.add(), node, self._inputs(node))

    def gate(self, node: Node, *, kind: str) -> list[Dispatch]:
        return self._each(rows.gate(), node, self._inputs(node), (), {"kind": KINDS[kind]})

    def activate(self, node: Node, *, kind: str) -> list[Dispatch]:
        return self._each(rows.activate(), node, self._inputs(node), (), {"kind": KINDS[kind]})

    def scale(self, node: Node, *, by: float) -> list[Dispatch]:
        return self._each(rows.scale(), node, self._inputs(node), (), {"by": by})

    def softcap(self, node: Node, *, cap: float) -> list[Dispatch]:
        return self._each(rows.softcap(), node, self._inputs(node), (), {"cap": cap})

    def clamp(self, node: Node, *, low: float, high: float) -> list[Dispatch]:
        return self._each(rows.clamp(), node, self._inputs(node), (), {"low": low, "high": high})

    def shift(self, node: Node, *, by: Floats) -> list[Dispatch]:
        return self._each(rows.shift(), node, self._inputs(node), [self.weights.floats(by)])

    def columns(self, node: Node, *, start: int, width: int, heads: int) -> list[Dispatch]:
        x = self._inputs(node)[0]
        return self._each(rows.columns(), node, [x], (), {"part": width, "dim": x.width // heads, "start": start})

    def join(self, node: Node, *, heads: int, b_heads: int | None) -> list[Dispatch]:
        a, b = self._inputs(node)
        own = heads if b_heads is None else b_heads
        sizes = {"a_dim": a.width // heads, "b_dim": b.width // own, "b_heads": own}
        return self._each(rows.join(), node, [a, b], (), sizes)

    def gather(self, node: Node) -> list[Dispatch]:
        return self._each(rows.gather(), node, self._inputs(node), (), {"ids_at": self.layout.at("logits_indices")})

    def rope(self, node: Node, *, heads: int, rope: Rope) -> list[Dispatch]:
        x, y = self._inputs(node)[0], self.rows[node.outputs[0]]
        pairs, dim, in_place = len(rope.inv_freq), x.width // heads, x == y
        angles = self.weights.angles(rope, self.options.ctx)
        items = heads * (pairs if in_place else dim - pairs)
        values = {
            "heads": heads, "dim": dim, "pairs": pairs, "neox": int(rope.neox), "high_rows": angles.high_rows,
            "scale": rope.scale, "ids_at": self.layout.at("positions"), "x_offset": x.offset, "x_stride": x.stride,
        }  # fmt: skip
        inputs = [] if in_place else [x]
        return self._each(rows.rope(in_place), node, inputs, [angles.memory], values, items=items)

    # Products

    def linear(self, node: Node, *, w: QuantTensor, bias: Floats | None) -> list[Dispatch]:
        return self.linears(node, terms=((w, bias),), norm=None)

    def linears(
        self, node: Node, *, terms: Sequence[tuple[QuantTensor, Floats | None]], norm: tuple[Floats, float] | None
    ) -> list[Dispatch]:
        joined, first = self.weights.joined(terms), self.rows[node.outputs[0]]
        base = first._replace(offset=first.offset - joined.offsets[0])
        x, out = self._normed(node, norm)
        residual = self.rows[node.inputs[1]] if len(node.inputs) > 1 else None
        for segment in joined.segments:
            y = base.columns(segment.first, segment.matrix.n)
            other = residual.columns(segment.first, segment.matrix.n) if residual else None
            out += self._multiplied(node, segment.matrix, x, y, bias=segment.bias, residual=other)
        return out

    def _multiplied(
        self, node: Node, matrix: Matrix, x: RowsAt, y: RowsAt, *, bias: Memory | None = None,
        residual: RowsAt | None = None, gate: str | None = None,
    ) -> list[Dispatch]:  # fmt: skip
        """A product, and what brings x into the form that it takes."""
        (count, tokens), kind = self._rows_of(node.outputs[0]), self.options.activations
        kind = "exact" if self.scores.intersection(node.outputs) else kind
        product = Product(matrix, self.step, x, y, tokens, count, bias, residual, gate, kind == "f16")
        if kind != "int8" or not tokens or self.logits_value in node.outputs or not decoder(matrix.format).has_packed:
            return product.dispatches(self.gpu)
        words = packed_bytes(max(self.options.max_tokens, self.options.max_logits), x.width) // 4
        target = self._scratch("packed", 1, words)._replace(width=x.width)
        product = replace(product, x=target, is_packed=True)
        return [packing(self.step, x, target.memory, count), *product.dispatches(self.gpu)]

    def gated(
        self, node: Node, *, gate: QuantTensor, up: QuantTensor, kind: str, norm: tuple[Floats, float] | None
    ) -> list[Dispatch]:
        x, out = self._normed(node, norm)
        y = self.rows[node.outputs[0]]
        if gate.format == up.format:
            return out + self._multiplied(node, self.weights.pairs(gate, up), x, y, gate=kind)
        scratch = self._scratch("gate", self._count(node.outputs[0]), gate.shape[0])
        for w, target in ((gate, scratch), (up, y)):
            out += self._multiplied(node, self.weights.matrix(w), x, target)
        both = self._scratch("gated", self._count(node.outputs[0]), gate.shape[0])
        out += self._each(rows.gate(), node, [scratch, y], (), {"kind": KINDS[kind]}, out=both)
        return out + self._each(rows.scale(), node, [both], (), {"by": 1.0})

    def _normed(self, node: Node, norm: tuple[Floats, float] | None) -> tuple[RowsAt, list[Dispatch]]:
        """Rows as a product takes them."""
        x = self.rows[node.inputs[0]]
        if norm is None:
            return self._aligned(node, x)
        target = self._scratch("normed", max(self.options.max_tokens, self.options.max_logits), x.width)
        return target, self._norm(node, x, target, *norm)

    def _aligned(self, node: Node, x: RowsAt) -> tuple[RowsAt, list[Dispatch]]:
        """Rows that begin at whole vectors: copies where they do not."""
        if x.offset % 4 == 0:
            return x, []
        target = self._scratch("aligned", max(self.options.max_tokens, self.options.max_logits), x.width)
        return target, self._each(rows.scale(), node, [x], (), {"by": 1.0}, out=target)

    def linear_heads(self, node: Node, *, w: QuantTensor) -> list[Dispatch]:
        (x,), y = self._inputs(node), self.rows[node.outputs[0]]
        matrix, count = self.weights.stack(w), self._rows_of(node.outputs[0])[0]
        kernel, out = experts.linear_heads(matrix.format), []
        for part in matrix.parts:
            values = {
                **matrix.values, "n": part.rows, "first": part.first, "head_rows": w.shape[1],
                "count_at": COUNTS.index(count), "x_offset": x.offset, "x_stride": x.stride, "y_offset": y.offset,
                "y_stride": y.stride,
            }  # fmt: skip
            a, b = blocks(part.rows)
            buffers = (self.step, *matrix.buffers(part), x.memory, y.memory)
            out.append(Dispatch(kernel, buffers, values, (("one", a), (count, 1), ("one", b)), node.operation))
        return out
