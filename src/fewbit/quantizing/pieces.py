"""Tensors in new formats, piece by piece: a few rows are decoded and packed at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from ..arrays import Bytes, Floats
from ..errors import DataError, OutOfMemory
from ..files.model import ModelFile
from ..formats import Format
from ..ops.arguments import refuse_unfit
from ..ops.cpu import quantize
from ..tensor import QuantTensor
from .expected import expected_squares
from .feedback import Feedback, encode_with_feedback, read_feedback
from .moments import Moments
from .plan import TensorPlan
from .transcode import can_transcode, transcode

CHUNK_VALUES = 8 << 20  # decoded to floats at a time
SEARCHED_RULES = ("search", "absmax_signed", "minmax", "mxfp4")  # a search finds scales that are as good or better

Advance = Callable[[int], None]


class Matrix(NamedTuple):
    """The rows of a tensor, or of one of its experts, and what is known of its inputs."""

    rows: QuantTensor
    importance: Floats | None = None  # (columns,)
    expected: Floats | None = None  # the same, not measured but expected
    feedback: Feedback | None = None


def packed_pieces(
    file: ModelFile, plan: TensorPlan, moments: Moments, threads: int | None, advance: Advance
) -> Iterator[Bytes]:
    """The bytes of a tensor in its new format; then the memory of the file is released.

    Args:
        file: The model.
        plan: What becomes of the tensor.
        moments: What is known of the inputs of matrices.
        threads: Number of threads.
        advance: Called with the number of bytes of the source that are done.
    """
    try:
        tensor = file.tensors[plan.name]
        if tensor.format == plan.format:
            yield tensor.data
            advance(tensor.nbytes)
            return
        for matrix in matrices_of(file, plan, moments):
            step = max(1, CHUNK_VALUES // max(1, tensor.shape[-1]))
            for at in range(0, matrix.rows.rows, step):
                chunk = matrix.rows[at : at + step]
                yield packed_chunk(chunk, plan, matrix, threads)
                advance(chunk.nbytes)
    except DataError as error:
        raise DataError(f"{file.path}: tensor {plan.name} cannot be quantized: {error}") from None
    except MemoryError:
        raise OutOfMemory(f"{file.path}: no memory to quantize tensor {plan.name}; close other programs") from None
    finally:
        file.forget(plan.name)


def packed_chunk(chunk: QuantTensor, plan: TensorPlan, matrix: Matrix, threads: int | None) -> Bytes:
    if can_transcode(chunk.format, plan.format):
        return transcode(chunk, plan.format)
    values = chunk.dequantize()
    if matrix.feedback is None:
        weights = search_weights(plan.format, values, matrix)
        return quantize(values, plan.format, weights, threads).data
    refuse_unfit(values, plan.format, True)
    return encode_with_feedback(plan.format, values, matrix.feedback, threads).reshape(-1)


def search_weights(fmt: Format, values: Floats, matrix: Matrix) -> Floats | None:
    """The weights of a search for scales; None where they follow from the format's rule."""
    if matrix.importance is not None and fmt.block > 1:
        return matrix.importance
    if fmt.rule not in SEARCHED_RULES:
        return None
    weights = magnitude_weights(values)
    return weights if matrix.expected is None else weights * matrix.expected


def magnitude_weights(values: Floats) -> Floats:
    """Weights of values where nothing is known of the inputs: large ones count more.

    Columns whose inputs are large tend to have large weights, and without importance those would be rounded as coarsely
    as others.
    """
    greatest = np.maximum(abs(values).max(axis=1, keepdims=True, initial=0), np.finfo(np.float32).tiny)
    squares = np.square(values / greatest)  # so that none is infinite
    squares += squares.mean(axis=1, keepdims=True)
    weights: Floats = np.sqrt(squares, out=squares)
    return weights


def packed_tensor(file: ModelFile, plan: TensorPlan, moments: Moments, threads: int | None) -> QuantTensor:
    """A whole tensor in its new format."""
    pieces = list(packed_pieces(file, plan, moments, threads, lambda nbytes: None))
    return QuantTensor.from_bytes(np.concatenate(pieces), plan.shape, plan.format)


def as_matrix(tensor: QuantTensor) -> QuantTensor:
    return QuantTensor(tensor.stored, (tensor.rows, tensor.shape[-1]), tensor.format)


def matrices_of(file: ModelFile, plan: TensorPlan, moments: Moments) -> Iterator[Matrix]:
    """The matrix of a tensor, or those of its experts, with what is known of their inputs."""
    rows = as_matrix(file.tensors[plan.name])
    if not plan.is_matrix or plan.format.is_scalar:
        yield Matrix(rows)
        return
    importance, hessian = moments.importance_of(plan), moments.hessian_of(plan)
    expected = expected_squares(file, plan) if importance is None and hessian is None else None
    count = next((len(known) for known in (importance, hessian, expected) if known is not None), 1)
    each = rows.rows // count
    for number in range(count):
        weights = None if importance is None else usable(importance[number])
        known = None if hessian is None else usable(hessian[number])
        feedback = None if known is None else read_feedback(known)
        presumed = None if expected is None else expected[number]
        yield Matrix(rows[number * each : (number + 1) * each], weights, presumed, feedback)


def usable(values: Floats) -> Floats | None:
    """None where nothing was measured: an expert that no token chose."""
    return values if np.isfinite(values).all() and (values > 0).any() else None
