"""Weights, rows in poisoned memory, and products of one kernel."""

from __future__ import annotations

import numpy as np
import pytest

from fewbit.arrays import Doubles, Floats
from fewbit.formats import Format
from fewbit.formats.decode import decode
from fewbit.ops.webgpu import Gpu
from fewbit.ops.webgpu.device import header
from fewbit.ops.webgpu.multiply import Product, RowsAt, token_class
from fewbit.ops.webgpu.weights import Matrix
from fewbit.tensor import QuantTensor

from ..samples import ALL, random_rows

USUAL = ("q4_0", "q4_k", "int4_group")  # that `make test` runs, too
GUARD = 7.25  # numbers around a result, which stay


def formats(names: tuple[str, ...] = USUAL) -> list[object]:
    """All formats; but for some they are left to `make test-webgpu`."""
    return [pytest.param(fmt, id=str(fmt), marks=[] if fmt.name in names else pytest.mark.exhaustive) for fmt in ALL]


def ragged(fmt: Format) -> tuple[int, int]:
    """Rows and columns that fill no block of threads."""
    if fmt.placement == "row":
        return 21, 118
    return 21, 512 if fmt.block == 256 else 53 if fmt.block == 1 else 3 * fmt.block


def make(fmt: Format, n: int, k: int, seed: int = 1) -> tuple[QuantTensor, Floats]:
    """Weights, and what they stand for."""
    data = random_rows(fmt, n, k, seed)
    with np.errstate(over="ignore", invalid="ignore"):
        return QuantTensor(data.reshape(-1), (n, k), fmt), decode(fmt, data, k)


def rows_of(count: int, k: int, seed: int = 2) -> Floats:
    return np.random.default_rng(seed).standard_normal((count, k), np.float32)


def send_rows(gpu: Gpu, rows: Floats) -> RowsAt:
    """Rows whose padding is NaN, at an offset."""
    count, k = rows.shape
    stride = -(-k // 4) * 4 + 4
    poisoned = np.full(4 + count * stride, np.nan, np.float32)
    poisoned[4:].reshape(count, stride)[:, :k] = rows
    return RowsAt(gpu.array(poisoned), k, stride, 4)


def poisoned_rows(gpu: Gpu, count: int, width: int, offset: int = 5) -> RowsAt:
    """Room for results between numbers that nobody may write, and NaN where results go."""
    stride = width + 3
    values = np.full(offset + count * stride, GUARD, np.float32)
    values[offset:].reshape(count, stride)[:, :width] = np.nan
    return RowsAt(gpu.array(values), width, stride, offset)


def received(gpu: Gpu, rows: RowsAt, count: int) -> Floats:
    """The results; what lies around them was not written."""
    values = gpu.download(rows.memory, 4 * (rows.offset + count * rows.stride)).view(np.float32)
    table = values[rows.offset :].reshape(count, rows.stride)
    assert (values[: rows.offset] == GUARD).all()
    assert (table[:, rows.width :] == GUARD).all()
    return table[:, : rows.width].copy()


def multiplied(gpu: Gpu, matrix: Matrix, x: Floats, **options: object) -> Floats:
    """A product by the kernels for so many rows."""
    count = len(x)
    y = poisoned_rows(gpu, count, matrix.n)
    step = gpu.array(header({"tokens": count}))
    product = Product(matrix, step, send_rows(gpu, x), y, token_class(count), **options)  # type: ignore[arg-type]
    gpu.run(product.dispatches(gpu), {"tokens": count})
    return received(gpu, y, count)


def error(found: Floats, expected: Floats | Doubles) -> float:
    """The largest difference beside the largest number."""
    assert found.shape == expected.shape
    assert np.isfinite(found).all()
    return float(np.abs(found - expected).max(initial=0) / max(np.abs(expected).max(initial=0), 1e-30))
