"""Guesses from earlier text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.engine.engine import Engine
from fewbit.engine.request import Generation
from fewbit.engine.speculation.lookup import LookupDrafter, NgramIndex, TextPool

from ..toy import Toy

TEXT = [7, 1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 4]


def request(text: list[int], namespace: str = "") -> Generation:
    toy = Toy()
    return Engine(toy, toy.cache, toy.ctx).generation(text, namespace=namespace)[0]


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 40), max_size=5))
def test_an_index_finds_the_last_place_however_a_text_grew(text: list[int], ends: list[int]) -> None:
    index = NgramIndex()
    for end in [*sorted(ends), len(text)]:
        index.update(text[:end])
    expected = None
    for size in (4, 2):
        places = [end for end in range(size, len(text)) if text[end - size : end] == text[len(text) - size :]]
        if places:
            expected = places[-1]
            break
    assert index.find(text) == expected


def test_a_draft_is_what_followed_the_last_tokens() -> None:
    drafter = LookupDrafter()
    asked = request(TEXT)
    assert drafter.prospect(asked) == (8, "match of 4")
    assert drafter.propose([asked], [3]) == [[5, 6, 9]]
    assert drafter.prospect(request([1, 2, 3])).length == 0


def test_a_text_that_repeats_itself_goes_on_doing_so() -> None:
    drafter = LookupDrafter()
    assert drafter.propose([request([5, 1, 2, 1, 2, 1, 2])], [5]) == [[1, 2, 1, 2, 1]]


def test_texts_of_others_are_found_in_their_namespace_only() -> None:
    drafter = LookupDrafter()
    writer = request([9, 9], "a")
    writer.tokens += range(20, 39)
    drafter.finish(writer)
    assert drafter.propose([request([1, 24, 25], "a")], [2]) == [[26, 27]]
    assert drafter.prospect(request([1, 24, 25], "b")).length == 0


@pytest.mark.parametrize("count", [5, 50])
def test_the_pool_is_bounded(count: int) -> None:
    pool = TextPool(max_tokens=100)
    for number in range(count):
        pool.add("", [*range(30 * number, 30 * number + 30)])
    last = 30 * count - 30
    assert pool.find("", [last + 5, last + 6]) is not None
    assert pool.find("", [5, 6]) is None
    assert len(pool._places) <= 2 * 100
