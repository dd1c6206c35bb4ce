"""A plan for a model of a given size: the format of each matrix is chosen by the loss that was measured."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from math import isfinite, prod
from typing import Any

import numpy as np

from ..errors import ArgumentError, DtypeError
from ..files.gguf.resumable import aligned
from ..files.hub.folder import Progress
from ..files.model import ModelFile
from ..formats import Format, get
from ..text.windows import Text
from .allocation import Option, allocate
from .errors_by_format import candidates, measure_errors
from .mixes import MIXES, is_quantizable, read_mix
from .moments import Moments
from .output import file_metadata, output_file
from .pieces import packed_tensor
from .plan import Overrides, Plan, TensorPlan, is_integer, plan_tensors
from .sensitivity import OutputChanges

UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
PROBE = "q3_k"  # the format that shows what the error of a matrix changes; short rows: the smallest candidate


@dataclass(frozen=True)
class Target:
    """The size that a model shall have: bits for each weight, or bytes of the file. One of them is given."""

    bits: float | None
    size: int | None
    text: Text

    @property
    def name(self) -> str:
        return f"{self.bits:g} bits" if self.size is None else f"{self.size} bytes"

    @property
    def metadata(self) -> dict[str, Any]:
        """What the file says of how it was made."""
        given = {"bits": np.float64(self.bits)} if self.size is None else {"size": np.uint64(self.size)}
        return {f"fewbit.target.{key}": value for key, value in (given | {"method": "KL divergence"}).items()}


def read_target(bits: Any, size: Any, text: Text | None, format: str | None, pure: bool) -> Target | None:
    """The size to choose formats for; None if neither bits nor a size is given."""
    if bits is None and size is None:
        if text is not None:
            raise ArgumentError("text is for bits or size, to show which matrices matter; give one of them too")
        return None
    if bits is not None and size is not None:
        raise ArgumentError("give bits or size, not both")
    if format is not None or pure:
        given = "pure" if format is None else f"format {format!r}"
        raise ArgumentError(f"bits and size choose the format of each matrix; leave {given} out, or give it alone")
    given_bits, given_size = (_read_bits(bits), None) if size is None else (None, read_size(size))
    if text is None:
        raise ArgumentError("bits and size need a text that shows which matrices matter, a page of any kind")
    return Target(given_bits, given_size, text)


def _read_bits(bits: Any) -> float:
    if isinstance(bits, bool) or not isinstance(bits, int | float):
        raise DtypeError(f"bits must be a number such as 4.2, not {type(bits).__name__}")
    if not (isfinite(bits) and bits > 0):
        raise ArgumentError(f"bits must be greater than 0, got {bits}")
    return float(bits)


def read_size(size: Any) -> int:
    """Bytes, from a number or a text with a unit.

    >>> read_size("3.5GB"), read_size("1.5 MiB"), read_size(1000)
    (3500000000, 1572864, 1000)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([a-z]*)\s*", str(size).lower())
    if isinstance(size, bool) or not isinstance(size, int | str) or not match or match[2] not in UNITS:
        raise ArgumentError(f"size must be a number of bytes or a text such as '3.5GB' or '800 MiB', got {size!r}")
    return int(float(match[1]) * UNITS[match[2]]) if "." in match[1] else int(match[1]) * UNITS[match[2]]


def plan_for_target(
    file: ModelFile, target: Target, overrides: Overrides, moments: Moments, threads: int, report: Progress
) -> Plan:
    """The plan of every tensor, within the size. Each chosen matrix has the loss that is predicted for it.

    Args:
        file: The model.
        target: The size.
        overrides: Formats of tensors that are not chosen.
        moments: What is known of the inputs of matrices.
        threads: Number of threads.
        report: Called with what is measured, bytes done and bytes in all.
    """
    plan = plan_tensors(file, read_mix("q8_0", True)[1], overrides)
    free = {name: item for name, item in plan.items() if is_free(item, overrides)}
    if not free:
        raise ArgumentError(f"{file.path}: there is no matrix whose format could be chosen")
    weights = sum(prod(item.shape) for item in plan.values())
    overhead = sum(aligned(item.nbytes) for name, item in plan.items() if name not in free)
    overhead += 0 if target.size is None else _header_bytes(file, target, plan)
    budget = (int(target.bits * weights / 8) if target.size is None else target.size) - overhead  # type: ignore[operator]
    _check_budget(target, free, budget, overhead, weights)
    options = measure_options(file, free, target.text, moments.without_feedback(), threads, report)
    chosen = allocate(options, budget)
    made = {name: _with_option(item, chosen[name]) for name, item in free.items()}
    return {name: made.get(name, item) for name, item in plan.items()}


def is_free(item: TensorPlan, overrides: Overrides) -> bool:
    """Whether the format of a tensor is to be chosen."""
    return is_quantizable(item.name, item.shape) and not is_integer(item.source) and overrides.find(item.name) is None


def _header_bytes(file: ModelFile, target: Target, plan: Plan) -> int:
    """Bytes of a file beside its tensors, whose formats do not change them."""
    out = output_file(file.path, file, target_metadata(file, target, plan), plan, Moments())
    return out.nbytes - sum(aligned(item.nbytes) for item in plan.values())


def target_metadata(file: ModelFile, target: Target, plan: Plan) -> dict[str, Any]:
    """The metadata of the file. Its type is that of a mix with the format that most weights have."""
    weights: Counter[str] = Counter()
    for item in plan.values():
        weights[item.format.name] += prod(item.shape)
    usual = weights.most_common(1)[0][0]
    number = next((mix.file_type for mix in MIXES.values() if mix.usual == usual), MIXES["q4_k_m"].file_type)
    return file_metadata(file, number) | target.metadata


def _check_budget(target: Target, free: Plan, budget: int, overhead: int, weights: int) -> None:
    """Refuse a size that no choice of formats has."""
    sizes = [[_bytes(item, fmt) for fmt in candidates(item)] for item in free.values()]
    least, most = (sum(map(pick, sizes)) for pick in (min, max))
    if least <= budget <= most:
        return
    if target.size is None:
        low, high = (8 * (nbytes + overhead) / weights for nbytes in (least, most))
        given, limits = f"{target.bits:g} bits a weight", f"{low:.3f} to {high:.3f} bits"
    else:
        given, limits = f"{target.size:,} bytes", f"{least + overhead:,} to {most + overhead:,} bytes"
    raise ArgumentError(
        f"{given} is too {'small' if budget < least else 'large'} for this model: {limits} are possible"
    )


def measure_options(
    file: ModelFile, free: Plan, text: Text, moments: Moments, threads: int, report: Progress
) -> dict[str, list[Option]]:
    """The formats that each matrix may get, with their bytes and predicted losses."""
    total, done = sum(item.source_bytes for item in free.values()), 0
    changes = OutputChanges(file, text, threads)
    options = {}
    for name, item in free.items():
        report(f"measuring {name}", done, total)
        errors = measure_errors(file, item, candidates(item), moments, threads)
        scale = _sensitivity(file, item, errors, changes, moments, threads)
        options[name] = [Option(_bytes(item, get(fmt)), scale * error, fmt) for fmt, error in errors.items()]
        done += item.source_bytes
    return options


def _bytes(item: TensorPlan, fmt: Format) -> int:
    """What a tensor takes of a file in a format."""
    return aligned(replace(item, format=fmt).nbytes)


def _sensitivity(
    file: ModelFile, item: TensorPlan, errors: dict[str, float], changes: OutputChanges, moments: Moments, threads: int
) -> float:
    """How much a unit of the matrix's error changes the output, measured with one format."""
    probe = PROBE if errors.get(PROBE) else max(errors, key=lambda name: errors[name])
    if not errors[probe]:
        return 0.0
    tensor = packed_tensor(file, replace(item, format=get(probe)), moments, threads)
    return max(changes.divergence(item.name, tensor), 0.0) / errors[probe]


def _with_option(item: TensorPlan, option: Option) -> TensorPlan:
    fmt = get(option.format)
    return replace(item, wanted=fmt, format=fmt, loss=option.loss)
