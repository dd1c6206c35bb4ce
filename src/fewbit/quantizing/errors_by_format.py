"""Weighted squared errors of a matrix in several formats, from all its rows or evenly spaced ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ..arrays import Floats
from ..errors import DataError
from ..files.model import ModelFile
from ..formats import Format, get
from ..ops.cpu import quantize
from .mixes import FLOATS, fitting
from .moments import Moments
from .pieces import Matrix, matrices_of, search_weights
from .plan import TensorPlan

LADDER = ("q2_k", "q3_k", "iq3_s", "iq4_xs", "q4_k", "q5_k", "q6_k", "q8_0")
SHORT_ROWS_LADDER = ("iq4_nl", "q4_1", "q5_0", "q5_1", "q8_0")  # for rows that are no whole blocks of 256
SAMPLED_VALUES = 1 << 16  # of a tensor


def candidates(item: TensorPlan) -> list[Format]:
    """The formats that a matrix may get. Its own is one of them if it is packed already."""
    width = item.shape[-1]
    names = LADDER if width % 256 == 0 else SHORT_ROWS_LADDER
    found = dict.fromkeys(fitting(get(name), width) for name in names)
    if item.source.name not in FLOATS and item.source.gguf is not None:
        found[item.source] = None
    return list(found)


def measure_errors(
    file: ModelFile, item: TensorPlan, formats: Iterable[Format], moments: Moments, threads: int | None
) -> dict[str, float]:
    """The errors of a tensor by format, each column weighted by its importance.

    Args:
        file: The model.
        item: The tensor.
        formats: The formats.
        moments: The importance of columns.
        threads: Number of threads.
    """
    chosen = replace(item, format=get("q8_0"))  # any that importance is used for
    matrices = list(matrices_of(file, chosen, moments))
    counts = moments.counts_of(item, len(matrices)).tolist()
    errors = dict.fromkeys((fmt.name for fmt in formats), 0.0)
    for matrix, count in zip(matrices, counts, strict=True):
        values, share = _sampled(matrix, SAMPLED_VALUES // len(matrices))
        weights = np.ones(values.shape[1], np.float32) if matrix.importance is None else matrix.importance
        for name in errors:
            if name != item.source.name:
                difference = values - _packed(item, values, name, matrix, threads)
                errors[name] += count * share * _weighted(difference, weights)
    file.forget(item.name)
    return errors


def _sampled(matrix: Matrix, most: int) -> tuple[Floats, float]:
    """Evenly spaced rows, and how many rows each of them stands for."""
    rows, width = matrix.rows.shape
    step = -(-rows // max(1, most // width))
    values = matrix.rows[::step].dequantize()
    return values, rows / len(values)


def _packed(item: TensorPlan, values: Floats, name: str, matrix: Matrix, threads: int | None) -> Floats:
    try:
        return quantize(values, name, search_weights(get(name), values, matrix), threads).dequantize()
    except DataError as error:
        raise DataError(f"tensor {item.name} cannot be quantized: {error}") from None


def _weighted(values: Floats, weights: Floats) -> float:
    return float(np.square(values, dtype=np.float64).sum(axis=0) @ weights.astype(np.float64))
