"""Products of a step on a GPU against the NumPy decoder: fused matrices, gates, epilogues, forms, the same bits."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.arrays import Doubles, Floats
from fewbit.errors import ArgumentError, ShapeError
from fewbit.formats import get
from fewbit.ops import cuda
from fewbit.ops.cuda import products, shapes
from fewbit.ops.cuda.fused import Fused
from fewbit.ops.cuda.products import Form, make_form, multiply, multiply_gated
from fewbit.ops.cuda.shapes import SharedShape
from fewbit.ops.cuda.tensor import fill
from fewbit.ops.cuda.upload import Uploader
from fewbit.ops.cuda.values import Launcher, Rows
from fewbit.ops.numpy import ACTIVATION_FUNCTIONS

from .cases import int8_values, make, relative_error

pytestmark = pytest.mark.cuda
rng = np.random.default_rng(0)
K = 2304  # no power of two, and no whole number of tiles for the blocks that share it
TOKENS = (1, 5, 13, 30, 64, 70)


class Strided:
    """Rows in a wider array full of NaN, which nobody may write beside them."""

    def __init__(self, device: cuda.Session, tokens: int, width: int, values: Floats | None = None) -> None:
        self.tokens, self.width, self.stride = tokens, width, (width + 24) // 4 * 4
        held = np.full((tokens, self.stride), np.nan, np.float32)
        if values is not None:
            held[:, 4 : 4 + width] = values
        self.array = device.array(held)
        self.rows = Rows(self.array.pointer, self.stride, self.stride).columns(4, width)

    def numpy(self) -> Floats:
        held = self.array.numpy()
        assert np.isnan(held[:, :4]).all()
        assert np.isnan(held[:, 4 + self.width :]).all()
        return np.asarray(held[:, 4 : 4 + self.width])


def limit(tokens: int) -> float:
    return 2e-2 if tokens == 1 else 3e-3 if tokens <= 64 else 6e-3


def stacked(values: list[Doubles], x: Floats) -> list[Doubles]:
    return [x.astype(np.float64) @ v.T for v in values]


def inputs(tokens: int, k: int = K) -> Floats:
    return rng.standard_normal((tokens, k), np.float32)


def fused_of(device: cuda.Session, names: tuple[str, ...], sizes: tuple[int, ...], k: int = K, gate: str = "") -> Any:
    made = [make(get(name), n, k) for name, n in zip(names, sizes, strict=True)]
    weights = [w for w, _ in made]
    fused = Fused.gated(device, weights[0], weights[1], gate) if gate else Fused.make(device, weights)
    return fused, [v for _, v in made]


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(
    "names",
    [("q4_k", "q4_k", "q4_k"), ("q4_k", "q4_k", "q6_k"), ("q6_k", "q8_0", "q4_k"), ("q4_k", "iq4_xs", "iq2_xxs")],
)
def test_matrices_of_the_same_rows(device: cuda.Session, names: tuple[str, ...], tokens: int) -> None:
    sizes = (137, 37, 24)
    fused, values = fused_of(device, names, sizes)
    x = inputs(tokens)
    run, given, out = (
        Launcher(device, device.stream),
        Strided(device, tokens, K, x),
        Strided(device, tokens, fused.width),
    )
    multiply(run, fused, make_form(run, given.rows, tokens), tokens, out.rows)
    found = out.numpy()
    for column, n, expected in zip(fused.offsets, fused.sizes, stacked(values, x), strict=True):
        assert relative_error(found[:, column : column + n], expected) < limit(tokens)


@pytest.mark.parametrize(
    "names", [("q4_k", "q6_k", "q4_k"), ("int4_group:zero=true", "nvfp4"), ("iq2_xxs", "q8_0", "int8")]
)
def test_matrices_are_decoded_some_rows_at_a_time(
    device: cuda.Session, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces that begin and end within matrices, of which some are smaller than a piece."""
    fused, values = fused_of(device, names, (137, 37, 24)[: len(names)])
    tokens, x = 70, inputs(70)
    run, given, out = (
        Launcher(device, device.stream),
        Strided(device, tokens, K, x),
        Strided(device, tokens, fused.width),
    )
    monkeypatch.setattr(products, "MAX_DECODED", 2 * K * 50)  # 48 rows
    multiply(run, fused, make_form(run, given.rows, tokens), tokens, out.rows)
    found = out.numpy()
    for column, n, expected in zip(fused.offsets, fused.sizes, stacked(values, x), strict=True):
        assert relative_error(found[:, column : column + n], expected) < limit(tokens)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("names", "kind"), [
    (("q4_k", "q4_k"), "silu"), (("q6_k", "q6_k"), "gelu"), (("q8_0", "q8_0"), "gelu_tanh"), (("int8", "int8"), "relu"),
    (("q4_k", "q6_k"), "silu"),
])  # fmt: skip
def test_gates(device: cuda.Session, names: tuple[str, ...], kind: str, tokens: int) -> None:
    fused, (gate, up) = fused_of(device, names, (133, 133), gate=kind)
    x = inputs(tokens) * np.float32(0.2)
    taken = int8_values(x[0])[None] if tokens == 1 else x.astype(np.float64)
    run, given, out = (
        Launcher(device, device.stream),
        Strided(device, tokens, K, x),
        Strided(device, tokens, fused.width),
    )
    multiply(run, fused, make_form(run, given.rows, tokens), tokens, out.rows)
    expected = ACTIVATION_FUNCTIONS[kind](taken @ gate.T) * (taken @ up.T)
    assert relative_error(out.numpy(), expected) < (1e-3 if tokens == 1 else 2 * limit(tokens))


@pytest.mark.parametrize("tokens", [1, 9, 40, 70])
def test_a_gate_and_the_product_after_it(device: cuda.Session, tokens: int) -> None:
    fused, (gate, up) = fused_of(device, ("q8_0", "q8_0"), (512, 512), gate="silu")
    w, down = make(get("q8_0"), 48, 512)
    sent, x = cuda.to_device(w), inputs(tokens) * np.float32(0.2)
    run = Launcher(device, device.stream)
    given, middle, out = Strided(device, tokens, K, x), Strided(device, tokens, 512), Strided(device, tokens, 48)
    form = make_form(run, given.rows, tokens)
    after = multiply_gated(run, fused, form, tokens, middle.rows) or make_form(run, middle.rows, tokens)
    multiply(run, sent, after, tokens, out.rows)
    wide = x.astype(np.float64)
    expected = (ACTIVATION_FUNCTIONS["silu"](wide @ gate.T) * (wide @ up.T)) @ down.T
    assert relative_error(out.numpy(), expected) < 3 * limit(tokens)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("name", ["q4_k", "iq3_s"])
@pytest.mark.parametrize("residual", ["none", "other", "itself"])
def test_bias_and_residual(device: cuda.Session, name: str, tokens: int, residual: str) -> None:
    w, values = make(get(name), 141, K)
    sent, x, add = cuda.to_device(w), inputs(tokens), inputs(tokens, 141) * np.float32(50)
    bias = rng.standard_normal(141).astype(np.float32) * np.float32(50)
    run, given = Launcher(device, device.stream), Strided(device, tokens, K, x)
    other = Strided(device, tokens, 141, add)
    out = other if residual == "itself" else Strided(device, tokens, 141)
    form, biases = make_form(run, given.rows, tokens), device.array(bias)
    added = None if residual == "none" else other.rows
    multiply(run, sent, form, tokens, out.rows, bias=biases.pointer, residual=added)
    product = x.astype(np.float64) @ values.T
    found = out.numpy() - bias - (0 if residual == "none" else add)
    assert relative_error(found, product) < limit(tokens) + 1e-4


def put_fragments(device: cuda.Session, form: Form, x: Floats) -> None:
    """As attention writes them: what is no value of a token stays as it was."""
    (tokens, width), columns = x.shape, -(-x.shape[1] // 128)
    held = np.empty((columns, 4, form.tiles, 8, 4, 8), np.float16)  # column, s, token tile, token, granule, value
    device.download(form.pointer, held)
    rows = held.transpose(2, 3, 0, 4, 1, 5).reshape(form.tiles * 8, columns * 128)
    rows[:tokens, :width] = x
    device.upload(rows.reshape(form.tiles, 8, columns, 4, 4, 8).transpose(2, 4, 0, 1, 3, 5), form.pointer)


@pytest.mark.parametrize(("name", "k"), [("q4_k", K), ("int4_group:group=128", 224)])
def test_fragments_without_scales(device: cuda.Session, name: str, k: int) -> None:
    """Of more tokens and fewer, in the same memory; where the last tile is not full, the rest of it counts as zeros."""
    w, values = make(get(name), 141, k)
    sent = cuda.to_device(w)
    for tokens, width in ((20, k), (9, k + 32), (6, k)):
        run, out, x = Launcher(device, device.stream), Strided(device, tokens, 141), inputs(tokens, width)
        form = products.empty_form(run, width, tokens)
        assert form
        put_fragments(device, form, x)
        if width == k:
            multiply(run, sent, form, tokens, out.rows)
            assert relative_error(out.numpy(), x.astype(np.float64) @ values.T) < limit(tokens)


@pytest.mark.parametrize("tokens", TOKENS)
def test_a_residual_alone_is_added_in_place(device: cuda.Session, tokens: int) -> None:
    w, values = make(get("q4_k"), 141, K)
    sent, x, add = cuda.to_device(w), inputs(tokens), inputs(tokens, 141)
    run, given, out = Launcher(device, device.stream), Strided(device, tokens, K, x), Strided(device, tokens, 141, add)
    multiply(run, sent, make_form(run, given.rows, tokens), tokens, out.rows, residual=out.rows)
    assert relative_error(out.numpy() - add, x.astype(np.float64) @ values.T) < limit(tokens) + 1e-4


@pytest.mark.parametrize("tokens", [1, 7, 33, 66])
@pytest.mark.parametrize("k", [256, 1000, 4104])
@pytest.mark.parametrize(("name", "activations"), [("int4_group", "int8"), ("int4_group", "int16"), ("f16", "int8")])
def test_norms_before_a_product(device: cuda.Session, name: str, k: int, tokens: int, activations: str) -> None:
    w, values = make(get(name), 40, k)
    sent, x = cuda.to_device(w), inputs(tokens, k) * np.float32(37)
    weight = rng.uniform(0.5, 1.5, k).astype(np.float32)
    run, given, out = Launcher(device, device.stream), Strided(device, tokens, k, x), Strided(device, tokens, 40)
    norm, held = 1e-5, device.array(weight)
    form = make_form(run, given.rows, tokens, (held.pointer, norm), int16=activations == "int16")
    multiply(run, sent, form, tokens, out.rows)
    wide = x.astype(np.float64)
    expected = (wide / np.sqrt(np.mean(wide**2, axis=1, keepdims=True) + norm) * weight) @ values.T
    most = limit(70) if name == "f16" and tokens > shapes.MAX_ROWS_GEMV else limit(tokens)  # these are taken in bf16
    assert relative_error(out.numpy(), expected) < (1e-3 if tokens == 1 and activations == "int16" else most)


def test_rows_at_odd_places(device: cuda.Session) -> None:
    """Not aligned for vector loads."""
    w, values = make(get("q8_0"), 40, 256)
    sent = cuda.to_device(w)
    for tokens in (1, 6, 70):
        held = rng.standard_normal((tokens, 263)).astype(np.float32)
        x, out = device.array(held), Strided(device, tokens, 40)
        run = Launcher(device, device.stream)
        form = make_form(run, Rows(x.pointer, 263, 263).columns(3, 256), tokens)
        multiply(run, sent, form, tokens, out.rows)
        assert relative_error(out.numpy(), held[:, 3:259].astype(np.float64) @ values.T) < limit(tokens)


@pytest.mark.parametrize("name", ["q4_k", "int8", "iq3_s"])
def test_a_token_has_the_same_bits_among_any_others(device: cuda.Session, name: str) -> None:
    fused, values = fused_of(device, (name, "q6_k"), (139, 21))
    gated, _ = fused_of(device, ("q4_k", "q4_k"), (40, 40), gate="silu")
    x = inputs(100)
    weight = device.array(np.ones(K, np.float32))

    def product(w: Fused, rows: Floats) -> Floats:
        run, tokens = Launcher(device, device.stream), len(rows)
        given, out = Strided(device, tokens, K, rows), Strided(device, tokens, w.width)
        form = make_form(run, given.rows, tokens, (weight.pointer, 1e-6), invariant=True)
        multiply(run, w, form, tokens, out.rows, invariant=True)
        columns = np.concatenate([np.arange(at, at + n) for at, n in zip(w.offsets, w.sizes, strict=True)])
        return np.asarray(out.numpy()[:, columns])

    for w in (fused, gated):
        every = product(w, x)
        for chosen in ([3], [3, 4], list(range(15)), list(range(50, 83)), list(range(20, 61))):
            assert np.array_equal(product(w, x[chosen]), every[chosen])
    wide = x.astype(np.float64)
    expected = wide / np.sqrt(np.mean(wide**2, axis=1, keepdims=True) + 1e-6) @ np.concatenate(values).T
    assert relative_error(product(fused, x), expected) < 3e-3


@pytest.mark.parametrize("tokens", [20, 48, 64])
@pytest.mark.parametrize(("warps", "pairs", "share", "cluster"), [
    (4, 2, 1, False), (2, 1, 4, False), (4, 2, 8, True), (8, 1, 2, True), (4, 1, 7, True),
])  # fmt: skip
def test_ways_to_share_k(
    device: cuda.Session,
    monkeypatch: pytest.MonkeyPatch,
    tokens: int,
    warps: int,
    pairs: int,
    share: int,
    cluster: bool,
) -> None:
    tiles = shapes.token_tiles(tokens, False)
    shape = SharedShape(warps, pairs, tiles, 3 if tiles == 8 else 4, share, cluster)
    monkeypatch.setattr(products, "shared_shape", lambda *_: shape)
    fused, values = fused_of(device, ("q4_k", "q6_k"), (300, 40))
    x = inputs(tokens)
    run, given, out = (
        Launcher(device, device.stream),
        Strided(device, tokens, K, x),
        Strided(device, tokens, fused.width),
    )
    form = make_form(run, given.rows, tokens)
    found = []
    for _ in range(3):
        multiply(run, fused, form, tokens, out.rows)
        found.append(out.numpy().copy())
    for column, n, expected in zip(fused.offsets, fused.sizes, stacked(values, x), strict=True):
        assert relative_error(found[0][:, column : column + n], expected) < 3e-3
    assert np.array_equal(found[0], found[1], equal_nan=True)
    assert np.array_equal(found[0], found[2], equal_nan=True)


def test_weights_are_sent_in_pieces(device: cuda.Session) -> None:
    for name in ("q6_k", "iq3_s"):
        w, values = make(get(name), 203, 512)
        out, sent = cuda.CudaTensor(device, w.format, (203, 512)), []
        with Uploader(device, sent.append, nbytes=7 * w.format.row_bytes(512) + 5) as uploader:
            fill(out, [(w, 0, 1)], uploader)
        assert sum(sent) == w.nbytes
        assert len(sent) == 29
        assert np.array_equal(out.dequantize().numpy(), values.astype(np.float32))


def test_weights_go_to_the_gpu_and_are_multiplied_there(device: cuda.Session) -> None:
    w, values = make(get("q4_0"), 40, 256)
    x, bias = inputs(3, 256), rng.standard_normal(40).astype(np.float32)
    sent = w.to("cuda:0")
    assert isinstance(sent, cuda.CudaTensor)
    residual = inputs(3, 40)
    found = fb.linear(x, sent, bias=bias, residual=residual).numpy()
    assert relative_error(found, x.astype(np.float64) @ values.T + bias + residual) < 3e-3
    with pytest.raises(ShapeError, match="bias must have shape"):
        fb.linear(x, sent, bias=bias[1:])
    with pytest.raises(ArgumentError, match="threads"):
        fb.linear(x, sent, threads=2)
    for on_gpu in (sent, sent.dequantize()):
        with pytest.raises(TypeError, match=r"cannot be pickled or copied, its \w+ are on a GPU"):
            pickle.dumps(on_gpu)


def test_what_cannot_be_one_product(device: cuda.Session) -> None:
    a, b = make(get("q4_0"), 8, 64)[0], make(get("q4_0"), 8, 32)[0]
    with pytest.raises(ShapeError, match="cannot be one product"):
        Fused.make(device, [a, b])
    fused, _ = fused_of(device, ("q4_0", "q4_0"), (8, 8), 64, gate="silu")
    run, x, out = Launcher(device, device.stream), Strided(device, 1, 64, inputs(1, 64)), Strided(device, 1, 8)
    with pytest.raises(ArgumentError, match="nothing can be added"):
        multiply(run, fused, make_form(run, x.rows, 1), 1, out.rows, residual=out.rows)


def test_biases_of_parts(device: cuda.Session) -> None:
    made = [make(get(name), n, 64) for name, n in (("q4_0", 5), ("q4_0", 20), ("q8_0", 3))]
    biases = [np.full(5, 1, np.float32), None, np.full(3, 2, np.float32)]
    fused = Fused.make(device, [w for w, _ in made], biases)
    run, x, out = (
        Launcher(device, device.stream),
        Strided(device, 1, 64, inputs(1, 64) * 0),
        Strided(device, 1, fused.width),
    )
    multiply(run, fused, make_form(run, x.rows, 1), 1, out.rows, bias=fused.bias)
    row = out.numpy()[0]
    found = [list(row[at : at + n]) for at, n in zip(fused.offsets, fused.sizes, strict=True)]
    assert found == [[1] * 5, [0] * 20, [2] * 3]
