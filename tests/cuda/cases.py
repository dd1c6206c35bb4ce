"""Formats, shapes and references for the tests on a GPU."""

from __future__ import annotations

import numpy as np

from fewbit.arrays import Bytes, Doubles, Floats
from fewbit.formats import Format, get
from fewbit.formats.decode import decode
from fewbit.ops.cuda import kernels
from fewbit.ops.cuda import kernels_products as products
from fewbit.ops.cuda.kernels import Entry
from fewbit.ops.cuda.layout import tile_columns, tile_layout
from fewbit.ops.cuda.matrices import ACTIVATIONS
from fewbit.ops.cuda.shapes import MAX_SKINNY, gemv_shape, shared_shape, skinny_shape
from fewbit.tensor import QuantTensor

from ..samples import ALL, random_rows

__all__ = ["ACTIVATIONS", "ALL", "MAIN", "QUANTIZED", "entries", "int8_values", "make", "ragged", "relative_error"]

MAIN = [get(name) for name in ("q4_0", "q8_0", "q4_k", "q6_k", "int4_group", "q2_k", "nvfp4", "int8_affine")]
QUANTIZED = [
    get(name)
    for name in (
        "q4_0", "q8_0", "int8", "int4_group", "int4_group:group=64", "int4_group:group=128,zero=true",
        "int4_group:zero=true,scale=f16", "int4_group:scale=f16",
    )
]  # fmt: skip


def ragged(fmt: Format) -> tuple[int, int]:
    """Rows that are no whole tiles, and columns that are none either."""
    if fmt.placement == "row":
        return 37, 1000
    return 37, 1280 if fmt.block == 256 else 1120 if fmt.block <= 32 else 960 if fmt.block == 64 else 1152


def make(fmt: Format, n: int, k: int) -> tuple[QuantTensor, Doubles]:
    """Fresh weights, and what they stand for."""
    data: Bytes = random_rows(fmt, n, k, int(np.random.default_rng(0).integers(1 << 31)))
    values = decode(fmt, data, k)
    return QuantTensor(data.reshape(-1), (n, k), fmt), values.astype(np.float64)


def relative_error(found: Floats, expected: Doubles) -> float:
    return float(np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected))


def int8_values(x: Floats) -> Doubles:
    """One token as 8 bits with a scale for every 32."""
    padded = np.concatenate([x, np.zeros(-len(x) % 32, np.float32)]).reshape(-1, 32)
    scale = (abs(padded).max(axis=1, keepdims=True) / np.float32(127)).astype(np.float32)
    codes = np.rint(padded / np.where(scale == 0, np.float32(1), scale))
    return (codes * scale.astype(np.float64)).reshape(-1)[: len(x)]


def entries(fmt: Format, n: int, k: int, tokens: tuple[int, ...] = (8, 16, 32)) -> list[Entry]:
    """The kernels that products with a tensor take."""
    layout, columns = tile_layout(fmt), tile_columns(k)
    if layout is None:
        found = [kernels.decode_rows(fmt, d) for d in ("f32", "f16", "bf16")]
        return [*found, products.gemv_rows(fmt), kernels.find_largest(fmt)]
    shape = gemv_shape(n, columns, layout)
    found = [kernels.repack(fmt), *(products.gemv((fmt,), columns, shape, parts) for parts in (1, 2))]
    found += [kernels.decode_tiles(fmt, d) for d in ("f32", "f16", "bf16")]
    found += [products.skinny((fmt,), skinny_shape(t, n, columns)) for t in tokens if t <= MAX_SKINNY]
    shared = [shared_shape(t, n, columns, layout.is_light) for t in tokens if t > MAX_SKINNY]
    return found + [products.skinny_shared((fmt,), shape) for shape in shared]
