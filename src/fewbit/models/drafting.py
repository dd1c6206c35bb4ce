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
        rows: The model's layers: hidden rows, and behind them what the layer takes, if that is something else.
        head: Logits of hidden rows.
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
    return DraftGraphs(hidden(model), head_graph(model), hidden(graph), head_graph(graph))


def head_graph(graph: Graph) -> Graph:
    """The output head alone: it is given the rows that logits are computed from."""
    tail = logits_nodes(graph)
    return replace(graph, nodes=(Node("given", (), (tail[0].inputs[0],), {}), *tail), specs=())
