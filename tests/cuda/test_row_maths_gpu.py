"""Row operations on a GPU against `ops/numpy.py`: fresh data, ragged widths, rows with gaps, poisoned outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fewbit.errors import ArgumentError, ShapeError
from fewbit.formats import get
from fewbit.ops import cuda
from fewbit.ops import numpy as reference
from fewbit.ops.cuda import row_maths
from fewbit.ops.cuda.attention import RopeTable, gather_turns, make_rope_table
from fewbit.ops.cuda.extras import StepExtras, packed_rows
from fewbit.ops.cuda.stack import send_stack
from fewbit.ops.graph import Rope
from fewbit.ops.inserts import Inserted
from fewbit.ops.shape_rules import ACTIVATIONS, GATES
from fewbit.tensor import QuantTensor

from .cases import make, relative_error
from .row_cases import floats, make_step, plain_step

pytestmark = pytest.mark.cuda
TABLES = [get(name) for name in ("q4_0", "q6_k", "q4_k", "int8", "f16", "iq2_xs")]


def close(found: Any, expected: Any) -> None:
    assert np.allclose(found, expected, rtol=2e-6, atol=3e-6 * float(np.median(np.abs(expected))))


@pytest.mark.parametrize(
    ("tokens", "width", "heads"), [(1, 4096, 1), (3, 5120, 1), (9, 1002, 1), (5, 640, 5), (2, 66, 3)]
)
def test_norm(device: cuda.Session, tokens: int, width: int, heads: int) -> None:
    case, x, weight = plain_step(device, tokens), floats(tokens, width), floats(width // heads)
    x[0] = 0  # eps stands alone
    given: dict[str, Any] = {"eps": 1e-5, "heads": heads}
    expected = reference.norm(case.host, x, weight=weight, **given)
    for gap in (0, 5):
        rows = case.rows(x, gap)
        close(
            case.call(row_maths.norm, width, rows, tokens=tokens, gap=gap, weight=case.pointer(weight), **given),
            expected,
        )


@pytest.mark.parametrize("width", [70, 768, 1027])
@pytest.mark.parametrize("has_bias", [True, False])
def test_layer_norm(device: cuda.Session, width: int, has_bias: bool) -> None:
    case, x, weight = plain_step(device, 4), floats(4, width) + np.float32(3), floats(width)
    bias = floats(width) if has_bias else None
    expected = reference.layer_norm(case.host, x, weight=weight, bias=bias, eps=1e-5)
    given = {"weight": case.pointer(weight), "bias": case.pointer(bias), "eps": 1e-5}
    close(case.call(row_maths.layer_norm, width, case.rows(x, 3), tokens=4, **given), expected)


@pytest.mark.parametrize("kind", GATES)
def test_gate(device: cuda.Session, kind: str) -> None:
    case, gate, up = plain_step(device, 3), 8 * floats(3, 1110), 8 * floats(3, 1110)
    gate[0, :4] = 0, -90, 90, -1e30
    expected = reference.gate(case.host, gate, up, kind=kind)
    for gap, first in ((0, 0), (6, 0), (3, 1)):
        rows = case.rows(gate, gap, first), case.rows(up, 2, 2)
        close(case.call(row_maths.gate, 1110, *rows, tokens=3, gap=gap, kind=kind), expected)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activate(device: cuda.Session, kind: str) -> None:
    case, x = plain_step(device, 2), 5 * floats(2, 130)
    x[1, :5] = 0, -60, 60, -1e30, 1e15
    expected = reference.activate(case.host, x, kind=kind)
    assert np.allclose(case.call(row_maths.activate, 130, case.rows(x), tokens=2, kind=kind), expected, 3e-6, 1e-6)


def test_sums_scales_and_softcaps(device: cuda.Session) -> None:
    case, a, b = plain_step(device, 6), 20 * floats(6, 515), floats(6, 515)
    x, by = case.rows(a, 1), floats(515)
    assert np.array_equal(case.call(row_maths.add, 515, x, case.rows(b), tokens=6, gap=3), a + b)
    assert np.array_equal(case.call(row_maths.shift, 515, x, tokens=6, by=case.pointer(by)), a + by)
    assert np.array_equal(case.call(row_maths.scale, 515, x, tokens=6, by=0.37), reference.scale(case.host, a, by=0.37))
    clamped = case.call(row_maths.clamp, 515, x, tokens=6, low=-0.25, high=0.5)
    assert np.array_equal(clamped, reference.clamp(case.host, a, low=-0.25, high=0.5))
    close(case.call(row_maths.softcap, 515, x, tokens=6, cap=30.0), reference.softcap(case.host, a, cap=30.0))


@pytest.mark.parametrize(("heads", "dim", "start", "width"), [(1, 100, 4, 64), (6, 24, 8, 12), (5, 7, 3, 4)])
def test_columns(device: cuda.Session, heads: int, dim: int, start: int, width: int) -> None:
    case, x = plain_step(device, 3), floats(3, heads * dim)
    given = {"start": start, "width": width, "heads": heads}
    for gap in (0, 1, 4):
        found = case.call(row_maths.columns, heads * width, case.rows(x, gap), tokens=3, gap=gap, **given)
        assert np.array_equal(found, reference.columns(case.host, x, **given))


@pytest.mark.parametrize(("heads", "b_heads", "a_dim", "b_dim"), [(4, 4, 8, 12), (5, 1, 16, 4), (3, None, 7, 5)])
def test_join(device: cuda.Session, heads: int, b_heads: int | None, a_dim: int, b_dim: int) -> None:
    case, a, b = plain_step(device, 3), floats(3, heads * a_dim), floats(3, (b_heads or heads) * b_dim)
    given = {"heads": heads, "b_heads": b_heads}
    found = case.call(row_maths.join, heads * (a_dim + b_dim), case.rows(a), case.rows(b, 4), tokens=3, gap=4, **given)
    assert np.array_equal(found, reference.join(case.host, a, b, **given))


@pytest.mark.parametrize("width", [64, 1027])
def test_gather(device: cuda.Session, width: int) -> None:
    x, ids = floats(7, width), np.zeros(7, np.int32)
    case = make_step(device, ids, ids, np.array([6, 0, 3, -1], np.int32))
    found = case.call(row_maths.gather, width, case.rows(x, 4), tokens=4)
    assert np.array_equal(found[:3], x[[6, 0, 3]])
    assert not found[3].any()


@pytest.mark.parametrize("fmt", TABLES, ids=str)
def test_embed_and_positions(device: cuda.Session, fmt: Any) -> None:
    k = 5 * 1024 + 256 if fmt.placement == "block" else 1000
    w, _ = make(fmt, 21, k)
    tokens = np.array([0, 20, -1, 7, -3, 13], np.int32)
    previous, places = np.array([5, 99, 18], np.int32), np.array([1, 0, 20, 8, 3, 3], np.int32)
    case = make_step(device, tokens, places, np.zeros(0, np.int32), previous)
    table = cuda.to_device(w)
    found = case.call(row_maths.embed, k, tokens=6, gap=3, table=table, scale=2.5)
    assert np.array_equal(found, reference.embed(case.host, table=w, scale=2.5))
    found = case.call(row_maths.positions, k, tokens=6, table=table)
    assert np.array_equal(found, reference.positions(case.host, table=w))


def test_a_row_that_is_not_in_the_table_is_zeros(device: cuda.Session) -> None:
    w, _ = make(get("q8_0"), 9, 96)
    case = make_step(
        device, np.array([9, 1 << 30, -1], np.int32), *[np.zeros(3, np.int32)] * 2, np.array([77], np.int32)
    )
    assert not case.call(row_maths.embed, 96, tokens=3, table=cuda.to_device(w)).any()


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize(("heads", "dim", "pairs"), [(3, 64, 32), (2, 80, 16), (1, 7, 3)])
def test_rope(device: cuda.Session, neox: bool, heads: int, dim: int, pairs: int) -> None:
    case, x = plain_step(device, 5), floats(5, heads * dim)
    made = Rope((10000.0 ** -np.linspace(0, 1, pairs)).astype(np.float32), 1.3, neox)
    angles = np.arange(40)[:, None] * made.inv_freq.astype(np.float64)
    values = np.stack([np.float32(1.3) * g(angles).astype(np.float32) for g in (np.cos, np.sin)], axis=2)
    given = {"heads": heads, "rope": RopeTable(case.pointer(values), pairs, neox, len(values), None)}
    expected = reference.rope(case.host, x, heads=heads, rope=made)
    rows = case.rows(x, 3)
    close(case.call(row_maths.rope, heads * dim, rows, tokens=5, gap=1, **given), expected)
    row_maths.rope(case.launcher(), case.step, rows, rows, tokens=5, **given)
    close(case.held[-1].numpy()[:, : heads * dim], expected)


@pytest.mark.parametrize("neox", [True, False])
def test_rope_by_positions_on_axes(device: cuda.Session, neox: bool) -> None:
    heads, pairs, tokens = 3, 37, 6
    case, x = plain_step(device, tokens), floats(tokens, heads * 80)
    axes = np.random.default_rng(1).integers(0, 40, (3, tokens)).astype(np.int32)
    made = Rope(
        (10000.0 ** -np.linspace(0, 1, pairs)).astype(np.float32), 1.3, neox, tuple(i % 3 for i in range(pairs))
    )
    case.host.axes, sent = axes, device.array(axes)
    step, table = replace(case.step, axes=sent.pointer, num_axes=3), make_rope_table(device, made, 40)
    gather_turns(case.launcher(), step, table)
    case = replace(case, step=step)
    expected = reference.rope(case.host, x, heads=heads, rope=made)
    found = case.call(row_maths.rope, heads * 80, case.rows(x, 3), tokens=tokens, gap=1, heads=heads, rope=table)
    close(found, expected)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("width", [7, 1027])
def test_insert(device: cuda.Session, adds: bool, width: int) -> None:
    case, x = plain_step(device, 9), floats(9, width)
    parts = [Inserted(2, np.array([1, 8], np.int32), floats(2, width)), Inserted(0, np.array([4], np.int32), x[:1])]
    extras = StepExtras(tuple(parts))
    tokens = device.array(np.concatenate([one.tokens for one in parts]))
    rows = device.array(packed_rows(parts))
    given = {"insert_tokens": tokens.pointer, "insert_rows": rows.pointer, "inserts": extras.inserts}
    case = replace(case, step=replace(case.step, **given))
    for part in (0, 1, 2):
        case.host.inserted = parts
        expected = reference.insert(case.host, x, part=part, adds=adds)
        found = case.call(row_maths.insert, width, case.rows(x, 2), tokens=9, gap=3, part=part, adds=adds)
        assert np.array_equal(found, expected)
        held = case.rows(x, 1)
        row_maths.insert(case.launcher(), case.step, held, held, tokens=9, part=part, adds=adds)
        assert np.array_equal(case.held[-1].numpy()[:, :width], expected)


@pytest.mark.parametrize("fmt", [get("q8_0"), get("q4_k"), get("f16")], ids=str)
@pytest.mark.parametrize(("tokens", "n"), [(1, 48), (11, 37)])
def test_linear_heads(device: cuda.Session, fmt: Any, tokens: int, n: int) -> None:
    heads, k = 3, 512 if fmt.block == 256 else 96
    flat, values = make(fmt, heads * n, k)
    w = QuantTensor(flat.stored, (heads, n, k), fmt)
    case, x = plain_step(device, tokens), floats(tokens, heads * k)
    found = case.call(row_maths.linear_heads, heads * n, case.rows(x, 4), tokens=tokens, gap=2, w=send_stack(device, w))
    expected = np.einsum("thk,hnk->thn", x.reshape(tokens, heads, k).astype(np.float64), values.reshape(heads, n, k))
    assert relative_error(found, expected.reshape(tokens, -1)) < 1e-6


def test_many_rows(device: cuda.Session) -> None:
    case, x = plain_step(device, 8192), floats(8192, 96)
    given = {"weight": case.pointer(np.ones(32, np.float32)), "eps": 1e-5, "heads": 3}
    expected = reference.norm(case.host, x, weight=np.ones(32, np.float32), eps=1e-5, heads=3)
    close(case.call(row_maths.norm, 96, case.rows(x), tokens=8192, **given), expected)
    assert np.array_equal(case.call(row_maths.add, 96, case.rows(x), case.rows(x), tokens=8192), x + x)


def test_a_rows_norm_does_not_depend_on_the_others(device: cuda.Session) -> None:
    case, x, weight = plain_step(device, 17), floats(17, 3072), floats(3072)
    given = {"weight": case.pointer(weight), "eps": 1e-5}
    together = case.call(row_maths.norm, 3072, case.rows(x), tokens=17, **given)
    alone = case.call(row_maths.norm, 3072, case.rows(x[11:12]), tokens=1, **given)
    assert np.array_equal(together[11:12], alone)


def test_what_does_not_fit_is_one_sentence(device: cuda.Session) -> None:
    case = plain_step(device, 2)
    x, run = case.rows(floats(2, 10)), case.launcher()
    with pytest.raises(ShapeError, match="not 3 heads"):
        row_maths.norm(run, case.step, x, x, tokens=2, weight=0, eps=1e-5, heads=3)
    with pytest.raises(ShapeError, match="do not fit"):
        row_maths.add(run, case.step, x, x, case.rows(floats(2, 9)), tokens=2)
    with pytest.raises(ArgumentError, match="there is no 'tanh'"):
        row_maths.activate(run, case.step, x, x, tokens=2, kind="tanh")
