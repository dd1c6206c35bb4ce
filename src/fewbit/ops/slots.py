"""Memory for the rows of a step: values that are not needed at the same time share a slot."""

from __future__ import annotations

from .graph import Value


class Slots:
    """Slots for rows. A slot is reused once its rows are not read any more."""

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
