"""How many tokens are guessed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.engine.speculation.lengths import LEAST_GAIN, AcceptanceRate, StepCosts, choose_lengths

Rates = list[tuple[int, float]]


def costs_of(marginal: float) -> StepCosts:
    costs = StepCosts()
    for tokens in (1, 2, 4, 8, 16, 32, 64):
        costs.record(tokens, 1 + marginal * (tokens - 1))
    return costs


@given(
    wanted=st.lists(st.tuples(st.integers(0, 8), st.floats(0, 1)), min_size=1, max_size=6),
    marginal=st.floats(0, 2),
)
def test_no_other_number_of_guesses_is_better(wanted: Rates, marginal: float) -> None:
    lengths, rates = zip(*wanted, strict=True)
    costs, batch = costs_of(marginal), len(wanted)
    chosen = choose_lengths(lengths, rates, batch, costs, lambda length: 0.0)
    assert all(0 <= got <= most for got, most in zip(chosen, lengths, strict=True))

    def speed(taken: list[int]) -> float:
        expected = sum(sum(rate**place for place in range(count + 1)) for count, rate in zip(taken, rates, strict=True))
        return expected / costs.seconds(batch + sum(taken))

    best = max(speed([min(count, most) for most in lengths]) for count in range(9))
    least = speed([0] * batch)
    if any(chosen):
        assert speed(chosen) >= best * (1 - 1e-9)
        assert speed(chosen) > LEAST_GAIN * least * (1 - 1e-9)
    else:
        assert best <= LEAST_GAIN * least * (1 + 1e-9)


def test_nothing_is_guessed_where_rows_cost_as_much_as_steps() -> None:
    assert choose_lengths([8] * 32, [0.9] * 32, 32, costs_of(1.0), lambda length: 0.0) == [0] * 32


def test_a_drafter_that_takes_long_guesses_less() -> None:
    def longest(seconds: float) -> int:
        return choose_lengths([8], [0.8], 1, costs_of(0.05), lambda length: seconds * length)[0]

    assert longest(0.0) > longest(0.1) > longest(2.0) == 0


def test_costs_are_forgotten_that_are_not_seen_again() -> None:
    costs = StepCosts()
    costs.record(4, 100.0)
    for _ in range(600):
        costs.record(1, 1.0)
    assert costs.seconds(4) < 2


def test_a_disturbed_step_counts_little() -> None:
    costs = costs_of(0.0)
    costs.record(4, 1000.0)
    assert costs.seconds(4) == pytest.approx(1.4)


def test_rates_follow_what_happens() -> None:
    rate = AcceptanceRate()
    for _ in range(50):
        rate.record(accepted=3, drafted=3)
    assert rate.value > 0.9
    for _ in range(100):
        rate.record(accepted=0, drafted=3)
    assert rate.value < 0.1
