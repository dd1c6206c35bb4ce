"""The operations in plain NumPy: slow, obvious, and what every other backend is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..formats import Format
from ..formats.decode import decode
from ..tensor import QuantTensor
from .base import Rope

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


def quantize_activations(x: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """8-bit codes, (m, k), and a scale for every 32 values, (m, groups). A group with NaN or infinity gets scale NaN.

    >>> codes, scales = quantize_activations(np.array([[1.0, -2.0]], np.float32))
    >>> codes.tolist()
    [[64, -127]]
    """
    m, k = x.shape
    groups = -(-k // 32)
    padded = np.zeros((m, groups * 32), np.float32)
    padded[:, :k] = x
    blocks = padded.reshape(m, groups, 32)
    top = np.abs(blocks).max(axis=2)
    finite = np.asarray(np.isfinite(blocks).all(axis=2))
    usable = finite & (top >= np.float32(2.0**-100))
    safe = np.where(usable, top, np.float32(127))
    inverse = np.where(usable, np.float32(127) / safe, np.float32(0))
    scales = np.where(finite, np.where(usable, safe / np.float32(127), np.float32(0)), np.float32(np.nan))
    codes = np.rint(np.where(finite[..., None], blocks, np.float32(0)) * inverse[..., None]).astype(np.int8)
    return codes.reshape(m, groups * 32)[:, :k], scales


def decode_activations(codes: npt.NDArray[np.int8], scales: Floats) -> Floats:
    """The values that 8-bit activations stand for."""
    per_value = np.repeat(scales, 32, axis=1)[:, : codes.shape[1]]
    return codes.astype(np.float32) * per_value


def rounded_activations(x: Floats, activations: str) -> npt.NDArray[np.float64]:
    """The values that are multiplied: "int8", "int16", which is what 8 bits keep and what they keep of the rest, or
    "exact".

    >>> x = np.array([[1.0, -2.0]], np.float32)
    >>> [rounded_activations(x, a)[0, 0].round(5).tolist() for a in ("int8", "int16", "exact")]
    [1.00787, 1.0, 1.0]
    """
    if activations == "exact":
        return x.astype(np.float64)
    kept = decode_activations(*quantize_activations(x))
    if activations == "int8":
        return kept.astype(np.float64)
    return kept.astype(np.float64) + decode_activations(*quantize_activations(x - kept))


def linear(x: Floats, fmt: Format, data: npt.NDArray[np.uint8], activations: str = "exact") -> npt.NDArray[np.float64]:
    """x (m, k) times the transpose of packed rows (n, row bytes), in float64."""
    w = decode(fmt, data, x.shape[1]).astype(np.float64)
    return rounded_activations(x, "exact" if fmt.is_scalar else activations) @ w.T


class Cache(Protocol):
    """What attention needs of a KV cache: `fewbit.KVCache`."""

    def append(self, layer: int, sequences: list[int], k: Floats, v: Floats) -> None: ...

    def attend(
        self,
        layer: int,
        sequences: list[int],
        q: Floats,
        *,
        scale: float,
        window: int,
        softcap: float,
        sinks: Floats | None,
    ) -> Floats: ...


class NumpyOps:
    """The operations of a model's step in plain NumPy, done at once. Weights are decoded, everything is float32."""

    def __init__(
        self,
        tokens: Ints,
        positions: Ints,
        wanted: Ints,
        cache: Cache,
        sequences: list[int],
        dim: int,
        weights: Callable[[QuantTensor], Floats] = QuantTensor.dequantize,
    ) -> None:
        self._tokens, self._positions, self._wanted = tokens, positions, wanted
        self._cache, self._sequences, self._dim = cache, sequences, dim
        self._weights = weights

    def embed(self, table: QuantTensor, scale: float = 1.0) -> Floats:
        return self._weights(table)[self._tokens] * np.float32(scale)

    def norm(self, x: Floats, weight: Floats, eps: float) -> Floats:
        mean = np.mean(x.astype(np.float64) ** 2, axis=1, keepdims=True)
        return np.asarray(x / np.sqrt(mean + eps) * weight, np.float32)

    def linear(self, x: Floats, w: QuantTensor, bias: Floats | None = None) -> Floats:
        y = x @ self._weights(w).T
        return np.asarray(y if bias is None else y + bias, np.float32)

    def gate(self, gate: Floats, up: Floats, kind: str = "silu") -> Floats:
        return np.asarray(GATE_FUNCTIONS[kind](gate.astype(np.float64)) * up, np.float32)

    def rope(self, x: Floats, heads: int, rope: Rope) -> Floats:
        pairs = len(rope.inverse)
        angles = self._positions[:, None, None] * rope.inverse.astype(np.float64)
        cos, sin = (np.float32(rope.scale) * f(angles).astype(np.float32) for f in (np.cos, np.sin))
        out = x.reshape(len(x), heads, -1).copy()
        where = (
            (slice(0, pairs), slice(pairs, 2 * pairs))
            if rope.halves
            else (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2))
        )
        a, b = (out[..., w].copy() for w in where)
        out[..., where[0]] = a * cos - b * sin
        out[..., where[1]] = a * sin + b * cos
        return out.reshape(x.shape)

    def attend(
        self,
        layer: int,
        q: Floats,
        k: Floats,
        v: Floats,
        *,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Floats | None = None,
    ) -> Floats:
        queries, keys, values = (x.reshape(len(x), -1, self._dim) for x in (q, k, v))
        self._cache.append(layer, self._sequences, keys, values)
        y = self._cache.attend(
            layer, self._sequences, queries, scale=scale, window=window, softcap=softcap, sinks=sinks
        )
        return y.reshape(q.shape)

    def wanted(self, x: Floats) -> Floats:
        return x[self._wanted]


def _sigmoid(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, 1) / (1 + e))


_erf = np.vectorize(math.erf, otypes=[np.float64])

GATE_FUNCTIONS: dict[str, Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]] = {
    "silu": lambda x: x * _sigmoid(x),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x * _sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)),
    "relu": lambda x: np.maximum(x, 0),
}
