"""Where the states of recurrent layers are kept while a conversation goes on, is cut and goes on again."""

from __future__ import annotations

import random

from .runtime import call


def test_states_are_those_of_what_was_kept() -> None:
    """A model of slots that keeps what was written to each, and of a sequence that is extended and cut at random."""
    for slots in (2, 3, 5):
        rng, asked = random.Random(slots), []
        for _ in range(300):
            if rng.random() < 0.3:
                asked.append(["cut", rng.randrange(40)])
            else:
                asked.append(["step", rng.randrange(1, 9), rng.random() < 0.5])
        held, length, kept = {0: 0}, 0, 0
        for (what, number, *keeps), found in zip(
            asked, call(("states", {"slots": slots, "asked": asked}))[0], strict=True
        ):
            if what == "cut":
                assert found <= min(number, length)
                kept += found == length
                length = found
                continue
            assert held[found["read"]] == length
            assert 0 < found["write"] < slots
            if not keeps[0] and found["read"]:
                assert found["write"] == found["read"]
            length += number
            held[found["write"]] = length
        assert kept


def test_a_prompt_goes_on_from_the_state_before_its_last_step() -> None:
    steps = [
        ["step", 128, True],
        ["step", 60, True],
        ["step", 1, False],
        ["step", 1, False],
        ["cut", 187],
        ["step", 60, True],
    ]
    found = call(("states", {"slots": 3, "asked": steps}))[0]
    assert found == [
        {"read": 0, "write": 1}, {"read": 1, "write": 2}, {"read": 2, "write": 2}, {"read": 2, "write": 2}, 128,
        {"read": 1, "write": 2},
    ]  # fmt: skip
