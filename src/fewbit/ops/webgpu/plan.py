"""Graphs to dispatches: a step is a list of kernels for its number of rows, prepared once and submitted whole.

`Builder` has a method for each operation, by its name: it takes the node and its attributes, and gives dispatches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...arrays import Floats
from ...errors import DeviceError
from ...tensor import QuantTensor
from ..graph import Graph, Node, Rope, Value
from ..passes import fuse
from ..placement import Placement
from ..specs import AttentionSpec, RecurrentSpec, Routing
from . import attention, experts, recurrent, rows
from .activations import KINDS
from .device import Dispatch, Gpu, Memory, Size
from .inputs import StepLayout
from .model_weights import Joined, ModelWeights
from .multiply import ONE, Product, RowsAt
from .pages import PageStore
from .products import table_rows
from .wgsl import COUNTS, Kernel, blocks


@dataclass(frozen=True)
class PlanOptions:
    max_tokens: int  # of a step
    max_logits: int
    ctx: int  # tokens of the longest sequence
    f16: bool = False


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


class Builder:
    """Dispatches of a graph whose logits are selected; rows of values lie in buffers that programs share."""

    def __init__(
        self, graph: Graph, store: PageStore, weights: ModelWeights, step: Memory, layout: StepLayout,
        options: PlanOptions,
    ) -> None:  # fmt: skip
        self.graph, self.store, self.weights, self.options = fuse(graph), store, weights, options
        self.gpu: Gpu = weights.gpu
        self.step, self.layout = step, layout
        self.scratches: dict[str, Memory] = {}
        self.rows = self._place()
        self.tokens = self.logits = 1  # classes of the program that is being built
        self.given_rows = next((self.rows[n.outputs[0]] for n in self.graph.nodes if n.operation == "given"), None)

    def program(self, tokens: int, logits: int) -> Program:
        """For steps of so many tokens and logits: classes of `token_class`."""
        self.tokens, self.logits = tokens, logits
        out: list[Dispatch] = []
        for node in self.graph.nodes:
            out += getattr(self, node.operation)(node, **node.attributes)
        return Program(tuple(out), self.rows[self.graph.result], tokens, logits)

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
        self, kernel: Kernel, node: Node, inputs: Sequence[RowsAt], more: Sequence[Memory] = (),
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
        memories = (self.step, *(one.memory for one in inputs), *more, y.memory)
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

    def given(self, node: Node) -> list[Dispatch]:
        """Rows that another device made: the host has sent them."""
        return []

    def norm(self, node: Node, *, weight: Floats, eps: float, heads: int = 1) -> list[Dispatch]:
        return self._norm(node, self._inputs(node)[0], self.rows[node.outputs[0]], weight, eps, heads)

    def _norm(
        self, node: Node, x: RowsAt, y: RowsAt, weight: Floats, eps: float, heads: int = 1, bias: Floats | None = None,
        has_mean: bool = False,
    ) -> list[Dispatch]:  # fmt: skip
        more = [self.weights.floats(weight), *([self.weights.floats(bias)] if bias is not None else [])]
        kernel = rows.norm(has_mean, bias is not None)
        sizes = {"dim": x.width // heads, "eps": eps}
        return self._each(kernel, node, [x], more, sizes, threads=1, out=y, items=heads)

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
        count, tokens = self._rows_of(node.outputs[0])
        for segment in joined.segments:
            y = base.columns(segment.first, segment.matrix.n)
            other = residual.columns(segment.first, segment.matrix.n) if residual else None
            out += Product(
                segment.matrix, self.step, x, y, tokens, count, segment.bias, other, f16=self.options.f16
            ).dispatches(self.gpu)
        return out

    def gated(
        self, node: Node, *, gate: QuantTensor, up: QuantTensor, kind: str, norm: tuple[Floats, float] | None
    ) -> list[Dispatch]:
        x, out = self._normed(node, norm)
        y, (count, tokens) = self.rows[node.outputs[0]], self._rows_of(node.outputs[0])
        if gate.format == up.format:
            product = Product(
                self.weights.pairs(gate, up), self.step, x, y, tokens, count, gate=kind, f16=self.options.f16
            )
            return out + product.dispatches(self.gpu)
        scratch = self._scratch("gate", self._count(node.outputs[0]), gate.shape[0])
        for w, target in ((gate, scratch), (up, y)):
            product = Product(self.weights.matrix(w), self.step, x, target, tokens, count, f16=self.options.f16)
            out += product.dispatches(self.gpu)
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

    # Experts

    def experts(
        self, node: Node, *, up: QuantTensor, down: QuantTensor, routing: Routing, gate: QuantTensor | None, kind: str,
        up_bias: Floats | None, gate_bias: Floats | None, down_bias: Floats | None,
    ) -> list[Dispatch]:  # fmt: skip
        y, count = self.rows[node.outputs[0]], self._rows_of(node.outputs[0])[0]
        most, top_k = self._count(node.outputs[0]), routing.top_k
        chosen = self._scratch("chosen", most, top_k + 4).memory
        weights = self._scratch("expert_weights", most, top_k + 4).memory
        x, out = self._aligned(node, self.rows[node.inputs[0]])
        out += self._route(self.rows[node.inputs[1]], routing, count, most, chosen, weights)
        hidden = self._scratch("expert_hidden", most * top_k, up.shape[1])
        result = self._scratch("expert_results", most * top_k, down.shape[1])
        out += self._expert_rows(up, up_bias, x, hidden, count, chosen, top_k, is_first=True)
        grid: tuple[Size, Size, Size] = (("one", -(-hidden.width // 64)), (count, 1, top_k), ONE)
        values = {
            "count_at": COUNTS.index(count), "top_k": top_k, "width": hidden.width, "stride": hidden.stride,
            "kind": KINDS[kind],
        }  # fmt: skip
        memories: tuple[Memory, ...] = (self.step, hidden.memory)
        if gate is not None:
            gates = self._scratch("expert_gates", most * top_k, up.shape[1])
            out += self._expert_rows(gate, gate_bias, x, gates, count, chosen, top_k, is_first=True)
            memories = (self.step, gates.memory, hidden.memory)
        out.append(Dispatch(experts.activate_rows(gate is not None), memories, values, grid, "experts"))
        out += self._expert_rows(down, down_bias, hidden, result, count, chosen, top_k, is_first=False)
        combined = {
            "count_at": COUNTS.index(count), "top_k": top_k, "width": y.width, "x_stride": result.stride,
            "y_offset": y.offset, "y_stride": y.stride,
        }  # fmt: skip
        grid = (("one", -(-y.width // 64)), (count, 1), ONE)
        buffers = (self.step, result.memory, weights, y.memory)
        out.append(Dispatch(experts.combine(), buffers, combined, grid, "experts"))
        return out

    def _route(
        self, scores: RowsAt, routing: Routing, count: str, most: int, chosen: Memory, weights: Memory
    ) -> list[Dispatch]:
        kernel = experts.route(routing.bias is not None, routing.expert_scale is not None)
        ranked = self._scratch("ranked", most, 2 * scores.width).memory
        more = [self.weights.floats(v) for v in (routing.bias, routing.expert_scale) if v is not None]
        values = {
            "count_at": COUNTS.index(count), "s_offset": scores.offset, "s_stride": scores.stride,
            "experts": scores.width, "top_k": routing.top_k, "score": experts.SCORES[routing.score],
            "normalize": int(routing.normalize), "expert_groups": routing.groups, "top_groups": routing.top_groups,
            "group_top": routing.group_top, "scale": routing.scale,
        }  # fmt: skip
        buffers = (self.step, scores.memory, ranked, chosen, weights, *more)
        return [Dispatch(kernel, buffers, values, ((count, experts.THREADS), ONE, ONE), "route")]

    def _expert_rows(
        self, w: QuantTensor, bias: Floats | None, x: RowsAt, y: RowsAt, count: str, chosen: Memory, top_k: int,
        is_first: bool,
    ) -> list[Dispatch]:  # fmt: skip
        matrix, n = self.weights.stack(w), w.shape[1]
        kernel, out = experts.expert_rows(matrix.format, bias is not None, is_first), []
        a, b = blocks(n)
        for part in matrix.parts:
            values = {
                **matrix.values, "n": n, "count_at": COUNTS.index(count), "top_k": top_k, "first": part.first // n,
                "held": part.rows // n, "x_offset": x.offset, "x_stride": x.stride, "y_stride": y.stride,
            }  # fmt: skip
            more = [] if bias is None else [self.weights.floats(bias)]
            buffers = (self.step, *matrix.buffers(part), x.memory, chosen, y.memory, *more)
            out.append(Dispatch(kernel, buffers, values, (("one", a), (count, 1, top_k), ("one", b)), "experts"))
        return out

    # What looks at other tokens

    def attend(
        self, node: Node, *, layer: int, spec: AttentionSpec, scale: float, softcap: float, sinks: Floats | None,
        causal: bool, radius: int, keep: bool,
    ) -> list[Dispatch]:  # fmt: skip
        k_pages, v_pages, _ = self.store.kv(layer)
        q, k, v = self._inputs(node)
        y, group, layout, out = self.rows[node.outputs[0]], self.store.group_of(layer), self.store.layout, []
        heads = q.width // spec.k_dim
        if layout.rotate and spec.k_dim & 1 == 0:
            out += self._rotate(node, q, "rotated_q", spec.k_dim, heads)
            q = self._scratch("rotated_q", self.options.max_tokens, q.width)
            if keep:
                out += self._rotate(node, k, "rotated_k", spec.k_dim, spec.kv_heads)
                k = self._scratch("rotated_k", self.options.max_tokens, k.width)
        if keep:
            out += self._write(layout.k, spec.k_dim, spec.kv_heads, k, k_pages.memory, group)
            out += self._write(layout.v, spec.v_dim, spec.kv_heads, v, v_pages.memory, group)
        at = {f"{name}_at": self.layout.at(name) for name in ("positions", "sequences", "lengths")}
        at |= {f"{name}_at": self.layout.at(f"{name}{group}") for name in ("tables", "starts")}
        values = {
            **at, "count_at": COUNTS.index("tokens"), "sharing": heads // spec.kv_heads, "kv_heads": spec.kv_heads,
            "k_bytes": k_pages.row_bytes, "v_bytes": v_pages.row_bytes, "q_offset": q.offset, "q_stride": q.stride,
            "y_offset": y.offset, "y_stride": y.stride, "causal": int(causal), "window": spec.window,
            "radius": radius, "scale": scale, "cap": softcap,
            **{f"k_{n}": value for n, value in attention.page_parameters(layout.k, spec.k_dim).items()},
            **{f"v_{n}": value for n, value in attention.page_parameters(layout.v, spec.v_dim).items()},
        }  # fmt: skip
        if spec.v_dim > attention.MAX_V_DIM:
            raise DeviceError(f"heads of {spec.v_dim} values are too wide for WebGPU; {attention.MAX_V_DIM} fit")
        kernel = attention.attend(layout.k, layout.v, spec.k_dim, spec.v_dim, sinks is not None)
        more = [] if sinks is None else [self.weights.floats(sinks)]
        buffers = (self.step, k_pages.memory, v_pages.memory, q.memory, y.memory, *more)
        grid: tuple[Size, Size, Size] = (("one", heads), ("tokens", 1), ONE)
        return [*out, Dispatch(kernel, buffers, values, grid, "attend")]

    def _rotate(self, node: Node, x: RowsAt, name: str, dim: int, heads: int) -> list[Dispatch]:
        target = self._scratch(name, self.options.max_tokens, x.width)
        return self._each(rows.hadamard(dim), node, [x], threads=1, out=target, items=heads)

    def _write(self, fmt: Any, dim: int, heads: int, x: RowsAt, pages: Memory, group: int) -> list[Dispatch]:
        each = 2 if fmt.is_scalar else attention.PAIR
        code_words = 0 if fmt.is_scalar else attention.padded_dim(fmt, dim) * fmt.codes.bits // 32
        values = {
            "count_at": COUNTS.index("tokens"), "slots_at": self.layout.at(f"slots{group}"), "heads": heads,
            "row_words": attention.page_row_bytes(fmt, dim) // 4, "x_offset": x.offset, "x_stride": x.stride,
            "scales_at": code_words,
        }  # fmt: skip
        a, b = blocks(-(-(heads * -(-dim // each)) // attention.THREADS))
        grid: tuple[Size, Size, Size] = (("one", a), ("tokens", 1), ("one", b))
        return [Dispatch(attention.write_pages(fmt, dim), (self.step, x.memory, pages), values, grid, "write")]

    def conv(
        self, node: Node, *, layer: int, weight: Floats, bias: Floats | None, kind: str, spec: RecurrentSpec,
        offset: int,
    ) -> list[Dispatch]:  # fmt: skip
        (x,), width = self._inputs(node), weight.shape[0]
        more = [] if bias is None else [self.weights.floats(bias)]
        values = {"width": width, "taps": weight.shape[1], "kind": KINDS[kind], **self._at(x=x)}
        return self._recurrent(
            node, recurrent.conv(bias is not None), [x.memory, self.weights.floats(weight)], more, layer, offset,
            width, values,
        )  # fmt: skip

    def delta_rule(
        self, node: Node, *, layer: int, heads: int, v_heads: int, decay: Floats, dt_bias: Floats, scale: float,
        tiled: bool, spec: RecurrentSpec, offset: int,
    ) -> list[Dispatch]:  # fmt: skip
        q, k, v, a, b = self._inputs(node)
        gains = self.weights.joined_floats([decay, dt_bias])
        values = {
            "heads": heads, "v_heads": v_heads, "dim": q.width // heads, "v_dim": v.width // v_heads,
            "tiled": int(tiled), "scale": scale, **self._at(q=q, k=k, v=v, a=a, b=b),
        }  # fmt: skip
        memories = [one.memory for one in (q, k, v, a, b)]
        return self._recurrent(node, recurrent.delta_rule(), [*memories, gains], [], layer, offset, v.width, values)

    def scan(
        self, node: Node, *, layer: int, heads: int, groups: int, decay: Floats, skip: Floats, dt_bias: Floats,
        spec: RecurrentSpec, offset: int,
    ) -> list[Dispatch]:  # fmt: skip
        x, dt, b, c = self._inputs(node)
        gains = self.weights.joined_floats([decay, skip, dt_bias])
        values = {
            "heads": heads, "groups": groups, "dim": x.width // heads, "n": b.width // groups,
            **self._at(x=x, dt=dt, b=b, c=c),
        }  # fmt: skip
        memories = [one.memory for one in (x, dt, b, c)]
        return self._recurrent(node, recurrent.scan(), [*memories, gains], [], layer, offset, x.width, values)

    def _at(self, **inputs: RowsAt) -> dict[str, float]:
        return {f"{name}_{what}": getattr(one, what) for name, one in inputs.items() for what in ("offset", "stride")}

    def _recurrent(
        self, node: Node, kernel: Kernel, before: Sequence[Memory], after: Sequence[Memory], layer: int, offset: int,
        width: int, values: dict[str, float],
    ) -> list[Dispatch]:  # fmt: skip
        states, y = self.store.states(layer), self.rows[node.outputs[0]]
        a, b = blocks(-(-width // recurrent.THREADS))
        values = values | {
            "count_at": COUNTS.index("sequences"), "reads_at": self.layout.at("reads"),
            "writes_at": self.layout.at("writes"), "starts_at": self.layout.at("q_starts"),
            "slot_words": states.page_bytes // 4, "offset": offset // 4, "y_offset": y.offset, "y_stride": y.stride,
        }  # fmt: skip
        buffers = (self.step, *before, states.memory, y.memory, *after)
        grid: tuple[Size, Size, Size] = (("one", a), ("sequences", 1), ("one", b))
        return [Dispatch(kernel, buffers, values, grid, node.operation)]
