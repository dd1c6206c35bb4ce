"""Low-rank terms of products (LoRA): what an adapter adds to a product, and the pass that puts it into a graph.

A graph without adapters has no trace of them. `add_terms` makes another one, in which an operation after each product
that some adapter changes adds `weight * scale * x @ a.T @ b.T` to its rows, in place. The adapters of rows, and their
weights, come with each step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Floats, Ints
from ..tensor import QuantTensor
from .graph import Graph, Node, Value

Reals = npt.NDArray[Any]  # float32, float16, or bf16 as its 16 bits
KINDS = {np.dtype(np.float32): "f32", np.dtype(np.float16): "f16", np.dtype(np.uint16): "bf16"}

ADDED = frozenset({"low_rank", "low_rank_rows"})  # operations of `add_terms`, the last of all passes
ProductKey = tuple[str, int]  # "linear" or "embed", and the `id` of the matrix
Terms = Mapping[ProductKey, "LowRank"]  # what an adapter adds, by product


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """What an adapter adds to a product: `scale * x @ a.T @ b.T`.

    Args:
        a: (r, columns); for an embedding table (tokens, r). None: the identity.
        b: (rows, r). None: the identity.
        scale: Factor of the term.
        n: Rows of the product.
        k: Columns of the product; of an embedding table its tokens.
    """

    a: Reals | None
    b: Reals | None
    scale: float
    n: int
    k: int

    @property
    def rank(self) -> int:
        return self.k if self.a is None else self.n if self.b is None else self.b.shape[1]

    @property
    def kind(self) -> str:
        """The type of its numbers."""
        given = self.a if self.a is not None else self.b
        return "f32" if given is None else KINDS[given.dtype]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.a, self.b) if part is not None)


@dataclass(frozen=True, slots=True, eq=False)
class AdapterRows:
    """An adapter in a step, in the form that the device has: the rows that use it, in ascending order, and how much."""

    adapter: Any
    rows: Ints
    weights: Floats
    logits_rows: Ints  # the same among the rows whose logits are wanted
    logits_weights: Floats


def to_floats(values: Reals) -> Floats:
    """
    >>> to_floats(np.array([0x3F80], np.uint16)).tolist()
    [1.0]
    """
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return np.asarray(values, np.float32)


def add_terms(graph: Graph, keys: Collection[ProductKey], split: bool = True) -> Graph:
    """The graph with an operation after each product that adapters change. It is fused or not; nothing is fused later.

    Args:
        graph: The operations of a step.
        keys: The products that some adapter changes.
        split: Make operations of their own of a norm and a gate that a changed product has. Else the terms get the norm
            too, and a gated product gets `changes`, the keys of its two matrices, and adds their terms itself.
    """
    rewrites = _REWRITES if split else _WHOLE
    nodes: list[Node] = []
    for node in graph.nodes:
        rewrite = rewrites.get(node.operation)
        nodes += [node] if rewrite is None else rewrite(node, keys)
    return replace(graph, nodes=tuple(nodes))


def product_keys(graph: Graph) -> list[ProductKey]:
    """All products that adapters can change, of a graph that is not fused."""
    names = {"linear": "w", "embed": "table"}
    found = ((node.operation, id(node.attributes[names[node.operation]])) for node in graph.nodes
             if node.operation in names)  # fmt: skip
    return list(dict.fromkeys(found))


def _embed(node: Node, keys: Collection[ProductKey]) -> list[Node]:
    key = "embed", id(node.attributes["table"])
    return [node, Node("low_rank_rows", node.outputs, (), {"product": key})] if key in keys else [node]


def _linear(node: Node, keys: Collection[ProductKey]) -> list[Node]:
    return [node, *_low_rank(node.inputs[0], node.outputs, [node.attributes["w"]], keys)]


def _linears(node: Node, keys: Collection[ProductKey]) -> list[Node]:
    added = _low_rank(node.inputs[0], node.outputs, [w for w, _ in node.attributes["terms"]], keys)
    if not added:
        return [node]
    before, x = _unfused_norm(node)
    node = replace(node, inputs=(x, *node.inputs[1:]), attributes={**node.attributes, "norm": None})
    return [*before, node, *(replace(one, inputs=(x, *one.inputs[1:])) for one in added)]


def _gated(node: Node, keys: Collection[ProductKey]) -> list[Node]:
    """Gate and up as two products, if an adapter changes one of them: its term comes before the gate."""
    matrices = [node.attributes[name] for name in ("gate", "up")]
    if not _used(matrices, keys):
        return [node]
    (out,) = node.outputs
    parts = tuple(replace(out, width=w.shape[0]) for w in matrices)
    attributes = {"terms": tuple((w, None) for w in matrices), "norm": node.attributes["norm"]}
    products = _linears(Node("linears", node.inputs, parts, attributes), keys)
    return [*products, Node("gate", parts, node.outputs, {"kind": node.attributes["kind"]})]


def _gated_whole(node: Node, keys: Collection[ProductKey]) -> list[Node]:
    matrices = [node.attributes[name] for name in ("gate", "up")]
    if not _used(matrices, keys):
        return [node]
    changes = tuple(("linear", id(w)) for w in matrices)
    return [replace(node, attributes={**node.attributes, "changes": changes})]


def _linears_whole(node: Node, keys: Collection[ProductKey]) -> list[Node]:
    added = _low_rank(node.inputs[0], node.outputs, [w for w, _ in node.attributes["terms"]], keys)
    norm = node.attributes["norm"]
    return [node, *(replace(one, attributes={**one.attributes, "norm": norm}) for one in added)]


_REWRITES = {"embed": _embed, "linear": _linear, "linears": _linears, "gated": _gated}
_WHOLE = {"embed": _embed, "linear": _linear, "linears": _linears_whole, "gated": _gated_whole}


def _unfused_norm(node: Node) -> tuple[list[Node], Value]:
    """The norm of a node as an operation of its own, and the rows that the node then reads."""
    x, norm = node.inputs[0], node.attributes["norm"]
    if norm is None:
        return [], x
    normed = replace(x)
    return [Node("norm", (x,), (normed,), {"weight": norm[0], "eps": norm[1], "heads": 1})], normed


def _low_rank(
    x: Value, outputs: tuple[Value, ...], matrices: list[QuantTensor], keys: Collection[ProductKey]
) -> list[Node]:
    used = _used(matrices, keys)
    if not used:
        return []
    changed = tuple(outputs[i] for i in used)
    products = tuple(("linear", id(matrices[i])) for i in used)
    return [Node("low_rank", (x, *changed), (), {"products": products, "logits_only": x.logits_only})]


def _used(matrices: list[QuantTensor], keys: Collection[ProductKey]) -> list[int]:
    return [i for i, w in enumerate(matrices) if ("linear", id(w)) in keys]
