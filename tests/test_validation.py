"""Integers that callers give."""

from __future__ import annotations

import numpy as np
import pytest

from fewbit.errors import DtypeError, RequestError, ShapeError
from fewbit.validation import to_integer, to_size


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), np.array(3)])
def test_integers_of_any_kind(value: object) -> None:
    number = to_integer(value, "n")
    assert (number, type(number)) == (3, int)


@pytest.mark.parametrize("value", [3.0, "3", None, [3], np.float32(3), np.array([1, 2])])
def test_what_is_no_integer(value: object) -> None:
    with pytest.raises(DtypeError, match=f"n must be an integer, not {type(value).__name__}"):
        to_integer(value, "n")


@pytest.mark.parametrize(("value", "least", "most"), [(0, 0, None), (5, 1, 5), (1, 1, 5), (1 << 80, 0, None)])
def test_sizes(value: int, least: int, most: int | None) -> None:
    assert to_size(value, "n", least, most) == value


@pytest.mark.parametrize(
    ("value", "least", "most", "words"),
    [(-1, 0, None, "at least 0, got -1"), (0, 1, 5, "from 1 to 5, got 0"), (6, 1, 5, "from 1 to 5, got 6")],
)
def test_sizes_out_of_range(value: int, least: int, most: int | None, words: str) -> None:
    with pytest.raises(ShapeError, match=f"n must be {words}"):
        to_size(value, "n", least, most)
    with pytest.raises(RequestError, match=words):
        to_size(value, "n", least, most, error=RequestError)
