"""Weights of a model beside those of a reference: errors by tensor, and histograms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..arrays import Doubles, Floats
from ..errors import RequestError
from ..files.imatrix import ImportanceMatrix
from ..files.model import ModelFile
from ..formats import Format, get
from ..formats.decode import read_codes, split
from ..tensor import QuantTensor

CHUNK_VALUES = 4 << 20  # that are decoded at a time
SAMPLE_ROWS = 32  # of a matrix, for histograms
BINS = 61
REACH = 6.0  # standard deviations
_LAYER = re.compile(r"blk\.(\d+)\.(.+)\.weight")


@dataclass(frozen=True, slots=True)
class TensorLoss:
    """How much a tensor lost.

    Args:
        name: Its name.
        format: Its format.
        error: The length of the difference over the length of the reference's weights.
        effect: The same for the outputs, with inputs as in the calibration text; None without one.
    """

    name: str
    format: str
    error: float
    effect: float | None

    @property
    def layer(self) -> int | None:
        """The number of its layer; None for embeddings and logits."""
        found = _LAYER.fullmatch(self.name)
        return int(found[1]) if found else None

    @property
    def kind(self) -> str:
        """Its name without the layer.

        >>> TensorLoss("blk.3.ffn_up.weight", "q4_k", 0.1, None).kind
        'ffn_up'
        """
        found = _LAYER.fullmatch(self.name)
        return found[2] if found else self.name.removesuffix(".weight")


@dataclass
class WeightFigures:
    """What the weights of a model look like.

    Args:
        losses: For each matrix that the reference has too.
        weights: How many sampled weights are in each bin, from -REACH to REACH standard deviations of their matrix.
        codes: How often each code occurs in the sampled rows, by format.
        bits: Bits a weight, of all tensors.
    """

    losses: list[TensorLoss] = field(default_factory=list)
    weights: Doubles = field(default_factory=lambda: np.zeros(BINS))
    codes: dict[str, dict[int, int]] = field(default_factory=dict)
    bits: float = 0.0


def weight_figures(
    file: ModelFile, reference: ModelFile | None, imatrix: ImportanceMatrix | None, advance: Callable[[], object]
) -> WeightFigures:
    """The figures of a model's matrices.

    Args:
        file: The model.
        reference: The reference, if there is one.
        imatrix: Mean squares of the inputs of the reference's matrices.
        advance: Called after each matrix.
    """
    found, bits, count = WeightFigures(), 0.0, 0
    names = matrix_names(file)
    if reference is not None and not any(_is_alike(file, reference, name) for name in names):
        raise RequestError(f"{reference.path} has no matrix of {file.path}: it cannot be its reference")
    for name in names:
        tensor = file.tensors[name]
        bits, count = bits + 8 * tensor.nbytes, count + tensor.size
        found.bits = bits / count
        _add_samples(found, tensor)
        if reference is not None and _is_alike(file, reference, name):
            found.losses.append(_loss(name, tensor, reference.tensors[name], imatrix))
            reference.forget(name)
        file.forget(name)
        advance()
    return found


def matrix_names(file: ModelFile) -> list[str]:
    return [name for name, info in file.infos.items() if len(info.shape) > 1]


def _is_alike(file: ModelFile, reference: ModelFile, name: str) -> bool:
    return name in reference.infos and reference.infos[name].shape == file.infos[name].shape


def _loss(name: str, tensor: QuantTensor, base: QuantTensor, imatrix: ImportanceMatrix | None) -> TensorLoss:
    """Errors of a tensor, a few rows at a time."""
    means = None if imatrix is None else imatrix.fitting(name, base.shape)
    plain, weighted = np.zeros(2), np.zeros(2)
    pairs = zip(_rows(tensor), _rows(base), strict=True)
    for (first, own), (_, values) in pairs:
        squares = np.stack([np.square(own - values), np.square(values)])
        plain += squares.sum(axis=(1, 2), dtype=np.float64)
        if means is not None:
            each = means if means.ndim == 1 else means[first // base.shape[1]]
            weighted += (squares.sum(axis=1, dtype=np.float64) * each).sum(axis=1)
    effect = None if means is None else _ratio(weighted)
    return TensorLoss(name, tensor.format.name, _ratio(plain), effect)


def _ratio(sums: Doubles) -> float:
    """The root of the first over the second."""
    return float(np.sqrt(sums[0] / sums[1])) if sums[1] else 0.0


def _rows(tensor: QuantTensor) -> Iterator[tuple[int, Floats]]:
    """Decoded rows, a few at a time and never of two matrices of a stack together, with the number of the first."""
    k, each = tensor.shape[-1], tensor.shape[-2]
    flat = QuantTensor(tensor.stored, (tensor.rows, k), tensor.format)
    step = max(1, CHUNK_VALUES // k)
    for start in range(0, tensor.rows, each):
        for first in range(start, start + each, step):
            yield first, flat[first : min(first + step, start + each)].dequantize()


def _add_samples(found: WeightFigures, tensor: QuantTensor) -> None:
    """Add rows from everywhere in a matrix to the histograms."""
    flat = QuantTensor(tensor.stored, (tensor.rows, tensor.shape[-1]), tensor.format)
    rows = flat[np.unique(np.linspace(0, tensor.rows - 1, SAMPLE_ROWS).astype(int))]
    values = rows.dequantize()
    scale = float(values.std()) or 1.0
    edges = np.linspace(-REACH, REACH, BINS + 1)
    found.weights += np.histogram(np.clip(values / scale, -REACH, REACH), edges)[0]
    if tensor.format.codes is not None:
        codes = found.codes.setdefault(tensor.format.name, {})
        for code, number in code_counts(rows).items():
            codes[code] = codes.get(code, 0) + number


def code_counts(rows: QuantTensor) -> dict[int, int]:
    """How often each code occurs; for codebooks the values that codes stand for."""
    fmt = rows.format
    data = np.ascontiguousarray(rows.data).reshape(-1, fmt.block_bytes)
    codes, counts = np.unique(read_codes(fmt, split(fmt, data), fmt.block), return_counts=True)
    return dict(zip(codes.tolist(), counts.tolist(), strict=True))


def by_layer(losses: Sequence[TensorLoss], figure: str) -> dict[int, float]:
    """The root mean square of a figure over the matrices of each layer."""
    squares: dict[int, list[float]] = {}
    for loss in losses:
        value = getattr(loss, figure)
        if loss.layer is not None and value is not None:
            squares.setdefault(loss.layer, []).append(value**2)
    return {layer: float(np.sqrt(np.mean(values))) for layer, values in sorted(squares.items())}


def code_range(name: str, codes: Mapping[int, int]) -> list[int]:
    """All codes of a format that can occur: a few, or those that did."""
    fmt: Format = get(name)
    if fmt.codebook:
        return sorted(set(fmt.codebook))
    low, high = fmt.code_range
    return list(range(low, high + 1)) if high - low <= 255 else sorted(codes)
