"""Native plans whose layers are in several groups, each with page tables of its own."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest

from fewbit import _native
from fewbit.arrays import Doubles, Floats, Ints, Longs
from fewbit.formats import get
from fewbit.ops import cpu

from ..exact_attention import error, exact

PAGE, VOCAB, KV_HEADS, Q_HEADS, V_DIM = 8, 50, 2, 6, 32
F32 = cpu.number(get("f32"))
Tables = tuple[Ints, Longs]


class Layer:
    """q, k and v of a token are rows of tables; K and V are kept in stores."""

    def __init__(self, rng: np.random.Generator, k_dim: int, window: int, pages: int) -> None:
        self.k_dim, self.window = k_dim, window
        widths = Q_HEADS * k_dim, KV_HEADS * k_dim, KV_HEADS * V_DIM
        self.qkv = [rng.standard_normal((VOCAB, width), np.float32) for width in widths]
        self.stores = [np.full((pages, KV_HEADS, PAGE, 4 * dim), 255, np.uint8) for dim in (k_dim, V_DIM)]

    def record(self, plan: Any, group: int, slots: count[int]) -> int:
        buffers = []
        for table in self.qkv:
            buffers.append(plan.buffer(table.shape[1], False, next(slots)))
            plan.embed(cpu.packed(cpu.quantize(table, "f32")), buffers[-1], 1.0)
        out = plan.buffer(Q_HEADS * V_DIM, False, next(slots))
        k_store, v_store = self.stores
        plan.attend(
            F32, k_store, self.k_dim, F32, v_store, V_DIM, group, False, *buffers, out, self.k_dim**-0.5,
            self.window, 0.0, None,
        )  # fmt: skip
        return int(out)

    def wanted(self, tokens: Ints, rows: int) -> Doubles:
        dims = self.k_dim, self.k_dim, V_DIM
        q, k, v = (x[tokens].reshape(len(tokens), -1, dim) for x, dim in zip(self.qkv, dims, strict=True))
        return exact(q[-rows:], k, v, scale=self.k_dim**-0.5, window=self.window).reshape(rows, -1)


class TwoGroups:
    """The sum of a layer of group 0, which sees all, and one of group 2, with a window. Nothing reads group 1."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.layers = Layer(rng, 64, 0, 40), Layer(rng, 48, 20, 50)
        self.plan, slots = _native.Plan(), count()
        outs = [layer.record(self.plan, group, slots) for layer, group in zip(self.layers, (0, 2), strict=True)]
        both, result = (self.plan.buffer(Q_HEADS * V_DIM, logits_only, next(slots)) for logits_only in (False, True))
        self.plan.add(*outs, both)
        self.plan.gather(both, result)
        self.plan.set_result(result)

    def run(self, steps: list[Ints], groups: list[Tables | None], lengths: list[int]) -> Floats:
        tokens = np.concatenate(steps).astype(np.int32)
        out = np.full((len(tokens), Q_HEADS * V_DIM), np.nan, np.float32)
        rows = np.arange(len(tokens), dtype=np.int32)
        self.plan.run(tokens, groups, np.array(lengths), starts(len(s) for s in steps), rows, out, "exact", 2)
        return out

    def wanted(self, texts: list[Ints], rows: list[int]) -> Doubles:
        each = [[layer.wanted(text, n) for text, n in zip(texts, rows, strict=True)] for layer in self.layers]
        return np.concatenate(each[0]) + np.concatenate(each[1])


def starts(counts: Any) -> Longs:
    return np.cumsum([0, *counts], dtype=np.int64)


def tables(*pages: Ints) -> Tables:
    return np.concatenate(pages).astype(np.int32), starts(len(p) for p in pages)


@pytest.mark.parametrize("isa", cpu.isas())
def test_groups_have_page_tables_of_their_own(isa: str) -> None:
    """Prompts of two sequences, then a token of each; pages that the window has left are NaN by then."""
    rng = np.random.default_rng(1)
    model, lengths = TwoGroups(), [70, 43]
    texts = [rng.integers(0, VOCAB, n + 1).astype(np.int32) for n in lengths]
    pages = [-(-(n + 1) // PAGE) for n in lengths]
    full, window = (np.split(rng.permutation(size)[: sum(pages)], [pages[0]]) for size in (40, 49))
    with cpu.forced_isa(isa):
        groups: list[Tables | None] = [tables(*full), None, tables(*window)]
        y = model.run([text[:-1] for text in texts], groups, lengths)
        assert error(y, model.wanted([text[:-1] for text in texts], lengths)) <= 2e-6
        for length, table in zip(lengths, window, strict=True):
            left = (length - 19) // PAGE
            for store in model.layers[1].stores:
                store[table[:left]] = 255
            table[:left] = 49
        groups[2] = tables(*window)
        y = model.run([text[-1:] for text in texts], groups, [n + 1 for n in lengths])
    assert error(y, model.wanted(texts, [1, 1])) <= 2e-6


ONE = np.zeros(1, np.int32), np.arange(2, dtype=np.int64)


@pytest.mark.parametrize(("groups", "match"), [
    ([ONE], "groups of page tables: got 1, expected 3"),
    ([ONE, None, None], "group 2 must be a tuple of page tables"),
    ([ONE, None, ONE[:1]], "group 2 must be a tuple of page tables"),
    ([ONE, None, (ONE[0].astype(np.int64), ONE[1])], "group 2 must be a tuple of page tables"),
    ([(np.array([40], np.int32), ONE[1]), None, ONE], "page 40 of 40"),
    ([ONE, None, (np.array([-1], np.int32), ONE[1])], "page -1 of 50"),
    ([ONE, None, (ONE[0], np.zeros(2, np.int64))], "starts of page tables: got 0, expected 1"),
    ([ONE, None, (np.zeros(0, np.int32), np.zeros(2, np.int64))], "tokens of a sequence: got 1, expected 0"),
])  # fmt: skip
def test_tables_that_do_not_fit(groups: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        TwoGroups().run([np.zeros(1, np.int32)], groups, [1])


def test_lengths_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="more queries than tokens"):
        TwoGroups().run([np.zeros(2, np.int32)], [ONE, None, ONE], [1])


def test_layers_of_a_group_have_as_many_pages() -> None:
    rng, plan, slots = np.random.default_rng(0), _native.Plan(), count()
    Layer(rng, 64, 0, 40).record(plan, 1, slots)
    with pytest.raises(ValueError, match="pages: got 41, expected 40"):
        Layer(rng, 64, 0, 41).record(plan, 1, slots)
    with pytest.raises(ValueError, match="number of a group"):
        Layer(rng, 64, 0, 40).record(plan, 1024, slots)


@pytest.mark.parametrize(("k_dim", "v_dim", "match"), [
    (48, 32, "bytes of a row of the store"),
    (64, 16, "bytes of a row of the store"),
])  # fmt: skip
def test_widths_that_do_not_fit(k_dim: int, v_dim: int, match: str) -> None:
    plan = _native.Plan()
    q, k, v, out = (plan.buffer(width, False, i) for i, width in enumerate((384, 128, 64, 192)))
    k_store, v_store = Layer(np.random.default_rng(0), 64, 0, 4).stores
    plan.attend(F32, k_store, 64, F32, v_store, 32, 0, False, q, k, v, out, 1.0, 0, 0.0, None)
    with pytest.raises(ValueError, match=match):
        plan.attend(F32, k_store, k_dim, F32, v_store, v_dim, 0, False, q, k, v, out, 1.0, 0, 0.0, None)
    with pytest.raises(ValueError, match="columns of V: got 128, expected 64"):
        plan.attend(F32, k_store, 64, F32, v_store, 32, 0, False, q, k, k, out, 1.0, 0, 0.0, None)
    with pytest.raises(ValueError, match="columns of the result: got 384, expected 192"):
        plan.attend(F32, k_store, 64, F32, v_store, 32, 0, False, q, k, v, q, 1.0, 0, 0.0, None)
