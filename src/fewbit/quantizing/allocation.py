"""Choosing one option for each of several items, so that the sum of losses is small within a sum of bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple


class Option(NamedTuple):
    """What an item costs with one of its formats, and what it loses."""

    nbytes: int
    loss: float
    format: str


def allocate(options: Mapping[str, Sequence[Option]], budget: int) -> dict[str, Option]:
    """The option of each item. The sum of bytes is at most the budget, if the smallest options fit.

    All items begin with their smallest option. Steps along the lower convex hulls are taken in the order of loss saved
    for a byte, which is the optimum for every price of a byte; then what remains of the budget is filled.

    Args:
        options: The options of each item.
        budget: Bytes of all items.

    >>> items = {"a": [Option(1, 8, "q2"), Option(2, 1, "q4")], "b": [Option(1, 3, "q2"), Option(2, 1, "q4")]}
    >>> [option.format for option in allocate(items, 3).values()]
    ['q4', 'q2']
    """
    hulls = {name: lower_hull(known) for name, known in options.items()}
    chosen = {name: hull[0] for name, hull in hulls.items()}
    steps = [(_gain(*pair), name, *pair) for name, hull in hulls.items() for pair in pairwise(hull)]
    steps.sort(key=lambda step: -step[0])  # steps of a hull stay in their order
    free = budget - total_bytes(chosen)
    for _, name, before, after in steps:
        if chosen[name] == before and after.nbytes - before.nbytes <= free:
            chosen[name] = after
            free -= after.nbytes - before.nbytes
    return _filled(options, chosen, free)


def total_bytes(chosen: Mapping[str, Option]) -> int:
    return sum(option.nbytes for option in chosen.values())


def lower_hull(options: Sequence[Option]) -> list[Option]:
    """The options that are best for some price of a byte, the smallest first.

    >>> pairs = [(1, 9), (2, 8), (3, 1), (4, 2)]
    >>> [option.nbytes for option in lower_hull([Option(nbytes, loss, "") for nbytes, loss in pairs])]
    [1, 3]
    """
    hull: list[Option] = []
    for option in sorted(options):
        if hull and option.loss >= hull[-1].loss:
            continue
        while len(hull) > 1 and _gain(hull[-2], hull[-1]) <= _gain(hull[-1], option):
            hull.pop()
        hull.append(option)
    return hull


def _gain(before: Option, after: Option) -> float:
    """Loss saved for a byte."""
    return (before.loss - after.loss) / (after.nbytes - before.nbytes)


def _filled(options: Mapping[str, Sequence[Option]], chosen: dict[str, Option], free: int) -> dict[str, Option]:
    """Spend bytes that remain, each time where they save the most loss."""
    while True:
        found = [
            (chosen[name].loss - option.loss, name, option)
            for name, known in options.items()
            for option in known
            if chosen[name].loss > option.loss and option.nbytes - chosen[name].nbytes <= free
        ]
        if not found:
            return chosen
        _, name, option = max(found, key=lambda step: step[0])
        free -= option.nbytes - chosen[name].nbytes
        chosen[name] = option
