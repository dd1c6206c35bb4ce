"""The KV cache as its users drive it: step by step, in chunks and batches, forked and shared."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from fewbit.cache.kv import KVCache
from fewbit.errors import OutOfPages, PositionError, ShapeError
from fewbit.formats import get
from fewbit.ops import attention
from fewbit.ops.specs import AttentionSpec, RecurrentSpec

from ..exact_attention import KV_FORMATS, error, exact
from .model import DIM, KV_HEADS, LAYERS, Q_HEADS, arrays, make_model, tokens


def test_decode_and_prefill_in_one_batch(kernels: ModuleType) -> None:
    model = make_model(kernels)
    a, b, c = (model.begin() for _ in range(3))
    model.step({a: tokens(20), b: tokens(7, 1)})
    for work in ({a: [5], b: tokens(9, 2), c: tokens(30, 3)}, {c: [1], a: [2], b: [3]}):
        for layer, y in enumerate(model.step(work)):
            rows = [model.wanted(layer, s, len(new)) for s, new in work.items()]
            assert error(y, np.concatenate(rows)) <= 2e-6


@pytest.mark.parametrize("k", KV_FORMATS)
def test_chunks_give_what_one_piece_gives(kernels: ModuleType, k: str) -> None:
    text, model = tokens(45), make_model(kernels, k=k)
    whole, parts = model.begin(), model.begin()
    one = model.step({whole: text}, commit=False)
    chunks = [model.step({parts: text[i : i + 13]}, commit=False) for i in range(0, 45, 13)]
    for layer in range(LAYERS):
        assert error(np.concatenate([chunk[layer] for chunk in chunks]), one[layer]) <= 1e-5
        for data in model.cache.store.kv(layer)[1::2]:
            rows = [data[model.cache.table(s)] for s in (whole, parts)]
            np.testing.assert_array_equal(rows[0][:5], rows[1][:5])  # bytes are the same, whenever they are written


def test_options_reach_attention(kernels: ModuleType) -> None:
    model = make_model(kernels)
    a = model.begin()
    options = {"scale": 0.4, "window": 6, "softcap": 8.0, "sinks": np.arange(Q_HEADS, dtype=np.float32)}
    for layer, y in enumerate(model.step({a: tokens(30)}, **options)):
        assert error(y, model.wanted(layer, a, 30, **options)) <= 2e-6
    step = model.cache.reserve([(a, 1)])
    model.texts[a].append(1)
    model.cache.append(1, step, *(model.make(1, what, model.texts[a], 1) for what in (0, 1)))
    out = np.empty((1, Q_HEADS, DIM), np.float32)
    assert model.cache.attend(1, step, model.make(1, 2, model.texts[a], 1), out=out, threads=1) is out
    assert error(out, model.wanted(1, a, 1)) <= 2e-6


@pytest.mark.parametrize("k", ["q4_0", "q8_0"])
def test_rotation_is_on_below_8_bits_and_can_be_set(kernels: ModuleType, k: str) -> None:
    assert make_model(kernels, k=k).cache.layout.rotate == (k == "q4_0")
    outputs = []
    for rotate in (False, True):
        model = make_model(kernels, k=k, v="f32", rotate=rotate)
        a = model.begin()
        outputs.append(model.step({a: tokens(40)})[0])
        assert error(outputs[-1], model.wanted(0, a, 40)) < 0.15
    assert not np.array_equal(*outputs)


@pytest.mark.parametrize("length", [16, 20])
def test_parent_and_forks_never_see_each_other(kernels: ModuleType, length: int) -> None:
    model = make_model(kernels, pages=80)
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


def test_1000_sequences_share_a_prefix(kernels: ModuleType) -> None:
    cache = KVCache(1, 1, 32, pages=64 + 1000, k="q8_0", kernels=kernels)
    prefix = tokens(2048)
    first = cache.new(prefix)
    step = cache.reserve([(first, 2048)])
    rng = np.random.default_rng(0)
    k, v = (rng.standard_normal((2048, 1, 32), np.float32) for _ in range(2))
    cache.append(0, step, k, v)
    cache.commit(first, prefix)
    everyone = [first, *(cache.new([*prefix, 7]) for _ in range(999))]
    assert all(cache.length(s) == 2048 for s in everyone)
    assert cache.stats().used == 64
    step = cache.reserve([(s, 3) for s in everyone])
    tails = [rng.standard_normal((3000, 1, 32), np.float32) for _ in range(2)]
    cache.append(0, step, *tails)
    stats = cache.stats()
    assert stats.used == 64 + 1000
    assert stats.references == 65 * 1000
    assert stats.nbytes == (64 + 1000) * 32 * 2 * 34 == cache.nbytes
    assert stats.savings == 1 - 34 / 128
    for s in everyone:
        cache.commit(s, [s, 1, 2])
    some = [0, 500, 999]
    step = cache.reserve([(everyone[s], 1) for s in some])
    more = rng.standard_normal((2, 3, 1, 32), np.float32)
    cache.append(0, step, *more)
    q = rng.standard_normal((3, 4, 32), np.float32)
    y = cache.attend(0, step, q)
    for i, s in enumerate(some):
        own = [
            np.concatenate([x, tail[3 * s : 3 * s + 3], new[i : i + 1]])
            for x, tail, new in zip((k, v), tails, more, strict=True)
        ]
        assert error(y[i : i + 1], exact(q[i : i + 1], *own, scale=32**-0.5)) < 0.02
    with pytest.raises(OutOfPages):
        cache.reserve([(everyone[5], 30)])


def test_prompts_are_found_again_after_free(kernels: ModuleType) -> None:
    model, text = make_model(kernels), tokens(30)
    a = model.begin()
    model.step({a: text})
    model.cache.free(a)
    b = model.begin(text)
    assert model.cache.length(b) == model.cache.lookup(text) == 24
    model.step({b: text[24:]})
    model.check(b)
    assert model.cache.stats().hits == 3


def test_sequences_that_become_alike_share_at_commit(kernels: ModuleType) -> None:
    model, text = make_model(kernels), tokens(16)
    a, b = model.begin(), model.begin()
    model.step({a: text, b: text})
    assert model.cache.stats().used == 2
    model.check(a)
    model.check(b)


def test_draft_is_cut_back(kernels: ModuleType) -> None:
    model = make_model(kernels)
    a = model.begin()
    model.step({a: tokens(14)})
    model.step({a: [1, 2, 3, 4, 5]}, commit=False)
    model.cache.commit(a, [1, 2])
    model.cache.truncate(a, 16)
    model.texts[a] = model.texts[a][:16]
    assert model.cache.length(a) == model.cache.committed(a) == 16
    model.step({a: [9, 9]})
    model.check(a)


def test_failed_step_is_rolled_back(kernels: ModuleType) -> None:
    model = make_model(kernels)
    a = model.begin()
    model.step({a: tokens(10)})
    step = model.cache.reserve([(a, 5)])
    model.cache.append(0, step, *np.zeros((2, 5, KV_HEADS, DIM), np.float32))
    model.cache.truncate(a, 12)  # two of the five tokens stay, and still miss layer 1
    with pytest.raises(PositionError, match="has 2 new tokens without K and V in layers 1"):
        model.cache.commit(a, [1, 2])
    with pytest.raises(PositionError, match="this step is over: sequence 1 was committed, cut or freed"):
        model.cache.append(1, step, *np.zeros((2, 5, KV_HEADS, DIM), np.float32))
    model.cache.rollback(step)
    assert model.cache.length(a) == 10
    model.step({a: [3]})
    model.check(a)


def test_pinned_pages_stay(kernels: ModuleType) -> None:
    model, text = make_model(kernels, pages=4), tokens(16)
    a = model.begin()
    model.step({a: text})
    pin = model.cache.pin(a)
    model.cache.free(a)
    b = model.begin()
    with pytest.raises(OutOfPages, match="needed: 3, free or evictable: 2"):
        model.cache.reserve([(b, 24)])
    assert model.cache.length(b) == 0
    assert model.cache.lookup(text) == 16
    model.cache.unpin(pin)
    model.cache.reserve([(b, 24)])
    assert model.cache.lookup(text) == 8
    assert model.cache.available == (1,)


@pytest.mark.parametrize("dim", [32, 80, 256])
@pytest.mark.parametrize("name", KV_FORMATS)
def test_memory_is_what_the_format_says(name: str, dim: int) -> None:
    cache = KVCache(3, 2, dim, tokens=100, k=name, page_tokens=16, kernels=attention)
    values = 7 * 16 * 3 * 2 * 2 * (-(-dim // 32) * 32 if get(name).block == 32 else dim)
    assert cache.nbytes == values * get(name).bits_per_weight / 8
    assert cache.nbytes == sum(array.nbytes for array in arrays(cache))
    assert all(array.ctypes.data % 64 == 0 for array in arrays(cache))


def test_a_batch_can_be_empty(kernels: ModuleType) -> None:
    model = make_model(kernels)
    nothing = np.zeros((0, KV_HEADS, DIM), np.float32)
    for step in (model.cache.reserve([]), model.cache.reserve([(model.begin(), 0)])):
        model.cache.append(0, step, nothing, nothing)
        assert model.cache.attend(0, step, nothing).shape == nothing.shape


def test_numbers_of_other_types_are_taken(kernels: ModuleType) -> None:
    model = make_model(kernels)
    a = model.begin()
    step = model.cache.reserve(np.array([[a, 1]]))
    model.cache.append(0, step, np.ones((1, KV_HEADS, DIM), np.float16), [[[1] * DIM] * KV_HEADS])
    assert (model.cache.attend(0, step, np.ones((1, Q_HEADS, DIM))) == 1).all()


@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_window_layers_read_what_they_keep(kernels: ModuleType, chunk: int) -> None:
    model, text = make_model(kernels, window=10, pages=6), tokens(60)
    a = model.begin()
    for first in range(0, 60, chunk):
        new = text[first : first + chunk]
        for layer, y in enumerate(model.step({a: new})):
            assert error(y, model.wanted(layer, a, len(new))) <= 2e-6
    assert model.cache.stats().used <= 3
    b = model.begin(text)
    assert model.cache.length(b) == 56  # in a cache of 48 tokens
    model.check(b)
    narrow = model.step({a: [1]}, window=4)
    assert error(narrow[0], model.wanted(0, a, 1, window=4)) <= 2e-6
    step = model.cache.reserve([(a, 0)])
    for window in (0, 11):
        with pytest.raises(
            ShapeError, match="window must be from 1 to 10, the tokens whose K and V the layer keeps, got"
        ):
            model.cache.attend(0, step, np.zeros((0, Q_HEADS, DIM)), window=window)


def test_layers_that_keep_differently() -> None:
    specs = [AttentionSpec(2, 64, 32), AttentionSpec(1, 32, 96, window=12), AttentionSpec(3, 48, 48)]
    model, text = make_model(attention, specs=specs), tokens(50)
    a, b = model.begin(), model.begin()
    for work in ({a: text[:30]}, {a: text[30:], b: tokens(9, 1)}, {b: [1], a: [2]}):
        outputs = model.step(work)
        for layer, y in enumerate(outputs):
            wanted = [model.wanted(layer, s, len(new)) for s, new in work.items()]
            assert error(y, np.concatenate(wanted)) <= 2e-6
    for sequence in (a, model.begin(text)):
        model.check(sequence)


def test_layers_without_k_and_v_are_refused() -> None:
    model = make_model(attention, specs=[None, RecurrentSpec(8), AttentionSpec(2, 64, 64)])
    cache = model.cache
    a = cache.new()
    step, rows = cache.reserve([(a, 1)]), np.zeros((1, 2, 64), np.float32)
    for layer in (0, 1):
        with pytest.raises(PositionError, match=f"layer {layer} keeps no K and V"):
            cache.append(layer, step, rows, rows)
    cache.append(2, step, rows, rows)
    cache.store.states(1)[step.writes] = 7
    cache.commit(a, [1])
    assert (cache.store.states(1)[cache.reserve([(a, 1)]).reads] == 7).all()


def test_namespaces_do_not_meet(kernels: ModuleType) -> None:
    model, text = make_model(kernels), tokens(20)
    a = model.cache.new(text, "mine")
    model.texts[a] = []
    model.step({a: text})
    assert (model.cache.lookup(text, "mine"), model.cache.lookup(text), model.cache.lookup(text, "your")) == (16, 0, 0)


def test_sequences_without_new_tokens_in_a_step(kernels: ModuleType) -> None:
    model = make_model(kernels)
    a, b, c = (model.begin() for _ in range(3))
    model.step({a: [], b: tokens(3), c: []})
    model.step({b: [], c: tokens(9)})
    for sequence in (a, b, c):
        model.check(sequence)
