"""Products of experts with many tokens, in tiles: beside NumPy, for ragged numbers of tokens and experts with none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fewbit as fb
from fewbit.arrays import Doubles, Floats
from fewbit.formats import get
from fewbit.ops.webgpu import Gpu, open_gpu
from fewbit.ops.webgpu.decoders import device_format
from fewbit.ops.webgpu.device import Dispatch, Memory, header
from fewbit.ops.webgpu.expert_tiles import TILE_TOKENS, TOKENS_OF_BLOCK, expert_tiles, group_tokens, rows_per_block
from fewbit.ops.webgpu.model_weights import ModelWeights
from fewbit.ops.webgpu.multiply import ONE
from fewbit.ops.webgpu.weights import row_blocks

from .cases import error, formats, make, poisoned_rows, ragged, received, rows_of, send_rows

pytestmark = pytest.mark.webgpu
BAR = 1e-5
POISON = 0xFFFFFFF0


def grouped(gpu: Gpu, chosen: Any, experts: int) -> tuple[Memory, Any]:
    """What `group_tokens` writes, and the step."""
    tokens, top_k = chosen.shape
    step = gpu.array(header({"tokens": tokens}))
    order = gpu.array(np.full(experts + 1 + chosen.size + 4, POISON, np.uint32))
    buffers = (step, gpu.array(np.append(chosen.reshape(-1), 0).astype(np.uint32)), order)
    values = {"count_at": 0, "top_k": top_k, "experts": experts}
    gpu.run([Dispatch(group_tokens(), buffers, values, (ONE, ONE, ONE))], {"tokens": tokens})
    return order, step


def order_of(chosen: Any, experts: int) -> Any:
    counts = np.bincount(chosen.reshape(-1), minlength=experts)
    return np.concatenate([[0], np.cumsum(counts), np.argsort(chosen.reshape(-1), kind="stable")])


@pytest.mark.usefixtures("gpu")
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(tokens=st.integers(0, 50), experts=st.integers(1, 600), top_k=st.integers(1, 6), seed=st.integers(0, 99))
def test_tokens_by_expert(tokens: int, experts: int, top_k: int, seed: int) -> None:
    gpu, chosen = open_gpu(), np.random.default_rng(seed).integers(0, experts, (tokens, top_k))
    order, _ = grouped(gpu, chosen, experts)
    found, size = gpu.download(order, order.nbytes).view(np.uint32), experts + 1 + chosen.size
    np.testing.assert_array_equal(found[:size], order_of(chosen, experts))
    assert (found[size:] == POISON).all()


def multiplied(gpu: Gpu, w: fb.QuantTensor, x: Floats, chosen: Any, **options: Any) -> Floats:
    """Rows of all pairs by the kernel."""
    (experts, n, _), matrix, (tokens, top_k) = w.shape, ModelWeights(gpu).stack(w), chosen.shape
    (order, step), y = grouped(gpu, chosen, experts), poisoned_rows(gpu, chosen.size, n, offset=0)
    bias, is_first, subgroups = (options.get(name) for name in ("bias", "is_first", "subgroups"))
    rows, dispatches, (a, b) = send_rows(gpu, x), [], row_blocks(n, rows_per_block(matrix.format))
    kernel = expert_tiles(matrix.format, bias is not None, bool(is_first), bool(subgroups))
    for part in matrix.parts:
        held = part.rows // n
        values = {
            **matrix.values, "n": n, "count_at": 0, "top_k": top_k, "experts": experts, "first": part.first // n,
            "held": held, "x_offset": rows.offset, "x_stride": rows.stride, "y_stride": y.stride,
        }  # fmt: skip
        buffers = (step, *matrix.buffers(part), rows.memory, order, y.memory)
        buffers += () if bias is None else (gpu.array(bias),)
        grid: Any = (("one", a), ("tokens", TOKENS_OF_BLOCK, held), ("one", b))
        dispatches.append(Dispatch(kernel, buffers, values, grid))
    gpu.run(dispatches, {"tokens": tokens})
    return received(gpu, y, chosen.size)


def expected(values: Floats, x: Floats, chosen: Any, bias: Floats | None = None) -> Doubles:
    """One pair after another; x has a row for each token, or for each pair."""
    pairs, per_row = chosen.reshape(-1), chosen.size // len(x)
    rows = [values[e].astype(np.float64) @ x[i // per_row] for i, e in enumerate(pairs)]
    return np.array(rows) + (0 if bias is None else bias[pairs])


def stack(fmt: fb.Format, experts: int, seed: int = 0) -> tuple[fb.QuantTensor, Floats]:
    n, k = ragged(fmt)
    w, values = make(fmt, experts * n, k, seed)
    return fb.QuantTensor(w.stored, (experts, n, k), fmt), values.reshape(experts, n, k)


# How many tokens each expert has: none, less than a tile, whole tiles, some more, and more than a workgroup takes.
COUNTS = {"ragged": (0, 1, 7, 8, 9, 0, 17, 2), "one": (40, 0, 0), "many": (0, 2 * TOKENS_OF_BLOCK + 11, 3, 30)}


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize("subgroups", [False, True], ids=["workgroup", "subgroups"])
def test_ragged_numbers_of_tokens(gpu: Gpu, counts: tuple[int, ...], subgroups: bool) -> None:
    if subgroups and not gpu.has_subgroups:
        pytest.skip("the adapter has no subgroups")
    w, values = stack(get("q4_0"), len(counts))
    chosen = np.random.default_rng(1).permutation(np.repeat(np.arange(len(counts)), counts))[:, None]
    x, bias = rows_of(len(chosen), w.shape[2]), rows_of(len(counts), w.shape[1], 3)
    got = multiplied(gpu, w, x, chosen, is_first=True, bias=bias, subgroups=subgroups)
    assert error(got, expected(values, x, chosen, bias)) <= BAR


@pytest.mark.parametrize("is_first", [True, False], ids=["tokens", "pairs"])
def test_several_experts_of_a_token_in_several_buffers(small_bindings: Gpu, is_first: bool) -> None:
    """Each buffer holds some experts; x is what tokens are, or what their experts made of them."""
    w, values = stack(get("q8_0"), 7)
    small_bindings.binding_bytes = 2 * w.nbytes // 7 + 200
    chosen = np.array([np.random.default_rng(n).permutation(7)[:3] for n in range(23)])
    assert len(ModelWeights(small_bindings).stack(w).parts) == 4
    x = rows_of(len(chosen) if is_first else chosen.size, w.shape[2])
    assert error(multiplied(small_bindings, w, x, chosen, is_first=is_first), expected(values, x, chosen)) <= BAR


@pytest.mark.parametrize("fmt", formats())
def test_every_format(gpu: Gpu, fmt: fb.Format) -> None:
    w, values = stack(fmt, 3)
    if device_format(fmt) != fmt:
        pytest.skip("experts are packed")
    chosen = np.array([[0, 2]] * (TILE_TOKENS + 3))
    x = rows_of(len(chosen), w.shape[2])
    assert error(multiplied(gpu, w, x, chosen, is_first=True), expected(values, x, chosen)) <= BAR
