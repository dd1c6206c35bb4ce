"""Coordinate descent beside a slow one that tries every level, and that it never makes a row worse."""

from __future__ import annotations

import numpy as np
import pytest

import fewbit as fb
from fewbit.arrays import Bytes, Floats
from fewbit.formats import Format
from fewbit.formats.decode import read_codes, split
from fewbit.formats.spec import Grid
from fewbit.ops.cpu import decode, encode
from fewbit.quantizing import descent, feedback
from fewbit.quantizing.blocks import factors, scalable
from fewbit.quantizing.descent import descend, output_errors
from fewbit.quantizing.mixes import FLOATS, writable_formats

FORMATS = [name for name in writable_formats() if name not in FLOATS]


def sample(fmt: Format, k: int, seed: int = 0) -> tuple[Floats, Floats]:
    """Rows, and a Hessian of inputs that resemble each other."""
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((4 * k, k)) @ (rng.standard_normal((k, k)) * np.exp(-np.arange(k) / (k / 8)))
    return rng.standard_normal((6, k)).astype(np.float32), feedback.read_feedback(inputs.T @ inputs).hessian


def levels_of(fmt: Format) -> list[float]:
    low, high = fmt.code_range
    return sorted(set(fmt.codebook)) if fmt.codebook else [float(q) for q in range(int(low), int(high) + 1)]


def slow_codes(fmt: Format, rows: Floats, data: Bytes, hessian: Floats) -> Floats:
    """One sweep over all columns: each level is tried, with the whole of E H E^T. Scales stay."""
    h = hessian.astype(np.float64)
    blocks = data.reshape(-1, fmt.row_bytes(fmt.block))
    scale, offset = (a.reshape(rows.shape).astype(np.float64) for a in factors(fmt, split(fmt, blocks)))
    values = decode(fmt, data, rows.shape[1]).astype(np.float64)
    for row, x in enumerate(rows):
        for j in range(len(x)):
            tried = [q * scale[row, j] + offset[row, j] for q in levels_of(fmt)]
            errors = []
            for value in tried:
                values[row, j] = value
                apart = x - values[row]
                errors.append(apart @ h @ apart)
            values[row, j] = tried[int(np.argmin(errors))]
    return values.astype(np.float32)


@pytest.mark.parametrize("name", ["q4_0", "q5_1", "iq4_nl"])
def test_codes_are_those_of_a_slow_sweep(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descent, "SWEEPS", 1)
    monkeypatch.setattr(descent, "scalable", lambda fmt: [])
    fmt = fb.format(name)
    rows, hessian = sample(fmt, 96)
    data = encode(fmt, rows)
    expected = slow_codes(fmt, rows, data, hessian)
    apart = rows - decode(fmt, data, 96)
    made = decode(fmt, descend(fmt, rows, data, apart, hessian, 1), 96)
    assert (made == expected).mean() > 0.99  # two levels may be equally near
    assert np.allclose(output_errors(rows - made, hessian), output_errors(rows - expected, hessian), rtol=1e-3)
    assert np.array_equal(apart, rows - made)


@pytest.mark.parametrize("name", FORMATS)
def test_no_row_gets_worse(name: str) -> None:
    fmt = fb.format(name)
    rows, hessian = sample(fmt, 2 * max(fmt.block, 64))
    data = encode(fmt, rows, np.ascontiguousarray(hessian.diagonal()))
    before = rows - decode(fmt, data, rows.shape[1])
    made = descend(fmt, rows, data.copy(), before.copy(), hessian, 1)
    after = rows - decode(fmt, made, rows.shape[1])
    assert (output_errors(after, hessian) <= output_errors(before, hessian) * 1.0001).all()
    if scalable(fmt) and not isinstance(fmt.codes, Grid):
        assert output_errors(after, hessian).sum() < 0.9 * output_errors(before, hessian).sum()


def test_rows_of_zeros_and_huge_rows() -> None:
    fmt = fb.format("q4_k")
    rows, hessian = sample(fmt, 256)
    rows[0], rows[1] = 0, rows[1] * np.float32(1e6)
    made = decode(fmt, feedback.encode_with_feedback(fmt, rows, feedback.read_feedback(hessian)), 256)
    assert not made[0].any()
    assert np.isfinite(made).all()


@pytest.mark.parametrize("name", ["q4_0", "q3_k", "iq2_xs"])
def test_a_row_is_never_worse_than_with_a_plain_search(name: str) -> None:
    fmt = fb.format(name)
    rows, hessian = sample(fmt, 512, seed=3)
    known = feedback.read_feedback(hessian)
    made = decode(fmt, feedback.encode_with_feedback(fmt, rows, known), 512)
    plain = decode(fmt, encode(fmt, rows, np.ascontiguousarray(known.hessian.diagonal())), 512)
    errors = [output_errors(rows - values, known.hessian) for values in (made, plain)]
    assert (errors[0] <= errors[1] * 1.0001).all()


def test_codes_are_written_where_they_are_read() -> None:
    fmt = fb.format("q5_k")
    data = encode(fmt, sample(fmt, 256)[0])
    fields = split(fmt, data)
    codes = read_codes(fmt, fields, 256)
    before = data.copy()
    descent.write_codes(fmt, fields, codes)
    assert np.array_equal(data, before)
