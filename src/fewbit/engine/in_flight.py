"""A step in flight: launched, and not fetched yet.

An executor that runs ahead gets step n + 1 before step n is fetched, so that it never waits for the host. The step is
scheduled as if each request in step n went on. Those that have ended, as the tokens of step n show, or were cancelled
meanwhile, have released their pages; what step n + 1 gives for them is thrown away. Their pages may be given to others
at once: whoever gets them writes to them in a later step, and steps run in the order in which they were launched.

A request whose next row depends on what step n gives (`Request.is_blocked`) sits out step n + 1 and goes on with step
n + 2. Nobody is preempted while a step is in flight: then it is fetched first.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..cache.cache import Cache
from ..cache.view import View
from ..devices.batch import Handle
from .request import StepRows


@dataclass(slots=True, eq=False)
class InFlightStep:
    rows: StepRows
    view: View
    handle: Handle
    launch_time: float = 0.0

    def advance(self) -> None:
        """Let the next step be scheduled as if this one were done."""
        number = 0
        for request, row in self.rows:
            request.advance(row, number)
            number += len(row.samples)

    def settle(self) -> None:
        """It was fetched, or is given up."""
        for request, _ in self.rows:
            request.settle()

    def take_back(self, cache: Cache) -> None:
        """Leave everything as it was before this step was launched; later ones were taken back before."""
        cache.rollback(self.view)
        self.settle()
