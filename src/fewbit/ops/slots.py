"""Memory for the rows of a step: which values lie in the same place, one after the other."""

from __future__ import annotations

from .graph import Value


class Slots:
    """Memory for rows. A slot whose rows nobody reads any more is used for others."""

    def __init__(self) -> None:
        self.widths: list[int] = []  # of the widest rows in each slot
        self.free: dict[bool, list[int]] = {False: [], True: []}  # of all rows, and of those for logits

    def take(self, value: Value) -> int:
        """The narrowest free slot that is wide enough, else the widest, else a new one."""
        free, width = self.free[value.logits_only], value.width
        if free:
            slot = min(free, key=lambda s: (self.widths[s] < width, abs(self.widths[s] - width)))
            free.remove(slot)
        else:
            slot = len(self.widths)
            self.widths.append(0)
        self.widths[slot] = max(self.widths[slot], width)
        return slot

    def release(self, value: Value, slot: int) -> None:
        self.free[value.logits_only].append(slot)
