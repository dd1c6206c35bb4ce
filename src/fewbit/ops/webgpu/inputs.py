"""The integers of a step in one buffer: how many rows there are, where each array begins, and the arrays."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...arrays import Ints
from .wgsl import COUNTS

if TYPE_CHECKING:
    from ...cache.view import View

FIXED = ("tokens", "positions", "sequences", "q_starts", "lengths", "logits_indices", "reads", "writes")


class StepLayout:
    """Where a step's integers say that its arrays begin, for a cache of so many groups of attention layers."""

    def __init__(self, groups: int) -> None:
        self.names = (*FIXED, *(f"{name}{g}" for g in range(groups) for name in ("slots", "starts", "tables")))

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The number in the header that says where an array begins."""
        return {name: len(COUNTS) + n for n, name in enumerate(self.names)}

    def at(self, name: str) -> int:
        return self.places[name]

    def pack(self, tokens: Ints, view: View, logits_indices: Ints, counts: Mapping[str, int]) -> Ints:
        """The integers of a step."""
        own = np.repeat(np.arange(len(view.lengths)), np.diff(view.q_starts))
        arrays: dict[str, npt.NDArray[np.integer]] = {
            "tokens": tokens, "positions": view.positions(), "sequences": own, "q_starts": view.q_starts,
            "lengths": view.lengths, "logits_indices": logits_indices, "reads": view.reads, "writes": view.writes,
        }  # fmt: skip
        for group, (tables, starts) in enumerate(view.groups):
            arrays |= {f"slots{group}": view.slots(group), f"starts{group}": starts, f"tables{group}": tables}
        sizes = [len(arrays[name]) for name in self.names]
        first = len(COUNTS) + len(self.names)
        begins = first + np.cumsum([0, *sizes[:-1]])
        head = [counts.get(name, 0) for name in COUNTS]
        return np.concatenate([head, begins, *(arrays[name] for name in self.names)]).astype(np.int32)
