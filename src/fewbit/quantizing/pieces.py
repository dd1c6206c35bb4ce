"""Tensors in new formats, piece by piece: a few rows are decoded and packed at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ..arrays import Bytes, Floats
from ..errors import DataError, OutOfMemory, ShapeError
from ..files.model import ModelFile
from ..ops.cpu import quantize
from ..tensor import QuantTensor
from .plan import TensorPlan

CHUNK_VALUES = 8 << 20  # decoded to floats at a time

Advance = Callable[[int], None]


def packed_pieces(
    file: ModelFile, plan: TensorPlan, importance: Floats | None, threads: int | None, advance: Advance
) -> Iterator[Bytes]:
    """The bytes of a tensor in its new format; then the memory of the file is released.

    Args:
        file: The model.
        plan: What becomes of the tensor.
        importance: A weight for each column, or (experts, columns).
        threads: Number of threads.
        advance: Called with the number of bytes of the source that are done.
    """
    try:
        tensor = file.tensors[plan.name]
        if tensor.format == plan.format:
            yield tensor.data
            advance(tensor.nbytes)
            return
        for matrix, weights in _matrices(tensor, importance, plan.name):
            step = max(1, CHUNK_VALUES // max(1, tensor.shape[-1]))
            for at in range(0, matrix.rows, step):
                chunk = matrix[at : at + step]
                yield packed_chunk(chunk, plan, weights, threads)
                advance(chunk.nbytes)
    except DataError as error:
        raise DataError(f"{file.path}: tensor {plan.name} cannot be quantized: {error}") from None
    except MemoryError:
        raise OutOfMemory(f"{file.path}: no memory to quantize tensor {plan.name}; close other programs") from None
    finally:
        file.forget(plan.name)


def packed_chunk(chunk: QuantTensor, plan: TensorPlan, importance: Floats | None, threads: int | None) -> Bytes:
    return quantize(chunk.dequantize(), plan.format, importance, threads).data


def as_matrix(tensor: QuantTensor) -> QuantTensor:
    return QuantTensor(tensor.stored, (tensor.rows, tensor.shape[-1]), tensor.format)


def _matrices(
    tensor: QuantTensor, importance: Floats | None, name: str
) -> Iterator[tuple[QuantTensor, Floats | None]]:
    """The rows of a tensor with the importance of its columns: all of them, or expert by expert."""
    matrix, k = as_matrix(tensor), tensor.shape[-1]
    if importance is None:
        yield matrix, None
        return
    weights = np.ascontiguousarray(importance, np.float32).reshape(-1, np.shape(importance)[-1])
    if weights.shape[1] != k or tensor.rows % len(weights):
        raise ShapeError(
            f"the importance of {name} has the shape {np.shape(importance)}, its rows have {k} values; "
            "it belongs to another model"
        )
    rows = tensor.rows // len(weights)
    for expert, one in enumerate(weights):
        yield matrix[expert * rows : (expert + 1) * rows], usable_importance(one)


def usable_importance(weights: Floats) -> Floats | None:
    """None where nothing was measured: an expert that no token chose."""
    return weights if np.isfinite(weights).all() and (weights > 0).any() else None


