"""Which products of many tokens are made in f16: those whose rows and weights are certain to be in its range.

f16 has 8 times the precision of bf16, but its largest value is 65504 and small ones lose bits. Rows after a norm are at
most sqrt(width) times its largest weight, whatever the tokens are. Rows after attention are means of V, which is
multiplied in f16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ..graph import Node, Value
from .fused import Fused

LEAST, MOST = 2.0**-8, 2.0**15  # of the largest value: those 256 times as small are still as precise as in bf16


def many_dtype(node: Node, makers: Mapping[Value, Node], fused: Fused, precise: bool = False) -> str:
    """The type in which a product takes the rows of many tokens: "f16" or "bf16".

    With `precise` rows of any range are taken in f16, scaled where that may be needed ("scaled"), if the weights are in
    its range.
    """
    if not _weights_fit(fused):
        return "bf16"
    if makers[node.inputs[0]].operation == "attend" or _is_normed(node, makers):
        return "f16"
    return "scaled" if precise else "bf16"


def _weights_fit(fused: Fused) -> bool:
    return all(LEAST <= t.largest <= MOST for t in fused.tensors if not t.is_exact)


def _is_normed(node: Node, makers: Mapping[Value, Node]) -> bool:
    """Whether the rows come from a norm, whose weight bounds them."""
    maker, norm, bias = makers[node.inputs[0]], node.attributes.get("norm"), None
    if norm:
        weight, width = norm[0], node.inputs[0].width
    elif maker.operation == "norm":
        weight, width = maker.attributes["weight"], maker.inputs[0].width // maker.attributes["heads"]
    elif maker.operation == "layer_norm":
        weight, width, bias = maker.attributes["weight"], maker.inputs[0].width, maker.attributes["bias"]
    else:
        return False
    most, added = float(np.abs(weight).max()), 0.0 if bias is None else float(np.abs(bias).max())
    return most >= LEAST and math.sqrt(width) * most + added <= MOST
