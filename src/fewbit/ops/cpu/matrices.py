"""Packed matrices, and products with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _native
from ...arrays import Arena, Bytes, Floats, bytes_for, to_floats
from ...errors import ArgumentError, DtypeError, FormatError, ShapeError
from ...formats import K_BLOCK, Format, get
from ...interleave import ROWS
from ...tensor import QuantTensor
from ..arguments import (
    as_many,
    bias_array,
    chosen_activations,
    common_columns,
    count_rows,
    expect_tensor,
    importance_array,
    match,
    refuse_overflow,
    refuse_shared,
    refuse_unfit,
    residual_array,
    result_array,
    to_list,
)
from ..shape_rules import FUSED_GATES
from .machine import checked_threads, inputs_of, number, packed


class Activations:
    """Inputs packed once, for many `linear` calls. Made by `quantize_activations`.

    Attributes:
        shape: (..., k), as the inputs had it.
        kind: "q8" (8 bits, a scale for every 32 values), "q16" (16 bits), "bf16" (matrix tiles) or "f32".
    """

    __slots__ = ("_data", "kind", "shape")

    def __init__(self, data: npt.NDArray[Any], shape: tuple[int, ...], kind: str) -> None:
        self._data = data
        self.shape = shape
        self.kind = kind

    def dequantize(self) -> Floats:
        """The values that the activations stand for."""
        if self.kind == "f32":
            return np.array(self._data, np.float32).reshape(self.shape)
        out = np.empty((count_rows(self.shape), self.shape[-1]), np.float32)
        if self.kind == "bf16":
            _native.unpack_tiles(self._data, out)
        else:
            _native.decode_activations(self._data, self.kind == "q16", out)
        return out.reshape(self.shape)

    def __repr__(self) -> str:
        return f"Activations({self.kind}, {'x'.join(map(str, self.shape))})"


def quantize(x: Any, format: str | Format, importance: Any = None, threads: int | None = None) -> QuantTensor:
    """Pack an array in a format. The last dimension is cut into blocks.

    Args:
        x: Array of (..., k) values: NumPy, DLPack or anything that `numpy.asarray` takes. All must be finite.
        format: Name such as "q4_k" or "int4_group:group=64", or a `Format`. `fb.formats()` lists them.
        importance: A weight for each of the k columns, or for each value. The encoder then searches for the scales with
            the least sum(importance * error ** 2).
        threads: Number of threads. Defaults to all usable cores.

    Returns:
        The packed tensor, with the shape of x.

    Raises:
        FormatError: The format is unknown.
        DataError: x holds NaN, infinity or a value too large for the format's scales.

    >>> import numpy as np
    >>> quantize(np.ones((2, 64), np.float32), "q4_0").nbytes
    72
    """
    fmt = get(format)
    values = to_floats(x, "weights")
    if values.ndim == 0:
        raise ShapeError("weights need at least one dimension, a single number was given")
    rows = values.reshape(count_rows(values.shape), values.shape[-1])
    refuse_unfit(rows, fmt, importance is not None)
    weights = None if importance is None else importance_array(importance, *rows.shape)
    data = encode(fmt, rows, weights, threads)
    refuse_overflow(rows, fmt, data)
    return QuantTensor(data.reshape(-1), values.shape, fmt)


def encode(fmt: Format, x: Floats, importance: Floats | None = None, threads: int | None = None) -> Bytes:
    """Rows of finite floats, (n, k), to packed rows, (n, row bytes); importance is (k,) or (n, k)."""
    n, k = x.shape
    if fmt.per_tensor and n and k:
        from ...formats.encode import spread

        tiled = None if importance is None else np.broadcast_to(importance, (n, k)).reshape(-1)
        return spread(fmt, encode(replace(fmt, per_tensor=False), x.reshape(1, n * k), tiled, threads), n, k)
    out = bytes_for(n * fmt.row_bytes(k)).reshape(n, fmt.row_bytes(k))
    weights = None if importance is None else np.ascontiguousarray(importance).reshape(-1)
    _native.encode(number(fmt), fmt.group, np.ascontiguousarray(x), weights, out.reshape(-1), checked_threads(threads))
    return out


def decode(fmt: Format, data: Bytes, k: int, threads: int | None = None) -> Floats:
    """Packed rows, (n, row bytes), to floats, (n, k)."""
    n = len(data)
    out = np.empty((n, k), np.float32)
    _native.decode(number(fmt), fmt.group, np.ascontiguousarray(data).reshape(-1), n, k, out, checked_threads(threads))
    return out


def repack(w: QuantTensor, threads: int | None = None, arena: Arena | None = None) -> QuantTensor:
    """Interleave the rows of a matrix, as this machine's kernels read them fastest.

    16 rows are interleaved in as many bytes. Products with 1 to 16 rows of inputs are then 1.1 to 1.5 times as fast,
    with 17 to 64 about 10% slower. The values are the same; sums are added in another order, so products differ in
    their last bits. w itself is returned where its rows cannot be interleaved: that takes AVX2 or NEON, a format other
    than the grids of iq1 to iq3, and rows of a multiple of 256 values. With AVX2 and formats of short blocks a multiple
    of 64 will do (q4_1, q5_1 and q8_1: of 32, mxfp4: of 128).

    Args:
        w: A packed matrix, or a stack of them (each is interleaved by itself).
        threads: Number of threads. Defaults to all usable cores.
        arena: Memory for the result. Allocated if not given.

    >>> import numpy as np
    >>> w = quantize(np.ones((32, 512), np.float32), "q4_0")
    >>> repack(w) == w
    True
    """
    expect_tensor(w)
    count = checked_threads(threads)
    if arena is not None and not isinstance(arena, Arena):
        raise DtypeError(f"arena must be an Arena, not {type(arena).__name__}")
    format, group = number(w.format), w.format.group
    if w.layout != "rows" or not _has_sets(w) or not _native.worth_interleaving(format, group, *w.shape[-2:]):
        return w
    out = bytes_for(w.nbytes) if arena is None else arena.take(w.nbytes)
    _native.interleave(format, group, w.stored, w.rows, w.shape[-1], False, out, count)
    return QuantTensor(out, w.shape, w.format, "interleaved16")


def _has_sets(w: QuantTensor) -> bool:
    """Whether sets of 16 rows can be interleaved: in a stack, none may reach into the next matrix."""
    return len(w.shape) == 2 or (len(w.shape) == 3 and w.shape[1] % ROWS == 0)


def quantize_activations(
    x: Any, format: str | Format, threads: int | None = None, activations: str | None = None
) -> Activations:
    """Pack inputs once, to multiply them by several matrices of a format.

    Args:
        x: Array of (..., k) values.
        format: The format of the weights.
        threads: Number of threads. Defaults to all usable cores.
        activations: "int8" or "int16", as for `linear`. For many rows, machines with matrix tiles take bf16.

    >>> import numpy as np
    >>> quantize_activations(np.ones((3, 64), np.float32), "q4_k", activations="int8")
    Activations(q8, 3x64)
    """
    fmt = get(format)
    how = chosen_activations(activations)
    values = to_floats(x, "activations")
    if values.ndim == 0:
        raise ShapeError("activations need at least one dimension, a single number was given")
    rows = values.reshape(count_rows(values.shape), values.shape[-1])
    m, k = rows.shape
    kind = inputs_of(fmt, k, m, activations=how)
    if kind == "f32":
        return Activations(values, values.shape, kind)
    if kind == "bf16":
        data = _aligned(_native.tile_bytes(m, k))
        _native.pack_tiles(rows, data, checked_threads(threads))
    else:
        twice = kind == "q16"
        data = _aligned((m + m * twice) * -(-k // K_BLOCK) * _native.activation_bytes)
        _native.quantize_activations(rows, twice, data, checked_threads(threads))
    return Activations(data, values.shape, kind)


def linear(
    x: Any,
    w: QuantTensor,
    out: Floats | None = None,
    threads: int | None = None,
    exact: bool = False,
    *,
    bias: Any = None,
    residual: Any = None,
    activations: str | None = None,
) -> Floats:
    """x @ w.T + bias + residual, with w decoded inside the dot products.

    The result is the same for any number of threads. If w is on an NVIDIA GPU (`w.to("cuda")`), x may be in host memory
    or on the GPU, and the result is on the GPU. With `w.to("webgpu")` both are in host memory.

    Args:
        x: Inputs of (..., k) values, or what `quantize_activations` made of them.
        w: Packed matrix of (n, k).
        out: Float32 array of (..., n) for the result. Allocated if not given.
        threads: Number of threads. Defaults to all usable cores.
        exact: The same as `activations="exact"`.
        bias: Array of (n,), added to each row of the result.
        residual: Array of (..., n), added to the result.
        activations: How x is rounded. "int8": 8 bits, a scale for every 32 values; the RMS error of a product is 0.5%.
            "int16": about 250x lower error, 1-40% slower for one row. "exact": float32, slow. "f16": GPUs only. For
            many rows, machines with matrix tiles take bf16 instead of int8 and int16. Defaults to "int16" for one row
            on instruction sets where that costs less than 15% (AVX-512, AMX), else to "int8".

    Returns:
        Float32 array of (..., n).

    >>> import numpy as np
    >>> x, w = np.linspace(0, 1, 64, dtype=np.float32), quantize(np.eye(64, dtype=np.float32), "q8_0")
    >>> for a in ("int8", "int16", "exact"):
    ...     print(a, bool(abs(linear(x, w, activations=a) - x).max() < 1e-3))
    int8 False
    int16 True
    exact True
    """
    if not isinstance(w, QuantTensor) and hasattr(w, "linear"):
        return _linear_there(x, w, out, threads, exact, bias=bias, residual=residual, activations=activations)
    activations = chosen_activations(activations, exact)
    if bias is None and residual is None and type(x) is np.ndarray and type(w) is QuantTensor:
        done = _plain_linear(x, w, out, threads, activations)
        if done is not None:
            return done
    outs = None if out is None else [out]
    return linear_many(x, [w], outs, threads, biases=[bias], residuals=[residual], activations=activations)[0]


def _linear_there(x: Any, w: Any, out: Any, threads: int | None, exact: bool, **options: Any) -> Any:
    """A product with weights on another device."""
    if threads is not None or exact:
        raise ArgumentError("threads and exact are for weights in host memory, w is on a GPU")
    return w.linear(x, out, **options)


def _plain_linear(
    x: npt.NDArray[Any], w: QuantTensor, out: Floats | None, threads: int | None, activations: str | None
) -> Floats | None:
    """The usual case with as little Python as can be; None: it is not the usual case."""
    if x.dtype != np.float32 or x.ndim != 2 or not x.flags.c_contiguous or len(w.shape) != 2:
        return None
    m, k = x.shape
    n, wanted = w.shape
    if k != wanted:
        return None
    if out is None:
        out = np.empty((m, n), np.float32)
    elif type(out) is not np.ndarray or out.shape != (m, n) or out.dtype != np.float32 or not out.flags.carray:
        return None
    fmt, mixed = w.format, w.layout == "interleaved16"
    try:
        _native.linear(number(fmt), fmt.group, w.stored, n, mixed, x, out, checked_threads(threads), activations)
    except ValueError:  # out overlaps an input: the long way says which
        return None
    return out


def linear_many(
    x: Any,
    weights: Sequence[QuantTensor],
    outs: Sequence[Floats | None] | None = None,
    threads: int | None = None,
    exact: bool = False,
    *,
    biases: Sequence[Any] | None = None,
    residuals: Sequence[Any] | None = None,
    activations: str | None = None,
) -> list[Floats]:
    """Several products of the same inputs in one call: x is packed once, and threads wait for each other once.

    Args:
        x: Inputs of (..., k) values, or what `quantize_activations` made of them.
        weights: Packed matrices of (n, k); n may differ.
        outs: A float32 array or None for each product.
        threads: Number of threads. Defaults to all usable cores.
        exact: The same as `activations="exact"`.
        biases: An array of (n,) or None for each product.
        residuals: An array of (..., n) or None for each product.
        activations: "int8", "int16" or "exact", as for `linear`.

    Returns:
        A float32 array of (..., n) for each matrix.

    >>> import numpy as np
    >>> q, k = (quantize(np.ones((n, 64), np.float32), "q4_0") for n in (3, 2))
    >>> [y.shape for y in linear_many(np.ones((5, 64), np.float32), [q, k])]
    [(5, 3), (5, 2)]
    """
    count = len(to_list(weights, "weights"))
    if count == 0:
        return []
    k = common_columns(weights)
    how = chosen_activations(activations, exact)
    shape, data, kind = _inputs(x, k, how)
    leading, m = shape[:-1], count_rows(shape)
    inputs = [data, *(w.stored for w in weights)]
    given = zip(as_many(outs, count, "outs"), weights, strict=True)
    results = [result_array(out, leading, w.shape[0], *inputs) for out, w in given]
    refuse_shared(results)
    every = zip(as_many(biases, count, "biases"), as_many(residuals, count, "residuals"), results, strict=True)
    added = [
        (bias_array(bias, y.shape[-1], results), residual_array(residual, y, results)) for bias, residual, y in every
    ]
    _native.linear_many(
        [packed(w) for w in weights], data, kind, m, k, [y.reshape(m, y.shape[-1]) for y in results],
        [bias for bias, _ in added], [None if r is None else r.reshape(m, r.shape[-1]) for _, r in added],
        checked_threads(threads), how,
    )  # fmt: skip
    return results


def linear_gated(
    x: Any,
    gate: QuantTensor,
    up: QuantTensor,
    activation: str = "silu",
    out: Floats | None = None,
    threads: int | None = None,
    exact: bool = False,
    *,
    activations: str | None = None,
) -> Floats:
    """activation(x @ gate.T) * (x @ up.T) in one call: the first half of a gated feed-forward layer.

    Args:
        x: Inputs of (..., k) values, or what `quantize_activations` made of them.
        gate: Packed matrix of (n, k).
        up: Packed matrix of (n, k).
        activation: "silu", "gelu", "gelu_tanh" or "relu".
        out: Float32 array of (..., n) for the result. Allocated if not given.
        threads: Number of threads. Defaults to all usable cores.
        exact: The same as `activations="exact"`.
        activations: "int8", "int16" or "exact", as for `linear`.

    >>> import numpy as np
    >>> one = quantize(np.ones((2, 32), np.float32), "q8_0")
    >>> linear_gated(np.ones(32, np.float32), one, one, "relu", exact=True).round().tolist()
    [1024.0, 1024.0]
    """
    if not isinstance(activation, str) or activation not in FUSED_GATES:
        raise ArgumentError(f"unknown activation {activation!r}; there are: {', '.join(FUSED_GATES)}")
    k = common_columns([gate, up])
    if gate.shape[0] != up.shape[0]:
        raise ShapeError(f"gate and up must have as many rows; gate has {gate.shape[0]}, up has {up.shape[0]}")
    how = chosen_activations(activations, exact)
    shape, data, kind = _inputs(x, k, how)
    m, n = count_rows(shape), gate.shape[0]
    result = result_array(out, shape[:-1], n, data, gate.stored, up.stored)
    _native.linear_gated(
        packed(gate), packed(up), activation, data, kind, m, k, result.reshape(m, n), checked_threads(threads), how
    )
    return result


PACKED_FOR = {"q8": (None, "int8"), "q16": (None, "int16"), "bf16": (None, "int8", "int16")}


def _inputs(x: Any, k: int, activations: str | None) -> tuple[tuple[int, ...], npt.NDArray[Any], str]:
    """Shape, data and kind of the inputs."""
    if isinstance(x, Activations):
        match(x.shape, k)
        if activations not in PACKED_FOR.get(x.kind, (activations,)):
            raise FormatError(f"activations={activations!r} needs float inputs, these activations are {x.kind}")
        return x.shape, x._data.reshape(count_rows(x.shape), k) if x.kind == "f32" else x._data, x.kind
    values = to_floats(x, "x")
    match(values.shape, k)
    return values.shape, values.reshape(count_rows(values.shape), k), "f32"


def _aligned(size: int) -> Bytes:
    raw = np.empty(size + 64, np.uint8)
    first = -raw.ctypes.data % 64
    return raw[first : first + size]
