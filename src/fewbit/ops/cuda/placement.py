"""Memory of a GPU for the rows of a step's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..graph import Value
from ..placement import Placement
from .session import Session
from .values import Rows


def allocate(
    placement: Placement, device: Session, count: Callable[[Value], int]
) -> tuple[dict[Value, Rows], tuple[Any, ...]]:
    """Rows of all values, and the memory that they lie in; `count` says how many rows a value can have."""
    counts = placement.counts(count)
    widths = [-(-width // 4) * 4 for width in placement.widths]  # rows begin at multiples of 16 bytes
    buffers = tuple(device.allocate(4 * width * counts[slot]) for slot, width in enumerate(widths))
    rows = {
        value: Rows(int(buffers[slot].handle) + 4 * first, value.width, widths[slot])
        for value, (_, slot, first) in placement.places.items()
    }
    return rows | {alias: rows[value] for alias, value in placement.aliases.items()}, buffers
