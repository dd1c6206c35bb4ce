"""The inputs of matrices, from the rows of a tapped graph. Those of experts are found by routing again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import Floats
from ..ops import numpy as ops
from ..ops.cpu import linear
from ..ops.experts import route
from ..ops.taps import Tap
from ..tensor import QuantTensor

InputKey = tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ProductInputs:
    """The inputs of a matrix, or of a stack of them.

    Args:
        names: Names of the tensors that are multiplied by them.
        key: The same for the same inputs.
        matrices: Number of matrices in a stack, else 1.
        columns: Columns of each.
        rows: Numbers of matrices, and rows that they are multiplied by.
    """

    names: Sequence[str]
    key: InputKey
    matrices: int
    columns: int
    rows: Iterable[tuple[int, Floats]]


def product_inputs(taps: Iterable[Tap], values: Floats | None) -> Iterator[ProductInputs]:
    """The inputs of all products of a step. Rows are computed when they are read.

    Args:
        taps: The products.
        values: Rows of the tapped graph; None if only the sizes are of interest.
    """
    for tap in taps:
        x = (np.zeros((0, 0), np.float32),) * len(tap.columns) if values is None else tap.inputs(values)
        yield from _INPUTS[tap.node.operation](tap, *x)


def _linear(tap: Tap, x: Floats) -> Iterator[ProductInputs]:
    (part,) = tap.columns
    yield ProductInputs([tap.names["w"]], (part.start, part.stop), 1, part.stop - part.start, [(0, x)])


def _linear_heads(tap: Tap, x: Floats) -> Iterator[ProductInputs]:
    (part,), (heads, _, k) = tap.columns, tap.node.attributes["w"].shape
    rows = ((head, x[:, head * k : (head + 1) * k]) for head in range(heads))
    yield ProductInputs([tap.names["w"]], (part.start, part.stop, heads), heads, k, rows)


def _experts(tap: Tap, x: Floats, scores: Floats) -> Iterator[ProductInputs]:
    count, n, k = tap.node.attributes["up"].shape
    before = [tap.names[key] for key in ("gate", "up") if key in tap.names]
    key = tuple(place for part in tap.columns for place in (part.start, part.stop))
    yield ProductInputs(before, (*key, "up"), count, k, _routed(tap, x, scores))
    if "down" in tap.names:
        rows = ((expert, _hidden(tap.node.attributes, expert, inputs)) for expert, inputs in _routed(tap, x, scores))
        yield ProductInputs([tap.names["down"]], (*key, "down"), count, n, rows)


def _routed(tap: Tap, x: Floats, scores: Floats) -> Iterator[tuple[int, Floats]]:
    """The rows that each expert is given."""
    chosen, _ = route(scores, tap.node.attributes["routing"])
    for expert in np.unique(chosen).tolist():
        yield expert, x[(chosen == expert).any(axis=1)]


def _hidden(attributes: Any, expert: int, x: Floats) -> Floats:
    """What the second product of an expert is given."""

    def times(w: QuantTensor, bias: Floats | None) -> Floats:
        y = linear(np.ascontiguousarray(x), w[expert], activations="int16")
        return np.asarray(y if bias is None else y + bias[expert], np.float32)

    up, gate, kind = times(attributes["up"], attributes["up_bias"]), attributes["gate"], attributes["kind"]
    step: Any = None  # no operation of plain rows reads it
    if gate is None:
        return ops.activate(step, up, kind=kind)
    return ops.gate(step, times(gate, attributes["gate_bias"]), up, kind=kind)


_INPUTS: dict[str, Callable[..., Iterator[ProductInputs]]] = {
    "linear": _linear, "linear_heads": _linear_heads, "experts": _experts,
}  # fmt: skip
