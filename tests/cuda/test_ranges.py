"""Which products of many tokens are made in f16: those of rows and weights that are in its range, no others."""

from __future__ import annotations

import numpy as np
import pytest

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.formats import get
from fewbit.ops import cuda
from fewbit.ops.cuda.products import make_form, multiply
from fewbit.ops.cuda.ranges import many_dtype
from fewbit.ops.cuda.shapes import MAX_PANELS
from fewbit.ops.cuda.values import Launcher, Rows
from fewbit.ops.cuda.weights import Weights
from fewbit.ops.graph import Value
from fewbit.ops.passes import fuse
from fewbit.ops.recorder import Ops, record
from fewbit.ops.specs import AttentionSpec
from fewbit.tensor import QuantTensor

from .cases import make, relative_error
from .row_cases import floats

pytestmark = pytest.mark.cuda
K = 64
ONES = np.ones(K, np.float32)


def weights(largest: float = 1.0, format: str = "q8_0") -> QuantTensor:
    values = np.random.default_rng(1).uniform(-0.5, 0.5, (K, K)).astype(np.float32)
    values[3, 5] = -1
    return fb.quantize(np.float32(largest) * values, format)


def dtype_of(device: cuda.Session, w: QuantTensor, norm: Floats | None = ONES, is_shared: bool = False) -> str:
    """That of a product after a norm, which is part of the product unless something else reads its rows."""

    def forward(ops: Ops) -> Value:
        x = ops.embed(w)
        x = x if norm is None else ops.norm(x, norm, 1e-6)
        y = ops.linear(x, w)
        return ops.softcap(y + x if is_shared else y, 1.0)

    graph = fuse(record(forward))
    node = next(node for node in graph.nodes if node.operation in ("linear", "linears"))
    return many_dtype(node, graph.makers(), Weights(device).fused([(w, None)]))


@pytest.mark.parametrize("format", ["q8_0", "bf16", "f32", "iq4_nl"])
def test_rows_and_weights_must_be_in_range(device: cuda.Session, format: str) -> None:
    assert dtype_of(device, weights(1.0, format)) == "f16"
    assert dtype_of(device, weights(1.0, format), is_shared=True) == "f16"
    assert dtype_of(device, weights(1.0, format), None) == "bf16"
    assert dtype_of(device, weights(1e-4, format)) == "bf16"
    assert dtype_of(device, weights(1.0, format), 5000 * ONES) == "bf16"
    assert dtype_of(device, weights(1.0, format), 1e-3 * ONES) == "bf16"


@pytest.mark.parametrize("largest", [7e4, np.inf, np.nan])
def test_weights_beyond_f16_are_multiplied_in_bf16(device: cuda.Session, largest: float) -> None:
    values = np.ones((K, K), np.float32)
    values[K - 1, K - 1] = largest
    w = QuantTensor(values.reshape(-1).view(np.uint8), (K, K), get("f32"))
    assert dtype_of(device, w) == "bf16"


def test_rows_after_attention_are_in_range(device: cuda.Session) -> None:
    w, spec = weights(), AttentionSpec(1, K, K)

    def forward(ops: Ops) -> Value:
        x = ops.embed(w)
        return ops.softcap(ops.linear(ops.attend(0, x, x, x, spec=spec, scale=1.0), w), 1.0)

    graph = fuse(record(forward))
    node = next(node for node in graph.nodes if node.operation in ("linear", "linears"))
    assert many_dtype(node, graph.makers(), Weights(device).fused([(w, None)])) == "f16"


@pytest.mark.parametrize("name", ["q4_k", "bf16", "iq3_s"])
def test_f16_is_more_precise(device: cuda.Session, name: str) -> None:
    tokens = MAX_PANELS + 1
    w, values = make(get(name), 40, 512)
    sent, x, error = cuda.to_device(w), floats(tokens, 512), {}
    for many in ("f16", "bf16"):
        run, given, out = Launcher(device, device.stream), device.array(x), device.empty((tokens, 40))
        form = make_form(run, Rows(given.pointer, 512, 512), tokens, many=many)
        multiply(run, sent, form, tokens, Rows(out.pointer, 40, 40))
        error[many] = relative_error(out.numpy(), x.astype(np.float64) @ values.T)
    assert error["f16"] < 1e-3
    assert error["f16"] < error["bf16"] / 4
