"""How large the inputs of a matrix can be expected to be, from other weights alone.

The inner columns of a feed-forward layer differ by orders of magnitude: each is `silu(gate @ x) * (up @ x)`, and the
rows of gate and up have very different lengths. With normed inputs x that are otherwise anything, the mean square of
each column follows from those lengths. Inputs that come from a norm are far from that, so nothing is said of them.
"""

from __future__ import annotations

import re

import numpy as np

from ..arrays import Floats
from ..files.model import ModelFile
from .plan import TensorPlan

CHUNK_VALUES = 8 << 20  # decoded to floats at a time
DOWN = re.compile(r"(?P<block>.*\.)ffn_down(?P<kind>|_exps|_shexp|_chexps)\.weight$")
POINTS = np.linspace(-6, 6, 97, dtype=np.float32)  # of a normal distribution, in deviations


def expected_squares(file: ModelFile, plan: TensorPlan) -> Floats | None:
    """The mean square of each input, relative to their mean, (matrices, columns), for the second half of a gated
    feed-forward layer; None for other tensors."""
    found = DOWN.fullmatch(plan.name)
    if found is None:
        return None
    block, kind = found["block"], found["kind"]
    lengths = _gate_and_up(file, block, kind, plan)
    if lengths is None:
        return None
    squares = _silu_squares(np.sqrt(lengths[0])) * lengths[1]
    means = squares.mean(axis=1, keepdims=True)
    return squares / means if np.isfinite(squares).all() and (means > 0).all() else None


def _gate_and_up(file: ModelFile, block: str, kind: str, plan: TensorPlan) -> tuple[Floats, Floats] | None:
    """The variance of each output of gate and up, (matrices, columns); they may be one tensor."""
    columns, count = plan.shape[-1], int(np.prod(plan.shape[:-2]))
    gate, up, both = (f"{block}ffn_{part}{kind}.weight" for part in ("gate", "up", "gate_up"))
    both = both if both in file.infos else up
    if gate in file.infos and up in file.infos:
        parts = [_variances(file, name, block, kind) for name in (gate, up)]
    elif both in file.infos:
        parts = np.split(_variances(file, both, block, kind).reshape(count, -1), 2, axis=1)
    else:
        return None
    if any(part.size != count * columns for part in parts):  # not gated, or not of this matrix
        return None
    first, second = (np.maximum(part.reshape(count, columns), np.finfo(np.float32).tiny) for part in parts)
    return first, second


def _variances(file: ModelFile, name: str, block: str, kind: str) -> Floats:
    """The variance of each row's product with normed inputs."""
    tensor = file.tensors[name]
    width = tensor.shape[-1]
    norm = f"{block}ffn_norm.weight"
    gains = file.tensors[norm].dequantize().reshape(-1) if norm in file.infos else np.ones(width, np.float32)
    if len(gains) != width:
        gains = np.ones(width, np.float32)
    step = max(1, CHUNK_VALUES // width)
    rows = type(tensor)(tensor.stored, (tensor.rows, width), tensor.format)
    parts = [np.square(rows[at : at + step].dequantize() * gains).sum(axis=1) for at in range(0, tensor.rows, step)]
    file.forget(name)
    return np.concatenate(parts)


def _silu_squares(deviations: Floats) -> Floats:
    """The mean square of the SiLU of normal values."""
    weights = np.exp(-(POINTS**2) / 2)
    total = np.zeros_like(deviations)
    for point, weight in zip(POINTS, weights / weights.sum(), strict=True):
        x = point * deviations
        total += weight * np.square(x / (1 + np.exp(-np.clip(x, -80, 80))))
    return total
