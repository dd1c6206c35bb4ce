"""Kernels of row operations, experts and recurrent layers compiled without a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from fewbit.formats import get
from fewbit.ops.cuda import adapters, recurrent
from fewbit.ops.cuda import kernels_experts as experts
from fewbit.ops.cuda import kernels_products as products
from fewbit.ops.cuda import kernels_rows as rows
from fewbit.ops.shape_rules import ACTIVATIONS, GATES

from .compiling import ARCHITECTURES, TRADED, spilled


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_kernels_of_rows(arch: str, compiled: Any) -> None:
    found = [rows.elementwise(kind, True) for kind in GATES]
    found += [
        rows.elementwise(kind, False) for kind in (*ACTIVATIONS, "add", "scale", "softcap", "at_least", "at_most")
    ]
    found += [rows.norm_rows(centered, warps) for centered in (True, False) for warps in (True, False)]
    found += [rows.join_heads(4), rows.join_heads(1), rows.gather_rows(4), rows.gather_rows(1), rows.rotate_rows()]
    found += [rows.sum_parts(), rows.insert_rows(True), rows.insert_rows(False), rows.gather_turns()]
    found += [products.scale_rows(dtype, 1, norm) for dtype in ("f32", "bf16") for norm in (True, False)]
    found += [products.end_rows()]
    assert not spilled(compiled(found, arch))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_kernels_of_tables_and_heads(arch: str, compiled: Any) -> None:
    tiles, plain = [get(name) for name in ("q4_k", "q6_k", "int8")], [get(name) for name in ("f16", "iq2_xs")]
    found = [entry(fmt) for fmt in tiles for entry in (rows.embed_tiles, rows.heads_tiles)]
    found += [entry(fmt) for fmt in plain for entry in (rows.embed_rows, rows.heads_rows)]
    assert not spilled(compiled(found, arch))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_kernels_of_experts(arch: str, compiled: Any) -> None:
    q4, q6, int8, f16 = (get(name) for name in ("q4_k", "q6_k", "int8", "f16"))
    found = [experts.route("softmax", 4, 1), experts.route("sigmoid", 8, 0), experts.list_pairs()]
    found += [experts.combine_pairs(), experts.pack_rows(), experts.grouped_rows(f16)]
    found += [experts.pairs_up(q4, q4, "silu", 1), experts.pairs_up(None, q6, "relu2", 2)]
    found += [experts.pairs_down(q6, 1), experts.pairs_down(int8, 1)]
    found += [experts.grouped_up(q4, q4, "silu", 4), experts.grouped_up(q4, q6, "swiglu_oai", 2)]
    found += [experts.grouped_down(q6, 4), experts.grouped_down(q4, 2)]
    assert not spilled(compiled(found, arch), traded=TRADED)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_kernels_of_recurrent_layers(arch: str, compiled: Any) -> None:
    found = [recurrent._conv(4, "silu"), recurrent._conv(4, "none")]
    found += [recurrent._recur(rows, is_delta) for rows in (16, 32, 64) for is_delta in (True, False)]
    assert not spilled(compiled(found, arch))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_kernels_of_adapters(arch: str, compiled: Any) -> None:
    assert not spilled(
        compiled([adapters._down(False), adapters._down(True), adapters._up(False), adapters._up(True)], arch)
    )
