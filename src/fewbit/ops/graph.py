"""The graph of a model's step: nodes, the values between them, and the table of operations.

A model's `forward` is called once, with a `Recorder` (`ops/recorder.py`, where operations are defined). Each call of an
operation becomes a `Node`, and gives a `Value`: the rows that a step will hold there, one for each token. Passes
(`ops/passes.py`) rewrite the graph, and devices execute it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..arrays import Floats
from .specs import LayerSpec


class Adder(Protocol):
    """What values are added by: the recorder that made them."""

    def add(self, a: Value, b: Value) -> Value: ...


@dataclass(frozen=True, eq=False, slots=True)
class Rope:
    """Rotary positions: pair i of a head is rotated by position * inv_freq[i]; cosines and sines are scaled."""

    inv_freq: Floats
    scale: float = 1.0
    neox: bool = False  # a pair is (i, i + n / 2), else neighbours
    axes: tuple[int, ...] | None = None  # for each pair, which of a token's positions; None: there is one


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """Rows of the same width, one for each token of a step; `a + b` adds two values."""

    recorder: Adder = field(repr=False)
    width: int
    logits_only: bool = False  # only rows whose logits are needed

    def __add__(self, other: Value) -> Value:
        return self.recorder.add(self, other)


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One operation of a graph."""

    operation: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True, eq=False, slots=True)
class Graph:
    """The operations of a step, in an order in which they can run, and its result."""

    nodes: tuple[Node, ...]
    result: Value
    specs: tuple[LayerSpec, ...]  # what each layer keeps of a sequence
    has_head: bool = True  # its result are logits; else hidden rows

    @property
    def is_causal(self) -> bool:
        """Whether no token sees a later one, so that a prompt can be run in chunks."""
        return all(node.attributes["causal"] for node in self.nodes if node.operation == "attend")

    def uses(self) -> Counter[Value]:
        """How often each value is read; the result is read once more, at the end."""
        return Counter([self.result, *(value for node in self.nodes for value in node.inputs)])

    def makers(self) -> dict[Value, Node]:
        """The node that makes each value."""
        return {value: node for node in self.nodes for value in node.outputs}


@dataclass(frozen=True, slots=True)
class Operation:
    """An entry of the table. `all_rows`: it depends on other tokens or on positions, so it needs all rows."""

    name: str
    inputs: tuple[str, ...]
    attributes: tuple[str, ...]
    all_rows: bool = False


# Those of `Recorder` join when it is defined; these are made by passes only.
OPERATIONS: dict[str, Operation] = {
    "given": Operation("given", (), (), all_rows=True),
    "gather": Operation("gather", ("x",), ()),
    "linears": Operation("linears", ("x", "residual"), ("terms", "norm")),
    "gated": Operation("gated", ("x",), ("gate", "up", "kind", "norm")),
    "all_reduce": Operation("all_reduce", ("x",), ("group", "rank")),
    "all_gather": Operation("all_gather", ("x",), ("group", "rank", "bounds")),
}
