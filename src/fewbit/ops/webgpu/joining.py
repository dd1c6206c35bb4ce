"""Dispatches that can be one: each costs a GPU some microseconds, whatever it does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .device import Dispatch
from .rows import THREADS, rope
from .wgsl import blocks

_DIFFERENT = ("heads", "width", "x_offset", "y_offset")  # between neighbours


def join_ropes(dispatches: Iterable[Dispatch]) -> list[Dispatch]:
    """Queries and keys beside each other in a row, rotated in place by the same angles, are rotated at once."""
    out: list[Dispatch] = []
    for one in dispatches:
        if out and _follows(out[-1], one):
            out[-1] = _joined(out[-1], one)
        else:
            out.append(one)
    return out


def _follows(before: Dispatch, one: Dispatch) -> bool:
    if before.kernel is not rope(True) or one.kernel is not before.kernel:
        return False
    if [id(memory) for memory in before.buffers] != [id(memory) for memory in one.buffers]:
        return False
    same = {name: value for name, value in one.values.items() if name not in _DIFFERENT}
    end = before.values["y_offset"] + before.values["heads"] * before.values["dim"]
    is_beside = one.values["y_offset"] == end and before.grid[1] == one.grid[1]
    return is_beside and all(before.values[name] == value for name, value in same.items())


def _joined(before: Dispatch, one: Dispatch) -> Dispatch:
    values = {**before.values, **{name: before.values[name] + one.values[name] for name in ("heads", "width")}}
    x, z = blocks(-(-int(values["heads"] * values["pairs"]) // THREADS))
    return replace(before, values=values, grid=(("one", x), before.grid[1], ("one", z)))
