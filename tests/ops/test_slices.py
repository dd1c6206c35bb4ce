"""Parts of packed matrices, beside the same parts of decoded ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fewbit as fb
from fewbit.errors import ShapeError
from fewbit.formats import all_formats, get
from fewbit.ops.slices import column_step, take_columns, take_rows

FORMATS = [*sorted(all_formats()), "int4_group:group=64,zero=true", "int4_group:group=32"]


def packed(name: str, *shape: int) -> fb.QuantTensor:
    return fb.quantize(np.random.default_rng(shape).standard_normal(shape, np.float32), name)


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(FORMATS),
    lead=st.sampled_from([(1,), (5,), (3, 4)]),
    blocks=st.integers(1, 4),
    cut=st.tuples(st.integers(0, 3), st.integers(1, 4)),
)
def test_columns_are_those_of_the_decoded_matrix(
    name: str, lead: tuple[int, ...], blocks: int, cut: tuple[int, int]
) -> None:
    step = column_step(get(name))
    w = packed(name, *lead, blocks * step)
    start = min(cut[0], blocks - 1)
    stop = min(max(cut[1], start + 1), blocks)
    part = take_columns(w, start * step, stop * step)
    np.testing.assert_array_equal(part.dequantize(), w.dequantize()[..., start * step : stop * step])
    seen = take_columns(w, start * step, stop * step, copies=False)
    assert (seen.shape, seen.nbytes) == (part.shape, part.nbytes)


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(FORMATS), count=st.integers(0, 3), n=st.integers(1, 20), first=st.integers(0, 19))
def test_rows_are_those_of_the_decoded_matrix(name: str, count: int, n: int, first: int) -> None:
    shape = (*((count,) if count else ()), n, column_step(get(name)))
    w, start = packed(name, *shape), min(first, n - 1)
    part = take_rows(w, start, n)
    np.testing.assert_array_equal(part.dequantize(), w.dequantize()[..., start:n, :])
    seen = take_rows(w, start, n, copies=False)
    assert (seen.shape, seen.nbytes) == (part.shape, part.nbytes)


@pytest.mark.parametrize("name", [name for name, fmt in all_formats().items() if fmt.placement == "row"])
def test_the_last_columns_may_be_a_part_of_a_group(name: str) -> None:
    step = column_step(get(name))
    w = packed(name, 6, 2 * step + 5)
    values = w.dequantize()
    for start, stop in ((0, step), (step, 2 * step + 5)):
        np.testing.assert_array_equal(take_columns(w, start, stop).dequantize(), values[:, start:stop])


def test_a_whole_matrix_is_no_copy() -> None:
    w = packed("q4_0", 8, 64)
    assert take_rows(w, 0, 8) is w
    assert take_columns(w, 0, 64) is w
    assert np.shares_memory(take_rows(w, 2, 5).stored, w.stored)


@pytest.mark.parametrize(("start", "stop"), [(16, 64), (0, 40), (32, 32), (-32, 32), (32, 96)])
def test_blocks_are_not_cut(start: int, stop: int) -> None:
    with pytest.raises(ShapeError, match=f"columns {start} to {stop} cut blocks of 32 columns of q8_0"):
        take_columns(packed("q8_0", 4, 64), start, stop)


def test_interleaved_rows_are_refused() -> None:
    w = packed("q8_0", 16, 64)
    with pytest.raises(ShapeError, match="not of interleaved16"):
        take_columns(fb.QuantTensor(w.stored, w.shape, w.format, "interleaved16"), 0, 32)
