"""What a KV cache refuses, with nothing changed: sizes, formats, shapes, values, steps that are over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fewbit.arrays import Floats
from fewbit.cache.kv import KVCache
from fewbit.cache.view import View
from fewbit.errors import (
    DataError,
    DtypeError,
    FormatError,
    LayoutError,
    OutOfMemory,
    PositionError,
    ShapeError,
    UnknownId,
)
from fewbit.ops import attention
from fewbit.ops.specs import RecurrentSpec

from .model import DIM, KV_HEADS, Q_HEADS, arrays, make_model


@pytest.mark.parametrize("name", ["q4_k", "i8", "f64", "int4", "nvfp4", "iq2_xs"])
@pytest.mark.parametrize("which", ["k", "v"])
def test_formats_that_do_not_fit(name: str, which: str) -> None:
    with pytest.raises(FormatError, match=f"{which} cannot be {name}; a KV cache takes: f32, f16, bf16, f8_e4m3, q4_0"):
        KVCache(1, 1, 32, pages=1, **{which: name}, kernels=attention)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"pages": None}, ShapeError, "either `tokens` or `pages`"),
        ({"tokens": 5}, ShapeError, "either `tokens` or `pages`"),
        ({"pages": 0}, ShapeError, "pages must be at least 1"),
        ({"pages": 1 << 31}, ShapeError, "at most 2147483647 pages"),
        ({"layers": 0}, ShapeError, "layers must be at least 1"),
        ({"dim": 2.5}, DtypeError, "k_dim must be an integer"),
        ({"page_tokens": 0}, ShapeError, "page_tokens must be at least 1"),
        ({"k": "q9"}, FormatError, "k cannot be 'q9'; a KV cache takes: f32, f16"),
        ({"v_dim": 0}, ShapeError, "v_dim must be at least 1"),
        ({"window": -1}, ShapeError, "window must be at least 0"),
        ({"max_seqs": 0}, ShapeError, "max_seqs must be at least 1"),
        ({"specs": [RecurrentSpec(8)], "window": 5}, ShapeError, "give either `specs`"),
        ({"specs": [RecurrentSpec(0)]}, ShapeError, "nbytes must be at least 1"),
        ({"specs": 5}, DtypeError, "specs must be a list of layer specs, not int"),
        ({"specs": ["a"]}, DtypeError, "a layer keeps an AttentionSpec, a RecurrentSpec or None, not str"),
        ({"k": 5}, FormatError, "format must be a name or a Format, not int"),
        ({"rotate": "yes"}, DtypeError, "rotate must be True or False, not 'yes'"),
        ({"kernels": 5}, DtypeError, "kernels must have kv_write, attend and keeps_tiles; int has not"),
        (
            {"pages": (1 << 31) - 1},
            OutOfMemory,
            r"a KV cache of \d+\.\d GB does not fit; .*: room for about \d+ tokens",
        ),
    ],
)
def test_caches_that_cannot_be(options: dict[str, Any], kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        make_model(**{"kernels": attention, **options})


@pytest.mark.parametrize(
    ("call", "kind", "sentence"),
    [
        (lambda cache, a: cache.reserve(5), DtypeError, "`reserve` takes pairs"),
        (lambda cache, a: cache.reserve([5]), DtypeError, "`reserve` takes pairs"),
        (lambda cache, a: cache.reserve([(a,)]), DtypeError, "`reserve` takes pairs"),
        (lambda cache, a: cache.reserve([(a, 1), (a, 1)]), DataError, "a sequence is given twice"),
        (lambda cache, a: cache.rollback(5), DtypeError, "view must be View, not int"),
        (lambda cache, a: cache.save(a, 5), DtypeError, "path must be a str or a Path, not int"),
        (lambda cache, a: cache.load(5), DtypeError, "path must be a str or a Path, not int"),
        (lambda cache, a: cache.load("x", fingerprint=5), DtypeError, "fingerprint must be str, not int"),
    ],
)
def test_calls_with_other_things(call: Callable[..., object], kind: type[Exception], sentence: str) -> None:
    cache = KVCache(1, 1, 32, pages=2, kernels=attention)
    with pytest.raises(kind, match=sentence):
        call(cache, cache.new())


ROWS = np.zeros((2, KV_HEADS, DIM), np.float32)
Q = np.zeros((2, Q_HEADS, DIM), np.float32)


def _with(value: float) -> Floats:
    rows = ROWS.copy()
    rows[1, 0, 3] = value
    return rows


@pytest.mark.parametrize(
    ("do", "kind", "sentence"),
    [
        (lambda c, a, step: c.append(2, step, ROWS, ROWS), PositionError, "layer must be from 0 to 1, got 2"),
        (lambda c, a, step: c.append(-1, step, ROWS, ROWS), PositionError, "got -1"),
        (lambda c, a, step: c.append(1, a, ROWS, ROWS), DtypeError, "step must be View, not int"),
        (lambda c, a, step: c.reserve([(c.new(), 1), (c.new(), 1), (a, 1)]), PositionError, "2 new tokens without"),
        (lambda c, a, step: c.reserve([(a + 1, 1), (a + 1, 1)]), UnknownId, "no sequence 2"),
        (
            lambda c, a, step: c.append(1, step, ROWS[:1], ROWS),
            ShapeError,
            r"k \(tokens, kv_heads, dim\) must have shape \(2, 2, 64\), not \(1, 2, 64\)",
        ),
        (lambda c, a, step: c.append(1, step, ROWS, ROWS[0]), ShapeError, "v .* must have"),
        (lambda c, a, step: c.append(1, step, _with(np.nan), ROWS), DataError, "k holds nan"),
        (lambda c, a, step: c.append(1, step, ROWS, _with(-np.inf)), DataError, "v holds -inf"),
        (lambda c, a, step: c.append(1, step, ROWS, _with(7e4)), DataError, "v holds 70000; kept in f16"),
        (lambda c, a, step: c.append(1, step, ROWS, "words"), DtypeError, "v must be numbers"),
        (
            lambda c, a, step: c.append(0, step, ROWS, ROWS),
            PositionError,
            "layer 0 has K and V of these tokens",
        ),
        (lambda c, a, step: c.attend(1, step, Q), PositionError, "layer 1 has no K and V of the new tokens yet"),
        (lambda c, a, step: c.attend(5, step, Q), PositionError, "got 5"),
        (lambda c, a, step: c.attend(0, replace(step), Q), PositionError, "this step is over"),
        (lambda c, a, step: c.attend(0, step, Q, window="all"), DtypeError, "window must be an integer"),
        (
            lambda c, a, step: c.attend(0, step, Q[:1]),
            ShapeError,
            r"\(2, a multiple of 2, 64\), not \(1, 6, 64\)",
        ),
        (lambda c, a, step: c.attend(0, step, Q[:, :3]), ShapeError, "q .* must have shape"),
        (lambda c, a, step: c.attend(0, step, Q[:, :0]), ShapeError, "q .* must have shape"),
        (
            lambda c, a, step: c.attend(0, step, Q, sinks=np.zeros(2)),
            ShapeError,
            r"sinks .* have shape \(6,\)",
        ),
        (lambda c, a, step: c.attend(0, step, Q, sinks=np.full(6, np.nan)), DataError, "sinks"),
        (lambda c, a, step: c.attend(0, step, Q, window=-1), ShapeError, "window must be at least 0"),
        (
            lambda c, a, step: c.attend(0, step, Q, softcap=-1.0),
            DataError,
            "softcap must be finite and at least 0, got -1",
        ),
        (lambda c, a, step: c.attend(0, step, Q, scale=np.nan), DataError, "scale must be finite, got nan"),
        (lambda c, a, step: c.attend(0, step, Q, scale="a"), DtypeError, "scale must be a number"),
        (lambda c, a, step: c.attend(0, step, Q, out=Q), LayoutError, "overlaps"),
        (lambda c, a, step: c.attend(0, step, Q, out=np.zeros((2, 6, 64))), DtypeError, "float32"),
        (lambda c, a, step: c.reserve([(a, 1)]), PositionError, "2 new tokens without K and V in layers 1"),
        (lambda c, a, step: c.commit(a, [1, 2]), PositionError, "append them, or truncate it to 0"),
        (lambda c, a, step: c.fork(a), PositionError, "without K and V"),
        (lambda c, a, step: c.save(a, "nowhere"), PositionError, "without K and V"),
        (lambda c, a, step: c.reserve([(99, 1)]), UnknownId, "no sequence 99"),
        (lambda c, a, step: c.reserve([("a", 1)]), DtypeError, "a sequence must be an integer"),
        (lambda c, a, step: c.fork(99), UnknownId, "no sequence 99"),
        (lambda c, a, step: c.free(99), UnknownId, "no sequence 99"),
        (lambda c, a, step: c.truncate(99, 0), UnknownId, "no sequence 99"),
        (lambda c, a, step: c.truncate(a, 3), PositionError, "it has 2"),
        (lambda c, a, step: c.length(99), UnknownId, "no sequence 99"),
        (lambda c, a, step: c.pin(99), UnknownId, "no sequence 99"),
        (lambda c, a, step: c.unpin(99), UnknownId, "no pin 99"),
    ],
)
def test_what_is_refused_changes_nothing(
    kernels: ModuleType, do: Callable[[KVCache, int, View], object], kind: type[Exception], sentence: str
) -> None:
    cache = make_model(kernels, k="f16").cache
    a = cache.new()
    step = cache.reserve([(a, 2)])
    cache.append(0, step, ROWS + 1, ROWS + 1)
    before = [array.copy() for array in arrays(cache)], cache.stats(), cache.length(a)
    with pytest.raises(kind, match=sentence):
        do(cache, a, step)
    np.testing.assert_array_equal(before[0], arrays(cache))
    assert (cache.stats(), cache.length(a)) == before[1:]
    cache.append(1, step, ROWS, ROWS)
    cache.commit(a, [1, 2])


def test_values_that_rotation_would_make_infinite(kernels: ModuleType) -> None:
    cache = make_model(kernels, k="f16", rotate=True).cache
    a = cache.new()
    step = cache.reserve([(a, 2)])
    with pytest.raises(DataError, match="k holds 10000; kept in f16, it takes numbers from -8188 to 8188"):
        cache.append(0, step, ROWS + 10000, ROWS)
    cache.append(0, step, ROWS + 8000, ROWS + 10000)
    assert np.isfinite(cache.attend(0, step, Q + 1)).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e38])
@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("k", ["f32", "q4_0"])
def test_one_bad_value_is_found(kernels: ModuleType, k: str, count: int, value: float) -> None:
    cache = make_model(kernels, k=k).cache
    a = cache.new()
    step = cache.reserve([(a, count)])
    rows = np.ones((count, KV_HEADS, DIM), np.float32)
    bad = rows.copy()
    bad[-1, -1, -1] = value
    if k == "f32" and np.isfinite(value):
        cache.append(0, step, bad, rows)
        return
    with pytest.raises(DataError, match="k holds"):
        cache.append(0, step, bad, rows)
    with pytest.raises(DataError, match="v holds"):
        cache.append(0, step, rows, bad)
