"""What is left of a step while it is scheduled: tokens and logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..cache.cache import Cache
from .request import Request

MAX_LOGITS = 128  # for one request, in one step


class Budget:
    """Logits are set aside for one token of each active request, and tokens for those that write their outputs: one, or
    several if a constraint has forced them, which may take half of the step.

    If prompts of several clients are run, each client gets its share of the rest: a long one does not make others wait.

    Args:
        max_tokens: Tokens of a step.
        max_logits: Tokens of a step whose logits are computed.
        active: The active requests.
        output: What the step computes. Requests that want something else run no token.
        num_clients: Clients that share the prompt tokens.
        cache: The cache, which may want prompts cut at page ends.
    """

    __slots__ = ("_cache", "_output", "_reserved", "_share", "_taken", "logits", "tokens")

    def __init__(
        self, max_tokens: int, max_logits: int, active: Sequence[Request], output: str, num_clients: int, cache: Cache
    ) -> None:
        most = max(1, max_tokens // max(1, 2 * len(active)))
        self._reserved = {one: min(one.num_remaining, most) for one in active if _is_served_first(one)}
        self.tokens = max_tokens - sum(self._reserved.values())
        self.logits = max_logits - len(active)
        self._output, self._cache = output, cache
        self._share = -(-self.tokens // max(1, num_clients))  # of each client
        self._taken: dict[str, int] = {}

    def has_room(self, request: Request) -> bool:
        """Whether a request that waits could run some of its tokens."""
        return self.tokens > 0 and self.logits > 0

    def take(self, request: Request) -> int:
        """The number of tokens that a request may run."""
        if request.output != self._output or request.is_blocked:
            return 0
        remaining, reserved = request.num_remaining, self._reserved.get(request, 0)
        if remaining == 1:
            return 1
        taken = self._taken.get(request.client, 0)
        count = min(remaining, reserved + max(0, min(self.tokens, self._share - taken)))
        count = _cut_at_page_end(request, count, self._cache)
        count = _uncut(request, count, min(remaining, reserved + self.tokens))
        logits = request.num_logits(count)
        if logits > 1:
            count -= max(0, logits - min(self.logits + 1, MAX_LOGITS))
            self.logits -= max(0, request.num_logits(count) - 1)
        self.tokens -= count - reserved
        self._taken[request.client] = taken + count - reserved
        return count

    def take_new(self, request: Request) -> int:
        """The same for one for which nothing was set aside."""
        self.logits -= 1
        if _is_served_first(request):
            self._reserved[request] = 1
            self.tokens -= 1
        return self.take(request)


class WholeBudget(Budget):
    """The same where a request runs all its tokens or none: its first step is its last."""

    __slots__ = ()

    def __init__(self, max_tokens: int, max_logits: int, *rest: Any) -> None:
        super().__init__(max_tokens, max_logits, *rest)
        self.tokens = min(max_tokens, max_logits)

    def has_room(self, request: Request) -> bool:
        return request.num_remaining <= self.tokens

    def take(self, request: Request) -> int:
        count = request.num_remaining if self.has_room(request) and not request.is_blocked else 0
        self.tokens -= count
        return count

    def take_new(self, request: Request) -> int:
        return self.take(request)


def _is_served_first(request: Request) -> bool:
    """Prompts wait for each other; outputs do not wait for prompts."""
    return request.num_remaining == 1 or request.is_writing


def _uncut(request: Request, count: int, most: int) -> int:
    """Whole images where their tokens see each other: one that is next may take more than its client's share."""
    if request.embedded is None:
        return count
    first = request.num_computed + request.num_in_flight
    needed = request.embedded.needed(first)
    return request.embedded.uncut(first, needed if count < needed <= most else count)


def _cut_at_page_end(request: Request, count: int, cache: Cache) -> int:
    """Fewer tokens of a prompt where snapshots of its state are kept at page ends: up to the last of them."""
    if count > 1 and cache.wants_page_ends:
        first = request.num_computed + request.num_in_flight
        count = min([count, *(end - first for end in request.pauses if end > first)])
        end = (first + count) // cache.page_tokens * cache.page_tokens
        return end - first if end > first else count
    return count
