"""Graphs to dispatches: a step is a list of kernels for its number of rows, prepared once and submitted whole.

`Builder` has a method for each operation, by its name: it takes the node and its attributes, and gives dispatches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...arrays import Floats
from ...errors import DeviceError, RequestError
from ...tensor import QuantTensor
from ..graph import Node
from ..specs import AttentionSpec, RecurrentSpec, Routing
from . import attention, expert_tiles, experts, page_writers, recurrent, rows
from .activations import KINDS
from .device import Dispatch, Memory, Size
from .multiply import ONE, RowsAt
from .page_writers import PAGE_TOKENS
from .plan_rows import PlanOptions, Program, RowBuilder
from .products import FEW
from .weights import row_blocks
from .wgsl import COUNTS, Kernel, blocks


class _Pairs(NamedTuple):
    """Pairs of a token and one of its experts."""

    tokens: str  # the name of their number
    top_k: int
    experts: int
    chosen: Memory
    order: Memory | None = None  # of `group_tokens`, if there are many


class _Pages(NamedTuple):
    """Buffers of K and V with the same pages, from one on."""

    k: Memory
    v: Memory
    first: int
    number: int


class Builder(RowBuilder):
    """Dispatches of a graph whose logits are selected."""

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
        scores = self.rows[node.inputs[1]]
        out += self._route(scores, routing, count, most, chosen, weights)
        pairs = _Pairs(count, top_k, scores.width, chosen)
        if not self._rows_of(node.outputs[0])[1]:  # many tokens
            order = self._scratch("expert_order", 1, scores.width + 1 + most * top_k).memory
            pairs = pairs._replace(order=order)
            sizes = {"count_at": COUNTS.index(count), "top_k": top_k, "experts": scores.width}
            buffers: tuple[Memory, ...] = (self.step, chosen, order)
            out.append(Dispatch(expert_tiles.group_tokens(), buffers, sizes, (ONE, ONE, ONE), "group tokens"))
        hidden = self._scratch("expert_hidden", most * top_k, up.shape[1])
        result = self._scratch("expert_results", most * top_k, down.shape[1])
        out += self._expert_products(up, up_bias, x, hidden, pairs, is_first=True)
        grid: tuple[Size, Size, Size] = (("one", -(-hidden.width // 64)), (count, 1, top_k), ONE)
        values = {
            "count_at": COUNTS.index(count), "top_k": top_k, "width": hidden.width, "stride": hidden.stride,
            "kind": KINDS[kind],
        }  # fmt: skip
        memories: tuple[Memory, ...] = (self.step, hidden.memory)
        if gate is not None:
            gates = self._scratch("expert_gates", most * top_k, up.shape[1])
            out += self._expert_products(gate, gate_bias, x, gates, pairs, is_first=True)
            memories = (self.step, gates.memory, hidden.memory)
        out.append(Dispatch(experts.activate_rows(gate is not None), memories, values, grid, "experts"))
        out += self._expert_products(down, down_bias, hidden, result, pairs, is_first=False)
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
        extra = [self.weights.floats(v) for v in (routing.bias, routing.expert_scale) if v is not None]
        values = {
            "count_at": COUNTS.index(count), "s_offset": scores.offset, "s_stride": scores.stride,
            "experts": scores.width, "top_k": routing.top_k, "score": experts.SCORES[routing.score],
            "normalize": int(routing.normalize), "expert_groups": routing.groups, "top_groups": routing.top_groups,
            "group_top": routing.group_top, "scale": routing.scale,
        }  # fmt: skip
        buffers = (self.step, scores.memory, ranked, chosen, weights, *extra)
        return [Dispatch(kernel, buffers, values, ((count, experts.THREADS), ONE, ONE), "route")]

    def _expert_products(
        self, w: QuantTensor, bias: Floats | None, x: RowsAt, y: RowsAt, pairs: _Pairs, *, is_first: bool
    ) -> list[Dispatch]:
        """Products of pairs with their experts' matrices: one by one, or sorted and in tiles."""
        matrix, n, out = self.weights.stack(w), w.shape[1], list[Dispatch]()
        extra = [] if bias is None else [self.weights.floats(bias)]
        for part in matrix.parts:
            held = part.rows // n
            values = {
                **matrix.values, "n": n, "count_at": COUNTS.index(pairs.tokens), "top_k": pairs.top_k,
                "first": part.first // n, "held": held, "x_offset": x.offset, "x_stride": x.stride,
                "y_stride": y.stride,
            }  # fmt: skip
            if pairs.order is None:
                kernel, which = experts.expert_rows(matrix.format, bias is not None, is_first), pairs.chosen
                (a, b), middle = blocks(n), (pairs.tokens, 1, pairs.top_k)
            else:
                kernel = expert_tiles.expert_tiles(matrix.format, bias is not None, is_first, self.gpu.has_subgroups)
                values, which = values | {"experts": pairs.experts}, pairs.order
                a, b = row_blocks(n, expert_tiles.rows_per_block(matrix.format))
                middle = (pairs.tokens, expert_tiles.TOKENS_OF_BLOCK, held)
            buffers = (self.step, *matrix.buffers(part), x.memory, which, y.memory, *extra)
            out.append(Dispatch(kernel, buffers, values, (("one", a), middle, ("one", b)), "experts"))
        return out

    # What looks at other tokens

    def attend(
        self, node: Node, *, layer: int, spec: AttentionSpec, scale: float, softcap: float, sinks: Floats | None,
        causal: bool, radius: int, keep: bool, spans: bool,
    ) -> list[Dispatch]:  # fmt: skip
        if spans:
            raise RequestError("device 'webgpu' runs no attention over spans; use device='cpu'")
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
        pages, first = list[_Pages](), 0
        for k_memory, v_memory in zip(k_pages.memories, v_pages.memories, strict=True):
            pages.append(_Pages(k_memory, v_memory, first, k_pages.pages_each))
            first += k_pages.pages_each
        if keep:
            out += [self._write(spec, (k, v), one, group) for one in pages]
        if spec.v_dim > attention.MAX_V_DIM:
            raise DeviceError(f"heads of {spec.v_dim} values are too wide for WebGPU; {attention.MAX_V_DIM} fit")
        at = {f"{name}_at": self.layout.at(name) for name in ("positions", "sequences", "lengths")}
        at |= {f"{name}_at": self.layout.at(f"{name}{group}") for name in ("tables", "starts")}
        values = {
            **at, "count_at": COUNTS.index("tokens"), "sharing": heads // spec.kv_heads, "kv_heads": spec.kv_heads,
            "heads": heads, "k_bytes": k_pages.row_bytes, "v_bytes": v_pages.row_bytes,
            "q_offset": q.offset, "q_stride": q.stride,
            "y_offset": y.offset, "y_stride": y.stride, "causal": int(causal), "window": spec.signed_window,
            "radius": radius, "scale": scale, "cap": softcap,
            **{f"k_{n}": value for n, value in page_writers.page_parameters(layout.k, spec.k_dim).items()},
            **{f"v_{n}": value for n, value in page_writers.page_parameters(layout.v, spec.v_dim).items()},
        }  # fmt: skip
        return out + self._attend(spec, q, y, pages, values, [] if sinks is None else [self.weights.floats(sinks)])

    def _attend(
        self, spec: AttentionSpec, q: RowsAt, y: RowsAt, pages: Sequence[_Pages], values: dict[str, float],
        sinks: Sequence[Memory],
    ) -> list[Dispatch]:  # fmt: skip
        """Attention to the pages of each buffer, in splits if they are many; and what joins all of these."""
        layout, heads = self.store.layout, int(values["heads"])
        each = attention.SPLITS if self.tokens and self.options.ctx >= attention.LONG else 1
        splits, target, out = each * len(pages), y.memory, list[Dispatch]()
        if splits > 1:
            tokens = FEW[-1] if self.tokens else self.options.max_tokens
            target = self._scratch("splits", tokens * heads * splits, spec.v_dim + 2).memory
        kernel = attention.attend(layout.k, layout.v, spec.k_dim, spec.v_dim, bool(sinks), each, splits > 1)
        for number, one in enumerate(pages):
            own = {"first_page": one.first, "pages": one.number, "first_split": number * each, "splits": splits}
            buffers = (self.step, one.k, one.v, q.memory, target, *sinks)
            grid: tuple[Size, Size, Size] = (("one", heads), ("tokens", 1), ("one", each))
            out.append(Dispatch(kernel, buffers, values | own, grid, "attend"))
        if splits > 1:
            joined = {name: values[name] for name in ("count_at", "heads", "y_offset", "y_stride")}
            one_each: tuple[Size, Size, Size] = (("one", heads), ("tokens", 1), ONE)
            join = attention.join_splits(spec.v_dim, splits)
            out.append(Dispatch(join, (self.step, target, y.memory), joined, one_each, "join splits"))
        return out

    def _rotate(self, node: Node, x: RowsAt, name: str, dim: int, heads: int) -> list[Dispatch]:
        target = self._scratch(name, self.options.max_tokens, x.width)
        return self._each(rows.hadamard(dim), node, [x], threads=1, out=target, items=heads)

    def _write(self, spec: AttentionSpec, new: tuple[RowsAt, RowsAt], pages: _Pages, group: int) -> Dispatch:
        """K and V of new tokens to those of their pages that are in a buffer."""
        formats, dims, threads = (self.store.layout.k, self.store.layout.v), (spec.k_dim, spec.v_dim), 0
        at = {"count_at": COUNTS.index("tokens"), "slots_at": self.layout.at(f"slots{group}"), "heads": spec.kv_heads}
        at |= {"first_slot": pages.first * PAGE_TOKENS, "slots": pages.number * PAGE_TOKENS}
        for side, fmt, dim, x in zip("kv", formats, dims, new, strict=True):
            threads += spec.kv_heads * -(-dim // page_writers.values_of_a_thread(fmt))
            at |= {
                f"{side}_row_words": page_writers.page_row_bytes(fmt, dim) // 4, f"{side}_offset": x.offset,
                f"{side}_stride": x.stride, f"{side}_scales_at": page_writers.code_words(fmt, dim),
            }  # fmt: skip
        a, b = blocks(-(-threads // page_writers.THREADS))
        kernel = page_writers.write_pages(*formats, *dims)
        buffers = (self.step, new[0].memory, new[1].memory, pages.k, pages.v)
        return Dispatch(kernel, buffers, at, (("one", a), ("tokens", 1), ("one", b)), "write")

    def conv(
        self, node: Node, *, layer: int, weight: Floats, bias: Floats | None, kind: str, spec: RecurrentSpec,
        offset: int,
    ) -> list[Dispatch]:  # fmt: skip
        (x,), width = self._inputs(node), weight.shape[0]
        extra = [] if bias is None else [self.weights.floats(bias)]
        values = {"width": width, "taps": weight.shape[1], "kind": KINDS[kind], **self._at(x=x)}
        return self._recurrent(
            node, recurrent.conv(bias is not None), [x.memory, self.weights.floats(weight)], extra, layer, offset,
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


__all__ = ["Builder", "PlanOptions", "Program"]
