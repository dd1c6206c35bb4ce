"""How many tokens are worth guessing: from what steps cost, and how often guesses were right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

WEIGHT = 0.2  # of the newest time of a step of some size
MEMORY = 256  # steps after which a time that was not seen again is forgotten
EXTRA_ROW = 0.03  # of a step: what another row costs, as long as nothing is known of it
LEAST_GAIN = 1.03  # below which guessing is not worth its risk


class StepCosts:
    """Seconds of a step by the number of its tokens, as measured.

    >>> costs = StepCosts()
    >>> costs.record(1, 0.010), costs.record(5, 0.014)
    (None, None)
    >>> round(costs.seconds(3), 4)
    0.012
    """

    def __init__(self) -> None:
        self._times: dict[int, tuple[float, int]] = {}  # seconds, and the step that was seen last
        self._steps = 0

    def record(self, num_tokens: int, seconds: float) -> None:
        """A step took so long."""
        self._steps += 1
        known, _ = self._times.get(num_tokens, (seconds, 0))
        seconds = min(seconds, 3 * known)  # one that was disturbed says little
        self._times[num_tokens] = known + WEIGHT * (seconds - known), self._steps
        if self._steps % MEMORY == 0:
            self._times = {size: (t, seen) for size, (t, seen) in self._times.items() if self._steps - seen < MEMORY}

    def seconds(self, num_tokens: int) -> float:
        """How long a step of so many tokens takes. Larger ones never take less."""
        if not self._times:
            return 1.0 + EXTRA_ROW * num_tokens
        below = max((size for size in self._times if size <= num_tokens), default=min(self._times))
        above = min((size for size in self._times if size >= num_tokens), default=below)
        first, last = self._times[below][0], self._times[above][0]
        if below == above:
            return first * (1 + EXTRA_ROW * max(0, num_tokens - below))
        return first + (num_tokens - below) / (above - below) * max(0.0, last - first)


@dataclass(slots=True)
class AcceptanceRate:
    """How often guesses were right, the recent ones above all.

    Args:
        hits: Guesses that were right; the first of them are assumed.
        trials: Guesses that were verified.
    """

    hits: float = 2.0
    trials: float = 4.0

    def record(self, accepted: int, drafted: int) -> None:
        """So many tokens of a draft were right. Those after the first wrong one were not verified."""
        verified = min(accepted + 1, drafted)
        keep = 0.97**verified
        self.hits = self.hits * keep + accepted
        self.trials = self.trials * keep + verified

    @property
    def value(self) -> float:
        return self.hits / self.trials

    def joined(self, other: AcceptanceRate, weight: float) -> float:
        """The rate with a prior: that of other requests, with a weight in trials."""
        return (self.hits + weight * other.value) / (self.trials + weight)


def choose_lengths(
    lengths: Sequence[int],
    rates: Sequence[float],
    num_tokens: int,
    costs: StepCosts,
    draft_seconds: Callable[[int], float],
) -> list[int]:
    """How many tokens to guess for each request, for the most tokens a second; none if guessing gains little.

    >>> costs = StepCosts()
    >>> costs.record(1, 0.010), costs.record(8, 0.012), costs.record(16, 0.030)
    (None, None, None)
    >>> choose_lengths([12], [0.9], 1, costs, lambda length: 0.0)
    [7]
    >>> choose_lengths([12], [0.01], 1, costs, lambda length: 0.0)
    [0]

    Args:
        lengths: Most tokens of each draft.
        rates: How likely each token of a draft is right if those before it are.
        num_tokens: Tokens of the step without guesses.
        costs: What steps cost.
        draft_seconds: What a draft of a number of tokens costs.
    """
    guesses = sorted(
        ((rate**place, -place, request) for request, (length, rate) in enumerate(zip(lengths, rates, strict=True))
         for place in range(1, length + 1)),
        reverse=True,
    )  # fmt: skip
    plain = len(lengths) / costs.seconds(num_tokens)
    best, chosen, expected, longest = LEAST_GAIN * plain, 0, float(len(lengths)), 0
    for count, (chance, place, _) in enumerate(guesses, 1):
        expected, longest = expected + chance, max(longest, -place)
        rate = expected / (costs.seconds(num_tokens + count) + draft_seconds(longest))
        if rate > best:
            best, chosen = rate, count
    taken = [request for _, _, request in guesses[:chosen]]
    return [taken.count(request) for request in range(len(lengths))]
