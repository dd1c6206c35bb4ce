"""What the sampling functions refuse, and params as values."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields, replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fewbit.errors import DataError, DtypeError, FewbitError, LogitsError, ShapeError
from fewbit.ops.sampling import SamplingParams

from .sampling_cases import logit_rows


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.nan])
@pytest.mark.parametrize("place", [0, 77, 2499])
def test_logits_that_are_no_numbers(sampler: ModuleType, bad: float, place: int) -> None:
    x = logit_rows("flat", 3, 2500, 0)
    x[1, place] = bad
    match = "row 1 of the logits holds NaN or \\+infinity"
    for params in (SamplingParams(0), SamplingParams()):
        with pytest.raises(DataError, match=match):
            sampler.sample(x, [params] * 3, [0.5] * 3)
    with pytest.raises(DataError, match=match):
        sampler.log_probabilities(x, [0, 1, 2])
    with pytest.raises(DataError, match="row 0 of the logits"):
        sampler.top_tokens(x[1], 3)


def test_all_bad_rows_are_named(sampler: ModuleType) -> None:
    x = logit_rows("flat", 9, 70, 0)
    x[1, 3], x[4], x[5, 0], x[8, 69] = np.nan, -np.inf, np.inf, np.nan
    match = "row 1 of .* NaN or \\+infinity; row 4 .* all are -infinity; row 5 .* NaN or \\+infinity; and 1 more rows"
    with pytest.raises(LogitsError, match=match) as caught:
        sampler.sample(x, [SamplingParams()] * 9, [0.5] * 9, threads=2)
    assert caught.value.rows == [1, 4, 5, 8]
    with pytest.raises(LogitsError, match=match) as caught:
        sampler.log_probabilities(x, [0] * 9, threads=2)
    assert caught.value.rows == [1, 4, 5, 8]
    good = [0, 2, 3, 6, 7]
    assert len(sampler.sample(x[good], [SamplingParams()] * 5, [0.5] * 5)[0]) == 5
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.rows) == (str(caught.value), caught.value.rows)


def test_rows_without_a_token(sampler: ModuleType) -> None:
    x = np.zeros((2, 9), np.float32)
    x[1] = -np.inf
    match = "row 1 of the logits holds no token that can be sampled"
    with pytest.raises(DataError, match=match):
        sampler.sample(x, [SamplingParams()] * 2, [0.5] * 2)
    with pytest.raises(DataError, match=match):
        sampler.log_probabilities(x, [0, 1])


X = np.zeros((2, 9), np.float32)
TWO = [SamplingParams(), SamplingParams()]


@pytest.mark.parametrize(("error", "match", "arguments"), [
    (ShapeError, "logits must have shape \\(rows, vocab\\), their shape is \\(9,\\)", (X[0], TWO, [0, 0])),
    (ShapeError, "logits must have shape", (np.zeros((2, 0), np.float32), TWO, [0, 0])),
    (DtypeError, "logits", ([["a"]], TWO, [0, 0])),
    (ShapeError, "params must be given for each of 2 rows, 1", (X, TWO[:1], [0, 0])),
    (DtypeError, "params must be SamplingParams", (X, [SamplingParams(), {}], [0, 0])),
    (ShapeError, "uniforms must be given for each of 2 rows, 3", (X, TWO, [0, 0, 0])),
    (ShapeError, "uniforms must be one number", (X, TWO, [[0, 0]])),
    (DtypeError, "uniforms must be numbers", (X, TWO, ["a", "b"])),
    (DataError, "uniform number of row 1: 1", (X, TWO, [0, 1])),
    (DataError, "uniform number of row 0: -0.1", (X, TWO, [-0.1, 0])),
    (DataError, "uniform number of row 0: nan", (X, TWO, [np.nan, 0])),
    (ShapeError, "seen must be given for each of 2 rows", (X, TWO, [0, 0], [None])),
    (ShapeError, "token ids and counts", (X, TWO, [0, 0], [None, ([0],)])),
    (ShapeError, "as many counts as tokens", (X, TWO, [0, 0], [None, ([0], [1, 2])])),
    (ShapeError, "one row", (X, TWO, [0, 0], [None, ([[0]], [[1]])])),
    (DtypeError, "integers", (X, TWO, [0, 0], [None, ([0.5], [1])])),
    (DataError, "32 bits", (X, TWO, [0, 0], [None, ([2**40], [1])])),
    (DataError, "seen tokens of row 1: 9 is not from 0 to 8", (X, TWO, [0, 0], [None, ([9], [1])])),
    (DataError, "seen tokens of row 1: -1 is not from 0 to 8", (X, TWO, [0, 0], [None, ([-1], [1])])),
    (DataError, "seen tokens of row 0: a count is negative", (X, TWO, [0, 0], [([1], [-1]), None])),
    (DataError, "seen tokens of row 0: a token is given twice", (X, TWO, [0, 0], [([1, 2, 1], [1, 1, 1]), None])),
])  # fmt: skip
def test_what_sample_refuses(sampler: ModuleType, error: type[FewbitError], match: str, arguments: Any) -> None:
    with pytest.raises(error, match=match):
        sampler.sample(*arguments)


def test_what_the_others_refuse(sampler: ModuleType) -> None:
    with pytest.raises(DataError, match="token of row 1: 9 is not from 0 to 8"):
        sampler.log_probabilities(X, [0, 9])
    with pytest.raises(DataError, match="token of row 0: -1"):
        sampler.log_probabilities(X, [-1, 0])
    with pytest.raises(ShapeError, match="tokens must be given for each of 2 rows"):
        sampler.log_probabilities(X, [0])
    with pytest.raises(DtypeError, match="integers"):
        sampler.log_probabilities(X, [0.0, 1.0])
    with pytest.raises(ShapeError, match="one row"):
        sampler.top_tokens(X, 1)
    for count in (-1, 10):
        with pytest.raises(DataError, match="count must be from 0 to 9"):
            sampler.top_tokens(X[0], count)
    with pytest.raises(DtypeError, match="count must be an integer"):
        sampler.top_tokens(X[0], 1.5)


@pytest.mark.parametrize(("values", "match"), [
    ({"temperature": -0.1}, "temperature must be from 0"),
    ({"temperature": float("nan")}, "temperature must be from 0"),
    ({"temperature": float("inf")}, "temperature must be from 0"),
    ({"temperature": "1"}, "temperature must be a number, not '1'"),
    ({"top_k": -1}, "top_k must be from 0 to 2147483647, got -1"),
    ({"top_k": 2**31}, "top_k must be from 0"),
    ({"top_k": 1.0}, "top_k must be an integer"),
    ({"top_k": None}, "top_k must be an integer"),
    ({"top_p": 1.01}, "top_p must be from 0 to 1"),
    ({"min_p": -0.01}, "min_p must be from 0 to 1"),
    ({"repetition_penalty": 0}, "repetition_penalty must be from 1e-06 to 1000000"),
    ({"presence_penalty": float("inf")}, "presence_penalty must be from -1000000"),
    ({"frequency_penalty": float("nan")}, "frequency_penalty must be from -1000000"),
])  # fmt: skip
def test_params_that_are_refused(values: dict[str, Any], match: str) -> None:
    with pytest.raises(FewbitError, match=match):
        SamplingParams(**values)


def test_params_are_values() -> None:
    names = ["temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]
    assert [field.name for field in fields(SamplingParams)] == names
    params = SamplingParams(np.float32(0.5), np.int64(3), presence_penalty=1)
    assert params == SamplingParams(0.5, 3, presence_penalty=1.0)
    assert hash(params) == hash(SamplingParams(0.5, 3, presence_penalty=1.0))
    assert type(params.top_k) is int
    for again in (copy.copy(params), copy.deepcopy(params), pickle.loads(pickle.dumps(params)), replace(params)):
        assert again == params
        assert again.packed == params.packed
    assert np.frombuffer(replace(params, top_p=0.25).packed).tolist() == [0.5, 3, 0.25, 0.05, 1, 1, 0]
