"""What is known of the inputs of a model's matrices: importance, and Hessians."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from ..arrays import Floats
from ..errors import DtypeError, ShapeError
from ..files.hessian import read_hessians
from ..files.imatrix import ImportanceMatrix, read_imatrix
from ..validation import to_path
from .plan import TensorPlan

Source = Mapping[str, Any] | str | os.PathLike[str] | None


@dataclass(frozen=True)
class Moments:
    """Second moments of the inputs of matrices, by the name of the tensor.

    Args:
        importance: Mean squares: (columns,), or (experts, columns).
        hessians: Sums of products of all pairs: (columns, columns), or (experts, columns, columns).
    """

    importance: Mapping[str, Any] = field(default_factory=dict)
    hessians: Mapping[str, Any] = field(default_factory=dict)

    def importance_of(self, plan: TensorPlan) -> Floats | None:
        """Mean squares for a tensor, (experts or 1, columns); None where they are not known."""
        if plan.name not in self.importance:
            return None
        if isinstance(self.importance, ImportanceMatrix):
            found = self.importance.fitting(plan.name, plan.shape)
        else:
            found = self.importance[plan.name]
        if found is None:
            return None
        values = np.ascontiguousarray(found, np.float32)
        values = values.reshape(-1, values.shape[-1]) if values.ndim else values.reshape(1, 1)
        self._check(plan, values, "importance", np.shape(found))
        return values

    def hessian_of(self, plan: TensorPlan) -> Floats | None:
        """Sums of products for a tensor, (experts or 1, columns, columns); None where they are not known."""
        if plan.name not in self.hessians:
            return None
        values = np.asarray(self.hessians[plan.name])
        if values.ndim < 2 or values.shape[-1] != values.shape[-2]:
            raise ShapeError(f"the Hessian of {plan.name} must be square, it has the shape {values.shape}")
        shape = values.shape
        values = values.reshape(-1, *shape[-2:])
        self._check(plan, values, "Hessian", shape)
        return values

    def _check(self, plan: TensorPlan, values: Floats, what: str, given: tuple[int, ...]) -> None:
        matrices = int(np.prod(plan.shape[:-2]))
        if values.shape[-1] != plan.shape[-1] or len(values) not in (1, matrices):
            shape = "x".join(map(str, plan.shape))
            raise ShapeError(
                f"the {what} of {plan.name} has the shape {given}, the tensor is {shape}; it belongs to another model"
            )

    def digest(self, names: list[str]) -> str:
        """A short text that changes with what is known of some tensors."""
        digest = blake2b(digest_size=16)
        for kind, known in (("importance", self.importance), ("hessians", self.hessians)):
            for name in sorted(set(names) & known.keys()):
                values = np.asarray(known[name], np.float32)
                shown = values if kind == "importance" else values.diagonal(0, -2, -1)
                digest.update(f"{kind} {name} {values.shape}".encode() + np.ascontiguousarray(shown).tobytes())
        return digest.hexdigest()


def read_moments(importance: Source, error_feedback: Source) -> Moments:
    """Moments from dictionaries, or from files."""
    return Moments(
        _read(importance, "importance", read_imatrix), _read(error_feedback, "error_feedback", read_hessians)
    )


def _read(source: Source, what: str, read: Any) -> Mapping[str, Any]:
    if source is None:
        return {}
    if isinstance(source, str | os.PathLike):
        found: Mapping[str, Any] = read(to_path(source))
        return found
    if not isinstance(source, Mapping):
        raise DtypeError(
            f"{what} must be a dictionary by tensor name or the path of a file, not {type(source).__name__}"
        )
    return source
