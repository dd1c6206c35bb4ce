"""The KV cache as an engine uses it: step by step, in chunks and batches, forked, shared, and refused."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fewbit.cache.kv import KVCache
from fewbit.errors import (
    DataError,
    DtypeError,
    FewbitError,
    FormatError,
    LayoutError,
    OutOfPages,
    PositionError,
    ShapeError,
    UnknownId,
)
from fewbit.formats import get
from fewbit.ops import attention, cpu

from ..exact_attention import HAS_NATIVE, KV_FORMATS, error, exact

Floats = npt.NDArray[np.float32]
BACKENDS = [attention, *([cpu] if HAS_NATIVE else [])]
LAYERS, KV_HEADS, Q_HEADS, DIM = 2, 2, 6, 64


@pytest.fixture(scope="module", params=BACKENDS, ids=lambda module: module.__name__.rpartition(".")[2])
def backend(request: pytest.FixtureRequest) -> Any:
    return request.param


class Model:
    """K, V and q that follow from a token, its position and the layer, as if there were a model."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.texts: dict[int, list[int]] = {}

    def begin(self, prompt: list[int] | None = None) -> int:
        sequence = self.cache.new(prompt or [])
        self.texts[sequence] = (prompt or [])[: self.cache.length(sequence)]
        return sequence

    def step(self, work: dict[int, list[int]], commit: bool = True, **options: Any) -> list[Floats]:
        """Tokens for each sequence, all in one batch; the outputs of each layer."""
        for sequence, tokens in work.items():
            self.cache.extend(sequence, len(tokens))
            self.texts[sequence] += tokens
        outputs = []
        for layer in range(self.cache.layout.layers):
            of = [(self.texts[s], len(tokens)) for s, tokens in work.items()]
            k, v, q = (np.concatenate([self.make(layer, what, *one) for one in of]) for what in range(3))
            self.cache.append(layer, list(work), k, v)
            outputs.append(self.cache.attend(layer, list(work), q, **options))
        if commit:
            for sequence, tokens in work.items():
                self.cache.commit(sequence, tokens)
        return outputs

    def make(self, layer: int, what: int, text: list[int], last: int) -> Floats:
        """K, V or q (0, 1 or 2) of the last tokens of a text."""
        heads = Q_HEADS if what == 2 else self.cache.layout.kv_heads
        rows = [
            np.random.default_rng((layer, what, position, text[position])).standard_normal(
                (heads, self.cache.layout.dim), np.float32
            )
            for position in range(len(text) - last, len(text))
        ]
        return np.array(rows, np.float32).reshape(last, heads, self.cache.layout.dim)

    def wanted(self, layer: int, sequence: int, rows: int, **options: Any) -> npt.NDArray[np.float64]:
        text = self.texts[sequence]
        k, v = (self.make(layer, what, text, len(text)) for what in (0, 1))
        options = {"scale": self.cache.layout.dim**-0.5} | options
        return exact(self.make(layer, 2, text, rows), k, v, **options)

    def fork(self, sequence: int) -> int:
        child = self.cache.fork(sequence)
        self.texts[child] = self.texts[sequence][:]
        return child

    def check(self, sequence: int) -> None:
        """Read a sequence without changing it: a fork asks with one more token."""
        probe = self.fork(sequence)
        for layer, y in enumerate(self.step({probe: [1]}, commit=False)):
            assert error(y, self.wanted(layer, probe, 1)) <= 2e-6
        self.cache.free(probe)


def make_model(backend: ModuleType, **options: Any) -> Model:
    options = {"layers": LAYERS, "kv_heads": KV_HEADS, "dim": DIM, "pages": 64, "page_tokens": 8, "k": "f32"} | options
    return Model(KVCache(backend=backend, **options))


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 1000, count).tolist()


def test_decode_and_prefill_in_one_batch(backend: ModuleType) -> None:
    model = make_model(backend)
    a, b, c = (model.begin() for _ in range(3))
    model.step({a: tokens(20), b: tokens(7, 1)})
    for work in ({a: [5], b: tokens(9, 2), c: tokens(30, 3)}, {c: [1], a: [2], b: [3]}):
        for layer, y in enumerate(model.step(work)):
            rows = [model.wanted(layer, s, len(new)) for s, new in work.items()]
            assert error(y, np.concatenate(rows)) <= 2e-6


@pytest.mark.parametrize("k", KV_FORMATS)
def test_chunks_give_what_one_piece_gives(backend: ModuleType, k: str) -> None:
    text, model = tokens(45), make_model(backend, k=k)
    whole, parts = model.begin(), model.begin()
    one = model.step({whole: text}, commit=False)
    chunks = [model.step({parts: text[i : i + 13]}, commit=False) for i in range(0, 45, 13)]
    for layer in range(LAYERS):
        assert error(np.concatenate([chunk[layer] for chunk in chunks]), one[layer]) <= 1e-5
        for store in model.cache._k[layer], model.cache._v[layer]:
            rows = [store.data[model.cache._pages.table(s)] for s in (whole, parts)]
            np.testing.assert_array_equal(rows[0][:5], rows[1][:5])  # bytes are the same, whenever they are written


def test_options_reach_attention(backend: ModuleType) -> None:
    model = make_model(backend)
    a = model.begin()
    options = {"scale": 0.4, "window": 6, "softcap": 8.0, "sinks": np.arange(Q_HEADS, dtype=np.float32)}
    for layer, y in enumerate(model.step({a: tokens(30)}, **options)):
        assert error(y, model.wanted(layer, a, 30, **options)) <= 2e-6
    out = np.empty((30, Q_HEADS, DIM), np.float32)
    assert model.cache.attend(1, a, model.make(1, 2, model.texts[a], 30), out=out, threads=1) is out
    assert error(out, model.wanted(1, a, 30)) <= 2e-6


@pytest.mark.parametrize("k", ["q4_0", "q8_0"])
def test_rotation_is_on_below_8_bits_and_can_be_set(backend: ModuleType, k: str) -> None:
    assert make_model(backend, k=k).cache.layout.rotate == (k == "q4_0")
    outputs = []
    for rotate in (False, True):
        model = make_model(backend, k=k, v="f32", rotate=rotate)
        a = model.begin()
        outputs.append(model.step({a: tokens(40)})[0])
        assert error(outputs[-1], model.wanted(0, a, 40)) < 0.15
    assert not np.array_equal(*outputs)


@pytest.mark.parametrize("length", [16, 20])
def test_parent_and_forks_never_see_each_other(backend: ModuleType, length: int) -> None:
    model = make_model(backend, pages=80)
    parent = model.begin()
    model.step({parent: tokens(length)})
    family = [parent, *(model.fork(parent) for _ in range(8))]
    shared = length // 8
    for written, member in enumerate(family, 1):
        model.step({member: [1000 + member]})
        last = length % 8 and written < len(family)  # the page that those who have not written share
        assert model.cache.stats().used == shared + written + bool(last)
        for other in family:
            model.check(other)
    model.step({member: tokens(11, member) for member in family})
    for member in family:
        model.check(member)


def test_1000_sequences_share_a_prefix(backend: ModuleType) -> None:
    cache = KVCache(1, 1, 32, pages=64 + 1000, k="q8_0", backend=backend)
    prefix = tokens(2048)
    first = cache.new(prefix)
    cache.extend(first, 2048)
    rng = np.random.default_rng(0)
    k, v = (rng.standard_normal((2048, 1, 32), np.float32) for _ in range(2))
    cache.append(0, first, k, v)
    cache.commit(first, prefix)
    everyone = [first, *(cache.new([*prefix, 7]) for _ in range(999))]
    assert all(cache.length(s) == 2048 for s in everyone)
    assert cache.stats().used == 64
    for s in everyone:
        cache.extend(s, 3)
    tails = [rng.standard_normal((3000, 1, 32), np.float32) for _ in range(2)]
    cache.append(0, everyone, *tails)
    stats = cache.stats()
    assert stats.used == 64 + 1000
    assert stats.references == 65 * 1000
    assert stats.nbytes == (64 + 1000) * 32 * 2 * 34 == cache.nbytes
    assert stats.savings == 1 - 34 / 128
    some = [0, 500, 999]
    q = rng.standard_normal((9, 4, 32), np.float32)
    y = cache.attend(0, [everyone[s] for s in some], q)
    for i, s in enumerate(some):
        own = [np.concatenate([x, tail[3 * s : 3 * s + 3]]) for x, tail in zip((k, v), tails, strict=True)]
        assert error(y[3 * i : 3 * i + 3], exact(q[3 * i : 3 * i + 3], *own, scale=32**-0.5)) < 0.02
    with pytest.raises(OutOfPages):
        cache.extend(everyone[5], 30)


def test_prompts_are_found_again_after_free(backend: ModuleType) -> None:
    model, text = make_model(backend), tokens(30)
    a = model.begin()
    model.step({a: text})
    model.cache.free(a)
    b = model.begin(text)
    assert model.cache.length(b) == model.cache.lookup(text) == 24
    model.step({b: text[24:]})
    model.check(b)
    assert model.cache.stats().hits == 3


def test_sequences_that_become_alike_share_at_commit(backend: ModuleType) -> None:
    model, text = make_model(backend), tokens(16)
    a, b = model.begin(), model.begin()
    model.step({a: text, b: text})
    assert model.cache.stats().used == 2
    model.check(a)
    model.check(b)


def test_draft_is_cut_back(backend: ModuleType) -> None:
    model = make_model(backend)
    a = model.begin()
    model.step({a: tokens(14)})
    model.step({a: [1, 2, 3, 4, 5]}, commit=False)
    model.cache.commit(a, [1, 2])
    model.cache.truncate(a, 16)
    model.texts[a] = model.texts[a][:16]
    assert model.cache.length(a) == model.cache.committed(a) == 16
    model.step({a: [9, 9]})
    model.check(a)


def test_failed_step_is_given_back(backend: ModuleType) -> None:
    model = make_model(backend)
    a = model.begin()
    model.step({a: tokens(10)})
    model.cache.extend(a, 5)
    model.cache.append(0, a, *np.zeros((2, 5, KV_HEADS, DIM), np.float32))
    model.cache.truncate(a, 12)  # two of the five tokens stay, and still miss layer 1
    with pytest.raises(PositionError, match="has 2 new tokens without K and V in layers 1"):
        model.cache.commit(a, [1, 2])
    model.cache.truncate(a, 10)
    model.step({a: [3]})
    model.check(a)


def test_pinned_pages_stay(backend: ModuleType) -> None:
    model, text = make_model(backend, pages=4), tokens(16)
    a = model.begin()
    model.step({a: text})
    pin = model.cache.pin(a)
    model.cache.free(a)
    b = model.begin()
    with pytest.raises(OutOfPages, match="needed: 3, free or evictable: 2"):
        model.cache.extend(b, 24)
    assert model.cache.length(b) == 0
    assert model.cache.lookup(text) == 16
    model.cache.unpin(pin)
    model.cache.extend(b, 24)
    assert model.cache.lookup(text) == 8
    assert model.cache.available == 1


@pytest.mark.parametrize("dim", [32, 80, 256])
@pytest.mark.parametrize("name", KV_FORMATS)
def test_memory_is_what_the_format_says(name: str, dim: int) -> None:
    cache = KVCache(3, 2, dim, tokens=100, k=name, page_tokens=16, backend=attention)
    values = 7 * 16 * 3 * 2 * 2 * (-(-dim // 32) * 32 if get(name).block == 32 else dim)
    assert cache.nbytes == values * get(name).bits_per_weight / 8
    assert cache.nbytes == sum(store.data.nbytes for store in cache._stores())
    assert all(store.data.ctypes.data % 64 == 0 for store in cache._stores())


def test_a_batch_can_be_empty(backend: ModuleType) -> None:
    model = make_model(backend)
    nothing = np.zeros((0, KV_HEADS, DIM), np.float32)
    model.cache.append(0, [], nothing, nothing)
    assert model.cache.attend(0, [], nothing).shape == nothing.shape
    assert model.cache.attend(0, model.begin(), nothing).shape == nothing.shape


def test_numbers_of_other_types_are_taken(backend: ModuleType) -> None:
    model = make_model(backend)
    a = model.begin()
    model.cache.extend(a, 1)
    model.cache.append(0, np.array([a]), np.ones((1, KV_HEADS, DIM), np.float16), [[[1] * DIM] * KV_HEADS])
    assert (model.cache.attend(0, a, np.ones((1, Q_HEADS, DIM))) == 1).all()


@pytest.mark.parametrize("name", ["q4_k", "i8", "f64", "int4", "nvfp4", "iq2_xs"])
@pytest.mark.parametrize("which", ["k", "v"])
def test_formats_that_do_not_fit(name: str, which: str) -> None:
    with pytest.raises(FormatError, match=f"{which} cannot be {name}; a KV cache takes: f32, f16, bf16, q4_0, .*mxfp4"):
        KVCache(1, 1, 32, pages=1, **{which: name}, backend=attention)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"pages": None}, ShapeError, "`tokens` or as `pages`"),
        ({"tokens": 5}, ShapeError, "`tokens` or as `pages`"),
        ({"pages": 0}, ShapeError, "pages must be at least 1"),
        ({"pages": 1 << 31}, ShapeError, "at most 2147483647 pages"),
        ({"layers": 0}, ShapeError, "layers must be at least 1"),
        ({"dim": 2.5}, DtypeError, "dim is an integer"),
        ({"page_tokens": 0}, ShapeError, "page_tokens must be at least 1"),
        ({"k": "q9"}, FormatError, "unknown format"),
    ],
)
def test_caches_that_cannot_be(options: dict[str, Any], kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        make_model(attention, **options)


ROWS = np.zeros((2, KV_HEADS, DIM), np.float32)
Q = np.zeros((2, Q_HEADS, DIM), np.float32)


def _with(value: float) -> Floats:
    rows = ROWS.copy()
    rows[1, 0, 3] = value
    return rows


@pytest.mark.parametrize(
    ("do", "kind", "sentence"),
    [
        (lambda c, a: c.append(2, a, ROWS, ROWS), PositionError, "layers 0 to 1, not 2"),
        (lambda c, a: c.append(-1, a, ROWS, ROWS), PositionError, "not -1"),
        (lambda c, a: c.append(1, 99, ROWS, ROWS), UnknownId, "no sequence 99"),
        (lambda c, a: c.append(1, [a, a], ROWS, ROWS), FewbitError, "given twice"),
        (lambda c, a: c.append(1, [a], ROWS[:1], ROWS), ShapeError, r"k must have .* \(2, 2, 64\), its shape is"),
        (lambda c, a: c.append(1, [a], ROWS, ROWS[0]), ShapeError, "v must have"),
        (lambda c, a: c.append(1, a, _with(np.nan), ROWS), DataError, "k holds nan"),
        (lambda c, a: c.append(1, a, ROWS, _with(-np.inf)), DataError, "v holds -inf"),
        (lambda c, a: c.append(1, a, ROWS, _with(7e4)), DataError, "v holds 70000; kept in f16"),
        (lambda c, a: c.append(1, a, ROWS, "words"), DtypeError, "v must be numbers"),
        (lambda c, a: c.append(0, a, ROWS, ROWS), PositionError, "layer 0 holds these tokens already"),
        (lambda c, a: c.attend(1, a, Q), PositionError, "layer 1 has no K and V of the new tokens yet"),
        (lambda c, a: c.attend(5, a, Q), PositionError, "not 5"),
        (lambda c, a: c.attend(0, 99, Q), UnknownId, "no sequence 99"),
        (lambda c, a: c.attend(0, a, Q[:1]), ShapeError, r"\(2, a multiple of 2, 64\), its shape is \(1, 6, 64\)"),
        (lambda c, a: c.attend(0, a, Q[:, :3]), ShapeError, "q must have shape"),
        (lambda c, a: c.attend(0, a, Q[:, :0]), ShapeError, "q must have shape"),
        (lambda c, a: c.attend(0, a, Q, sinks=np.zeros(2)), ShapeError, "each of 6 heads"),
        (lambda c, a: c.attend(0, a, Q, sinks=np.full(6, np.nan)), DataError, "sinks"),
        (lambda c, a: c.attend(0, a, Q, window=-1), ShapeError, "window must be at least 0"),
        (lambda c, a: c.attend(0, a, Q, softcap=-1.0), DataError, "softcap is finite and not negative"),
        (lambda c, a: c.attend(0, a, Q, scale=np.nan), DataError, "scale is finite"),
        (lambda c, a: c.attend(0, a, Q, scale="a"), DtypeError, "scale is a number"),
        (lambda c, a: c.attend(0, a, Q, out=Q), LayoutError, "overlaps"),
        (lambda c, a: c.attend(0, a, Q, out=np.zeros((2, 6, 64))), DtypeError, "float32"),
        (lambda c, a: c.extend(a, 1), PositionError, "2 new tokens without K and V in layers 1"),
        (lambda c, a: c.commit(a, [1, 2]), PositionError, "append them, or truncate it to 0"),
        (lambda c, a: c.fork(a), PositionError, "without K and V"),
        (lambda c, a: c.save(a, "nowhere"), PositionError, "without K and V"),
        (lambda c, a: c.extend(99), UnknownId, "no sequence 99"),
        (lambda c, a: c.extend("a"), DtypeError, "a sequence is an integer"),
        (lambda c, a: c.append(0, 1.5, ROWS, ROWS), DtypeError, "a sequence is an integer"),
        (lambda c, a: c.fork(99), UnknownId, "no sequence 99"),
        (lambda c, a: c.free(99), UnknownId, "no sequence 99"),
        (lambda c, a: c.truncate(99, 0), UnknownId, "no sequence 99"),
        (lambda c, a: c.truncate(a, 3), PositionError, "has 2 tokens"),
        (lambda c, a: c.length(99), UnknownId, "no sequence 99"),
        (lambda c, a: c.pin(99), UnknownId, "no sequence 99"),
        (lambda c, a: c.unpin(99), UnknownId, "no pin 99"),
    ],
)
def test_what_is_refused_changes_nothing(
    backend: ModuleType, do: Callable[[KVCache, int], object], kind: type[Exception], sentence: str
) -> None:
    cache = make_model(backend, k="f16").cache
    a = cache.new()
    cache.extend(a, 2)
    cache.append(0, a, ROWS + 1, ROWS + 1)
    before = [store.data.copy() for store in cache._stores()], cache.stats(), cache.length(a)
    with pytest.raises(kind, match=sentence):
        do(cache, a)
    np.testing.assert_array_equal(before[0], [store.data for store in cache._stores()])
    assert (cache.stats(), cache.length(a)) == before[1:]
    cache.append(1, a, ROWS, ROWS)
    cache.commit(a, [1, 2])


def test_values_that_rotation_would_make_infinite(backend: ModuleType) -> None:
    cache = make_model(backend, k="f16", rotate=True).cache
    a = cache.new()
    cache.extend(a, 2)
    with pytest.raises(DataError, match="k holds 10000; kept in f16, it takes numbers from -8188 to 8188"):
        cache.append(0, a, ROWS + 10000, ROWS)
    cache.append(0, a, ROWS + 8000, ROWS + 10000)
    assert np.isfinite(cache.attend(0, a, Q + 1)).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e38])
@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("k", ["f32", "q4_0"])
def test_one_bad_value_is_found(backend: ModuleType, k: str, count: int, value: float) -> None:
    cache = make_model(backend, k=k).cache
    a = cache.new()
    cache.extend(a, count)
    rows = np.ones((count, KV_HEADS, DIM), np.float32)
    bad = rows.copy()
    bad[-1, -1, -1] = value
    if k == "f32" and np.isfinite(value):
        cache.append(0, a, bad, rows)
        return
    with pytest.raises(DataError, match="k holds"):
        cache.append(0, a, bad, rows)
    with pytest.raises(DataError, match="v holds"):
        cache.append(0, a, rows, bad)
