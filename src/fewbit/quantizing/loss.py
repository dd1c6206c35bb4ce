"""What a format costs a model, from a few rows of a matrix."""

from __future__ import annotations

import warnings
from contextlib import suppress

import numpy as np

from ..errors import DataError
from ..files.model import ModelFile
from ..formats import Format
from ..ops.cpu import quantize
from .mixes import FLOATS
from .pieces import as_matrix
from .plan import Plan

SAMPLE_ROWS = 16  # of a matrix, to estimate the error of a format
TOLERATED_LOSS = 0.1  # relative RMS error


def warn_about_loss(file: ModelFile, plan: Plan) -> None:
    """Warn if a format is for models trained in it and one matrix of this model shows that it was not."""
    special = (item for item in plan.values() if item.format.made_for and item.source.name in FLOATS)
    item = next(special, None)
    if item is None:
        return
    loss = _loss(file, item.name, item.format)
    if loss > TOLERATED_LOSS:
        warnings.warn(
            f"{item.format} is made for {item.format.made_for}: the weights of this model change by {loss:.0%} and its "
            "output will be nonsense; q4_k_m suits other models",
            stacklevel=4,
        )


def _loss(file: ModelFile, name: str, fmt: Format) -> float:
    """The relative RMS error of a few rows of a tensor in a format; 0 where they cannot be packed."""
    values = as_matrix(file.tensors[name])[:SAMPLE_ROWS].dequantize()
    file.forget(name)
    size = float(np.linalg.norm(values))
    with suppress(DataError):  # raised again, with the tensor's name, when all rows are packed
        return float(np.linalg.norm(values - quantize(values, fmt).dequantize())) / size if size else 0.0
    return 0.0
