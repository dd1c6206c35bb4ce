"""What guesses further tokens beside a model: a layer that is given rows of the model, and the tokens after them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..arrays import Ints
from ..ops.graph import Graph, Node, Value
from ..ops.passes import hidden, logits_nodes
from ..ops.recorder import Ops, record
from ..ops.specs import LayerSpec


@dataclass(frozen=True, slots=True)
class DraftGraphs:
    """A model in parts, and the layer beside it.

    Args:
        rows: The model's layers: the rows that `head` takes, and behind them what the layer takes, if that is something
            else.
        head: Logits of rows, with the norm before them: a device may make one kernel of both, which adds in another
            order.
        layer: Rows of its own, from rows of the model or of its own, and tokens.
        own_head: Logits of those.
        tokens: The model's token for each that `own_head` knows, if they differ.
    """

    rows: Graph
    head: Graph
    layer: Graph
    own_head: Graph
    tokens: Ints | None = None

    @property
    def specs(self) -> tuple[LayerSpec, ...]:
        """What each layer keeps of a sequence, this one after those of the model."""
        return self.rows.specs + self.layer.specs[len(self.rows.specs) :]


def mtp_graphs(model: Graph, forward: Callable[[Ops], Value]) -> DraftGraphs:
    """Those of a layer that takes hidden rows, and gives rows from which logits are computed."""
    graph = record(forward)
    return DraftGraphs(_rows_graph(model), head_graph(model), hidden(graph), head_graph(graph, with_norm=False))


def _rows_graph(graph: Graph) -> Graph:
    """The layers of a model: rows before the final norm, and behind them those after it."""
    after = hidden(graph).result
    before = _head_nodes(graph)[0].inputs[0]
    if before is after:
        return hidden(graph)
    both = replace(after, width=before.width + after.width)
    join = Node("join", (before, after), (both,), {"heads": 1, "b_heads": None})
    return replace(hidden(graph), nodes=(*hidden(graph).nodes, join), result=both)


def _head_nodes(graph: Graph) -> list[Node]:
    """The output head, and the norm before it, if there is one."""
    tail = logits_nodes(graph)
    norm = graph.makers().get(tail[0].inputs[0])
    return [norm, *tail] if norm is not None and norm.operation in ("norm", "layer_norm") else tail


def head_graph(graph: Graph, with_norm: bool = True) -> Graph:
    """The output head alone: it is given rows before the final norm, or after it."""
    tail = _head_nodes(graph) if with_norm else logits_nodes(graph)
    return replace(graph, nodes=(Node("given", (), (tail[0].inputs[0],), {}), *tail), specs=())
