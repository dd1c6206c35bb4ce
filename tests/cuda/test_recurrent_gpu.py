"""Recurrent layers on a GPU against `ops/recurrent.py`: several sequences, fresh states, texts cut into steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from fewbit.arrays import Floats
from fewbit.errors import ShapeError
from fewbit.ops import cuda
from fewbit.ops import recurrent as reference
from fewbit.ops.cuda import recurrent
from fewbit.ops.cuda.pages import LayerStates

from .row_cases import Inputs, floats, make_step

pytestmark = pytest.mark.cuda
SLOTS, OFFSET = 9, 12
LENGTHS = [1, 40, 0, 3]  # new tokens of each sequence; one has none, the last is padding


class Case:
    """A step of several sequences; the state of each is read from one slot and written to another."""

    def __init__(self, device: cuda.Session, part: int, lengths: Sequence[int] = LENGTHS) -> None:
        self.starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        self.tokens, self.spare = int(self.starts[-1]), 2  # rows of no sequence
        self.reads, self.writes = np.array([3, 1, 0, -1], np.int32), np.array([4, 6, 8, -1], np.int32)
        zeros = np.zeros(self.tokens + self.spare, np.int32)
        totals = np.array([9, 99, 5, 0], np.int32)
        self.inputs: Inputs = make_step(
            device, zeros, zeros, zeros[:0], reads=self.reads, writes=self.writes, q_starts=self.starts,
            lengths=totals, num_sequences=4, max_q=max(lengths),
        )  # fmt: skip
        self.host = rng_bytes(SLOTS, OFFSET + 4 * part + 8)
        self.states = device.array(self.host)
        self.given = LayerStates(self.states.pointer, self.host.shape[1], 0)

    def part(self, held: Any, slot: int, shape: tuple[int, ...]) -> Floats:
        size = 4 * int(np.prod(shape))
        return held[slot, OFFSET : OFFSET + size].copy().view(np.float32).reshape(shape)  # type: ignore[no-any-return]

    def check(
        self, function: Callable[..., None], width: int, rows: list[Floats], shape: tuple[int, ...],
        one: Callable[..., Floats], **given: Any,
    ) -> None:  # fmt: skip
        """`one` runs a sequence in NumPy: its rows, its state."""
        total = self.tokens + self.spare
        expected, after = np.zeros((total, width), np.float32), self.host.copy()
        for s in range(4):
            own = slice(self.starts[s], self.starts[s + 1])
            state = self.part(self.host, self.reads[s], shape) if s < 3 else np.zeros(shape, np.float32)
            if own.start < own.stop:  # without new tokens the state goes on as it is
                expected[own] = one(*(x[own] for x in rows), state)
            if s < 3:
                after[self.writes[s], OFFSET : OFFSET + state.nbytes] = state.reshape(-1).view(np.uint8)
        sent = [self.inputs.rows(x, gap) for gap, x in enumerate(rows)]
        found = self.inputs.call(function, width, *sent, tokens=total, gap=3, states=self.given, offset=OFFSET, **given)
        assert np.allclose(found, expected, rtol=2e-5, atol=2e-5 * float(np.abs(expected).max()))
        held = self.states.numpy()
        for slot in range(SLOTS):
            close = self.part(held, slot, shape), self.part(after, slot, shape)
            assert np.allclose(*close, rtol=2e-5, atol=2e-5 * float(np.abs(close[1]).max()))
            if slot not in self.writes[:3]:
                assert np.array_equal(held[slot], self.host[slot])


def rng_bytes(slots: int, size: int) -> Any:
    return floats(slots, size // 4).view(np.uint8)


@pytest.mark.parametrize(("taps", "kind", "biased"), [(4, "silu", True), (4, "none", False), (2, "silu", False)])
def test_conv(device: cuda.Session, taps: int, kind: str, biased: bool) -> None:
    columns = 300
    case, weight, bias = Case(device, (taps - 1) * columns), floats(columns, taps), floats(columns) if biased else None

    def one(x: Floats, state: Floats) -> Floats:
        y = reference.conv(x, state, weight, bias)
        return y if kind == "none" else y / (1 + np.exp(-y.astype(np.float64)))  # type: ignore[no-any-return]

    pointers = {"weight": case.inputs.pointer(weight), "bias": case.inputs.pointer(bias)}
    x = floats(case.tokens + 2, columns)
    case.check(recurrent.conv, columns, [x], (taps - 1, columns), one, taps=taps, kind=kind, **pointers)


@pytest.mark.parametrize(("heads", "v_heads", "dim", "v_dim", "tiled"), [(2, 4, 128, 40, True), (3, 3, 19, 32, False)])
def test_delta_rule(device: cuda.Session, heads: int, v_heads: int, dim: int, v_dim: int, tiled: bool) -> None:
    case = Case(device, v_heads * dim * v_dim)
    total, decay, dt_bias = case.tokens + 2, -np.abs(floats(v_heads)), floats(v_heads)
    q, k = (floats(total, heads, dim) for _ in range(2))
    k /= np.linalg.norm(k, axis=2, keepdims=True)  # as models do
    v, a, b = floats(total, v_heads * v_dim), floats(total, v_heads), floats(total, v_heads)
    given: dict[str, Any] = {"scale": 0.2, "tiled": tiled}

    def one(q: Floats, k: Floats, v: Floats, a: Floats, b: Floats, state: Floats) -> Floats:
        parts = q.reshape(-1, heads, dim), k.reshape(-1, heads, dim), v.reshape(-1, v_heads, v_dim), a, b, state
        return reference.delta_rule(*parts, decay=decay, dt_bias=dt_bias, **given).reshape(len(v), -1)

    rows, shape = [q.reshape(total, -1), k.reshape(total, -1), v, a, b], (v_heads, dim, v_dim)
    more = {"decay": case.inputs.pointer(decay), "dt_bias": case.inputs.pointer(dt_bias), "heads": heads}
    case.check(recurrent.delta_rule, v.shape[1], rows, shape, one, v_heads=v_heads, **more, **given)


@pytest.mark.parametrize(("heads", "groups", "dim", "n"), [(4, 2, 64, 16), (3, 1, 33, 70)])
def test_scan(device: cuda.Session, heads: int, groups: int, dim: int, n: int) -> None:
    case = Case(device, heads * n * dim)
    total, vectors = case.tokens + 2, {"decay": -np.abs(floats(heads)), "skip": floats(heads), "dt_bias": floats(heads)}
    rows = [floats(total, heads * dim), floats(total, heads), floats(total, groups * n), floats(total, groups * n)]

    def one(x: Floats, dt: Floats, b: Floats, c: Floats, state: Floats) -> Floats:
        parts = x.reshape(-1, heads, dim), dt, b.reshape(-1, groups, n), c.reshape(-1, groups, n), state
        return reference.scan(*parts, **vectors).reshape(len(x), -1)

    pointers = {name: case.inputs.pointer(vector) for name, vector in vectors.items()}
    given = {"heads": heads, "groups": groups, **pointers}
    case.check(recurrent.scan, heads * dim, rows, (heads, n, dim), one, **given)


def test_a_text_cut_into_steps_has_the_same_bits(device: cuda.Session) -> None:
    heads, dim, tokens = 2, 32, 37
    vectors = {name: floats(heads) for name in ("skip", "dt_bias")} | {"decay": -np.abs(floats(heads))}
    rows = [floats(tokens, heads * dim), floats(tokens, heads), floats(tokens, dim), floats(tokens, dim)]

    def run(cuts: list[int]) -> tuple[Floats, Floats]:
        states, found = device.array(np.zeros((1, heads * dim * dim), np.float32)), []
        for first, last in pairwise(cuts):
            slots, count = np.zeros(1, np.int32), last - first
            step = make_step(
                device, *[np.zeros(count, np.int32)] * 2, slots[:0], reads=slots, writes=slots, lengths=slots + 1,
                q_starts=np.array([0, count], np.int32),
            )  # fmt: skip
            given = {name: step.pointer(vector) for name, vector in vectors.items()}
            sent = [step.rows(x[first:last]) for x in rows]
            rest: dict[str, Any] = {"heads": heads, "groups": 1, "offset": 0, **given}
            rest["states"] = LayerStates(states.pointer, states.nbytes, 0)
            found.append(step.call(recurrent.scan, heads * dim, *sent, tokens=count, **rest))
        return np.concatenate(found), states.numpy()

    whole, cut = run([0, tokens]), run([0, 1, 20, 21, tokens])
    assert np.array_equal(whole[0], cut[0])
    assert np.array_equal(whole[1], cut[1])


def test_states_that_do_not_fit_are_one_sentence(device: cuda.Session) -> None:
    case = Case(device, 8)
    rows = [case.inputs.rows(floats(2, width)) for width in (257, 257, 4, 1, 1)]
    vectors: dict[str, Any] = {"decay": 0, "dt_bias": 0, "scale": 1.0, "heads": 1, "v_heads": 1}
    with pytest.raises(ShapeError, match="up to 256 rows"):
        recurrent.delta_rule(
            case.inputs.launcher(), case.inputs.step, rows[2], *rows, tokens=2, states=case.given, offset=0, **vectors
        )
