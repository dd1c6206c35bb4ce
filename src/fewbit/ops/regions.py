"""Which rows of a graph are divided over ranks by columns: tensor parallelism, as in Megatron.

Rows that only head-wise and element-wise operations connect are a region: the heads of an attention layer, the hidden
columns of a feed-forward layer. A region is divided if products make its rows and products read them. The matrices
that make them are then divided by rows, those that read them by columns, and the sum of what these give is taken over
all ranks. All else is computed by every rank: embeddings, norms, residuals, routers, recurrent layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import gcd, lcm
from typing import Any

from ..errors import RequestError
from ..tensor import QuantTensor
from .graph import Graph, Node, Value
from .slices import column_step

NARROW = 16  # columns: every rank computes rows that have fewer
ALIGN = 256  # columns: x is quantized in so many values at a time, and then as on one device
ELEMENTWISE = ("add", "gate", "activate", "scale", "softcap", "clamp", "shift")
BY_HEAD = ("norm", "rope", "columns", "linear_heads", "join")


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where rows are cut: rank r has the units from bounds[r] to before bounds[r + 1]."""

    units: int
    bounds: tuple[int, ...]

    def columns(self, width: int, rank: int) -> tuple[int, int]:
        """The columns of a rank, of rows of some width.

        >>> Cuts(3, (0, 2, 3)).columns(12, 0)
        (0, 8)
        """
        each = width // self.units
        return self.bounds[rank] * each, self.bounds[rank + 1] * each

    def count(self, heads: int, rank: int) -> int:
        """How many of some heads a rank has."""
        first, end = self.columns(heads, rank)
        return end - first


@dataclass(eq=False)
class Region:
    """Rows that are divided alike, or not at all."""

    values: list[Value] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    makers: list[Node] = field(default_factory=list)  # products that make some of its rows
    readers: list[Node] = field(default_factory=list)  # products that read some
    is_whole: bool = False  # an operation needs all columns
    attention: Node | None = None  # one of its attention layers

    @property
    def kind(self) -> str:
        """Of the heads that are divided."""
        assert self.attention is not None
        return " of K and V" if self.attention.attributes["spec"].kv_heads > 1 else ""

    @property
    def what(self) -> str:
        """For errors."""
        if self.attention is None:
            return f"a feed-forward layer of {self.values[0].width} columns"
        return f"the attention of layer {self.attention.attributes['layer']}"


def find_cuts(graph: Graph, ranks: int) -> dict[Value, Cuts]:
    """The rows that are divided, and where they are cut."""
    regions = _find_regions(graph)
    divided = dict[Region, bool]()
    cuts = dict[Value, Cuts]()
    for region in dict.fromkeys(regions.values()):
        if _is_divided(region, regions, divided):
            cuts |= dict.fromkeys(region.values, _cut(region, ranks))
    for node in graph.nodes:
        if node.operation == "attend" and node.outputs[0] not in cuts:
            layer, is_one = node.attributes["layer"], node.inputs[0].width == node.attributes["spec"].k_dim
            reason = "it has one head" if is_one else "what is done with its heads needs all of them"
            raise RequestError(
                f"tensor_parallel={ranks}: the attention of layer {layer} cannot be divided, since {reason}"
            )
    return cuts


def cut_evenly(count: int, step: int, ranks: int, what: str, limits: Sequence[str] = ()) -> Cuts:
    """Units for each rank, as evenly as possible, cut at multiples of `step`.

    >>> cut_evenly(7, 2, 2, "a row").bounds
    (0, 4, 7)
    """
    groups = -(-count // step)
    if groups < ranks:
        most = f"can be divided into {groups} parts at most" if groups > 1 else "cannot be divided"
        reason = f" ({'; '.join(limits)})" if limits else ""
        raise RequestError(f"tensor_parallel={ranks}: {what} {most}{reason}")
    return Cuts(count, tuple(min(count, -(-groups * rank // ranks) * step) for rank in range(ranks + 1)))


def cut_experts(node: Node, ranks: int) -> Cuts:
    """Where the hidden columns of experts are cut."""
    down: QuantTensor = node.attributes["down"]
    columns, step = down.shape[-1], column_step(down.format)
    what = f"a layer of experts of {columns} columns"
    return cut_evenly(columns, _aligned(columns, step, ranks), ranks, what, [_limit(down)])


def _limit(w: QuantTensor) -> str:
    return f"{w.format} is cut between blocks of {column_step(w.format)} columns"


def _aligned(columns: int, step: int, ranks: int) -> int:
    """A multiple of a step at which columns are better cut, if there are enough of them."""
    wide = lcm(step, ALIGN)
    return wide if columns % wide == 0 and columns // wide >= ranks else step


def _cut(region: Region, ranks: int) -> Cuts:
    widths = [value.width for value in region.values]
    units = reduce(gcd, region.heads or widths)
    steps, limits = [1], list[str]()
    for node in region.readers:
        width, step = node.inputs[0].width, column_step(node.attributes["w"].format)
        wide = _aligned(width, step, ranks) if not region.heads else step
        steps.append(wide // gcd(wide, width // units))
        if step > 1:
            limits.append(_limit(node.attributes["w"]))
    if region.attention:
        limits.insert(0, f"{units} heads{region.kind}")
    return cut_evenly(units, lcm(*steps), ranks, region.what, [*dict.fromkeys(limits)])


def _is_divided(region: Region, regions: dict[Value, Region], divided: dict[Region, bool]) -> bool:
    """Whether products make and read it, and all that they are made of is whole."""
    if region not in divided:
        divided[region] = False  # for a circle
        sources = (regions[node.inputs[0]] for node in region.makers)
        is_wide = region.attention is not None or max(value.width for value in region.values) >= NARROW
        is_useful = bool(region.attention or region.makers) and bool(region.readers) and not region.is_whole and is_wide
        divided[region] = is_useful and not any(_is_divided(one, regions, divided) for one in sources)
    return divided[region]


def _find_regions(graph: Graph) -> dict[Value, Region]:
    joined = _Joined()
    for node in graph.nodes:
        _read(node, joined)
    joined.mark(graph.result)
    regions: dict[Value, Region] = {}
    by_root: dict[Any, Region] = {}
    for value in joined.values:
        root = joined.root(value)
        regions[value] = by_root.setdefault(root, Region())
        regions[value].values.append(value)
    for value in joined.whole:
        regions[value].is_whole = True
    for value, heads in joined.heads:
        regions[value].heads.append(heads)
    for node in graph.nodes:
        if node.operation == "linear":
            regions[node.outputs[0]].makers.append(node)
            regions[node.inputs[0]].readers.append(node)
        if node.operation == "attend":
            regions[node.outputs[0]].attention = node
    return regions


class _Joined:
    """Values that must be cut alike: a union-find."""

    def __init__(self) -> None:
        self._parents: dict[Any, Any] = {}
        self.values: dict[Value, None] = {}
        self.whole: list[Value] = []
        self.heads: list[tuple[Value, int]] = []

    def root(self, key: Any) -> Any:
        while self._parents.setdefault(key, key) != key:
            key = self._parents[key]
        return key

    def link(self, keys: Sequence[Any]) -> None:
        for one in keys[1:]:
            self._parents[self.root(one)] = self.root(keys[0])

    def mark(self, *values: Value) -> None:
        """They cannot be cut."""
        self.whole += values

    def by_head(self, values: Sequence[Value], heads: int) -> None:
        """They are cut between heads."""
        self.link(values)
        self.heads += [(value, heads) for value in values]

    def add(self, values: Iterable[Value]) -> None:
        self.values |= dict.fromkeys(values)


def _read(node: Node, joined: _Joined) -> None:
    """What an operation demands of its rows."""
    values = *node.inputs, *node.outputs
    joined.add(values)
    heads = _heads(node)
    if node.operation in ELEMENTWISE:
        joined.link(values)
    elif node.operation == "attend":
        _read_attention(node, joined)
    elif node.operation == "join" and node.attributes["b_heads"] == 1 and heads > 1:
        a, b, out = values
        joined.by_head((a, out), heads)
        joined.mark(b)
    elif node.operation in BY_HEAD and heads > 1:
        joined.by_head(values, heads)
    elif node.operation in ("norm", "layer_norm"):
        joined.mark(*node.inputs)  # the result can be cut
    elif node.operation != "linear":
        joined.mark(*values)


def _heads(node: Node) -> int:
    return len(node.attributes["w"]) if node.operation == "linear_heads" else node.attributes.get("heads", 1)


def _read_attention(node: Node, joined: _Joined) -> None:
    """A head of K and V goes with the heads of q that read it; a single one is everywhere."""
    q, k, v, out = *node.inputs, *node.outputs
    kv_heads = node.attributes["spec"].kv_heads
    if kv_heads == 1:
        joined.by_head((q, out), q.width // node.attributes["spec"].k_dim)
        joined.mark(k, v)
    else:
        joined.by_head((q, k, v, out), kv_heads)
        joined.link((q, ("layer", node.attributes["layer"])))  # others may read what it keeps
