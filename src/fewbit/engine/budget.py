"""What is left of a step while it is scheduled: tokens and rows of logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .request import Request

if TYPE_CHECKING:
    from .scheduler import Scheduler

MAX_ROWS = 128  # for one request, in one step


class Budget:
    """A row is set aside for each active request, and a token if it needs no more.

    If prompts of several clients are run, each gets its part of the rest: a long one does not make others wait.
    """

    __slots__ = ("_of", "_part", "_taken", "output", "rows", "tokens")

    def __init__(self, of: Scheduler, clients: int = 1) -> None:
        self._of, self.output = of, of.output()
        self.tokens = of.max_batched_tokens - sum(request.num_remaining == 1 for request in of.active)
        self.rows = of.max_logits - len(of.active)
        self._part = -(-self.tokens // max(1, clients))  # of each client
        self._taken: dict[str, int] = {}

    def has_room(self, request: Request) -> bool:
        """Whether a request that waits could run some of its tokens."""
        return self.tokens > 0 and self.rows > 0

    def take(self, request: Request) -> int:
        """The number of tokens that a request may run."""
        if request.output != self.output:
            return 0
        remaining = request.num_remaining
        if remaining == 1:
            return 1
        taken = self._taken.get(request.client, 0)
        count = min(remaining, self.tokens, max(0, self._part - taken))
        count = self._of.page_end(request, count)
        rows = request.num_logits(count)
        if rows > 1:
            count -= max(0, rows - min(self.rows + 1, MAX_ROWS))
            self.rows -= max(0, request.num_logits(count) - 1)
        self.tokens -= count
        self._taken[request.client] = taken + count
        return count

    def take_new(self, request: Request) -> int:
        """The same for one for which nothing was set aside."""
        self.rows -= 1
        self.tokens -= request.num_remaining == 1
        return self.take(request)


class WholeBudget(Budget):
    """The same where a request runs all its tokens or none: its first step is its last."""

    __slots__ = ()

    def __init__(self, of: Scheduler, clients: int = 1) -> None:
        super().__init__(of, clients)
        self.tokens = min(of.max_batched_tokens, of.max_logits)

    def has_room(self, request: Request) -> bool:
        return request.num_remaining <= self.tokens

    def take(self, request: Request) -> int:
        count = request.num_remaining if self.has_room(request) else 0
        self.tokens -= count
        return count

    def take_new(self, request: Request) -> int:
        return self.take(request)
