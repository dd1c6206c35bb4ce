"""Every kernel on a GPU against the NumPy decoder: fresh data, ragged shapes, outputs poisoned before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fewbit.errors import ArgumentError, DtypeError, FormatError, LayoutError, ShapeError
from fewbit.formats import Format, get
from fewbit.formats.encode import encode
from fewbit.ops import cuda
from fewbit.ops.cuda import kernels
from fewbit.ops.cuda.compile import compile_all
from fewbit.ops.cuda.layout import tile_layout
from fewbit.ops.cuda.matrices import FLOATS, encode_rows, to_view
from fewbit.tensor import QuantTensor

from .cases import ALL, MAIN, QUANTIZED, entries, int8_values, make, ragged, relative_error

pytestmark = pytest.mark.cuda
names = {"ids": str}
rng = np.random.default_rng(0)


@pytest.fixture(scope="module")
def device(device: cuda.Session) -> cuda.Session:
    """With the kernels of these tests, compiled at once."""
    every = [entry.source for fmt in ALL for entry in entries(fmt, *ragged(fmt))]
    every += [kernels.encode(fmt, dtype).source for fmt in QUANTIZED for dtype in FLOATS]
    if device.arch != "emulated":
        compile_all(every, device.arch)
    return device


def test_a_device_is_opened_once(device: cuda.Session) -> None:
    assert cuda.shared_session(0) is device
    w, _ = make(get("q4_0"), 8, 32)
    assert cuda.to_device(w).device is device


def poisoned(device: cuda.Session, *shape: int, dtype: str = "f32") -> cuda.DeviceArray:
    out = device.empty(shape, dtype)
    device.fill(out.pointer, 0xFF, out.nbytes)
    return out


def product(device: cuda.Session, x: Any, w: cuda.CudaTensor, activations: str | None = None) -> np.ndarray:
    """A product into memory full of NaN, all of which must be written."""
    out = poisoned(device, *x.shape[:-1], w.shape[0])
    y = cuda.linear(x, w, out, activations).numpy()
    assert not np.isnan(y).any()
    return y


@pytest.mark.parametrize("fmt", ALL, **names)
def test_dequantized_values_have_the_bits_of_the_decoder(device: cuda.Session, fmt: Format) -> None:
    w, values = make(fmt, *ragged(fmt))
    sent = cuda.to_device(w)
    expected = values.astype(np.float32)
    assert np.array_equal(sent.dequantize().numpy(), expected)
    with np.errstate(over="ignore"):
        assert np.array_equal(sent.dequantize("f16").numpy(), expected.astype(np.float16))
    assert relative_error(sent.dequantize("bf16").numpy(), values) < 3e-3


@pytest.mark.parametrize("fmt", ALL, **names)
def test_one_token(device: cuda.Session, fmt: Format) -> None:
    n, k = ragged(fmt)
    w, values = make(fmt, n, k)
    sent, x = cuda.to_device(w), rng.standard_normal(k, np.float32)
    if sent.layout == "rows":
        assert relative_error(product(device, x, sent), values @ x) < 1e-5
        return
    assert relative_error(product(device, x, sent), values @ int8_values(x)) < 1e-5
    assert relative_error(product(device, x, sent), values @ x) < 3e-2
    assert relative_error(product(device, x, sent, "int16"), values @ x) < 2e-4
    assert relative_error(product(device, x, sent, "f16"), values @ x) < 3e-3


@pytest.mark.parametrize("fmt", ALL, **names)
@pytest.mark.parametrize("tokens", [3, 13, 29, 67])
def test_tokens(device: cuda.Session, fmt: Format, tokens: int) -> None:
    n, k = ragged(fmt)
    w, values = make(fmt, n, k)
    x = rng.standard_normal((tokens, k), np.float32)
    error = relative_error(product(device, x, cuda.to_device(w)), x.astype(np.float64) @ values.T)
    assert error < (6e-3 if tokens > 64 or tile_layout(fmt) is None else 3e-3)


@pytest.mark.parametrize("fmt", MAIN, **names)
@pytest.mark.parametrize(("n", "k"), [(1, 256), (16, 2304), (130, 7168), (9000, 2048)])
@pytest.mark.parametrize("tokens", [1, 2, 8, 16, 17, 40, 64, 65])
def test_sizes(device: cuda.Session, fmt: Format, n: int, k: int, tokens: int) -> None:
    w, values = make(fmt, n, k)
    x = rng.standard_normal((tokens, k), np.float32)
    taken = int8_values(x[0])[None] if tokens == 1 else x.astype(np.float64)
    assert relative_error(product(device, x, cuda.to_device(w)), taken @ values.T) < (1e-4 if tokens == 1 else 6e-3)


@pytest.mark.parametrize("tokens", [1, 5, 20, 64])
def test_a_product_has_the_same_bits_every_time(device: cuda.Session, tokens: int) -> None:
    w, _ = make(get("q4_k"), 192, 8192)
    sent, x = cuda.to_device(w), device.array(rng.standard_normal((tokens, 8192), np.float32))
    first = product(device, x, sent)
    for _ in range(20):
        assert np.array_equal(product(device, x, sent), first)


def test_products_that_depend_on_each_other(device: cuda.Session) -> None:
    """Weights are prefetched before the product before has ended; x must not be."""
    w, values = make(get("q8_0"), 1024, 1024)
    sent, x = cuda.to_device(w), rng.standard_normal(1024, np.float32)
    scale = np.float32(1 / np.linalg.norm(values, 2))
    small = QuantTensor(w.stored.copy(), w.shape, w.format)
    small.stored.reshape(-1, 34)[:, :2] = (
        (w.stored.reshape(-1, 34)[:, :2].copy().view(np.float16) * scale).astype(np.float16).view(np.uint8)
    )
    sent = cuda.to_device(small)
    chained: Any = device.array(x)
    for _ in range(12):
        chained = cuda.linear(chained, sent)
    alone: Any = x
    for _ in range(12):
        alone = cuda.linear(alone, sent).numpy()
    assert np.array_equal(chained.numpy(), alone)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("tokens", [1, 7, 33, 100])
def test_types_of_inputs_and_results(device: cuda.Session, dtype: str, tokens: int) -> None:
    w, values = make(get("q6_k"), 40, 512)
    x = rng.standard_normal((tokens, 512), np.float32)
    bits = (x.view(np.uint32) >> 16).astype(np.uint16)
    given = device.array(bits if dtype == "bf16" else x.astype(np.float16 if dtype == "f16" else np.float32), dtype)
    out = poisoned(device, tokens, 40, dtype=dtype)
    found = cuda.linear(given, cuda.to_device(w), out).numpy().astype(np.float32)
    assert relative_error(found, given.numpy().astype(np.float64) @ values.T) < 3e-2


@pytest.mark.parametrize("tokens", [1, 4, 32])
def test_large_inputs_and_tiny_weights_do_not_leave_f16(device: cuda.Session, tokens: int) -> None:
    w, values = make(get("int4_group"), 64, 1024)
    at, size = w.format.row_fields(1024)["scale"]
    scales = w.stored.reshape(64, -1)[:, at : at + size]
    scales[...] = (scales.copy().view(np.float32) * np.float32(1e-9)).view(np.uint8)
    x = rng.standard_normal((tokens, 1024), np.float32) * np.float32(1e7)
    found = product(device, x, cuda.to_device(w))
    assert relative_error(found, x.astype(np.float64) @ (values.T * 1e-9)) < (2e-2 if tokens == 1 else 3e-3)


@pytest.mark.parametrize("fmt", QUANTIZED, **names)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("n", "k"), [(5, 512), (19, 416)])
def test_quantized_bytes_are_those_of_the_encoder(
    device: cuda.Session, fmt: Format, dtype: str, n: int, k: int
) -> None:
    x = rng.standard_normal((n, k), np.float32)
    x[0, :64] = 0
    x[1] = abs(x[1])
    bits = (x.view(np.uint32) >> 16).astype(np.uint16)
    given = device.array(bits if dtype == "bf16" else x.astype(np.float16 if dtype == "f16" else np.float32), dtype)
    expected = encode(fmt, given.numpy().astype(np.float32))
    assert np.array_equal(encode_rows(device, to_view(device, given, "x", FLOATS), fmt).numpy(), expected)
    found = cuda.quantize(given, fmt).dequantize().numpy()
    assert np.array_equal(found, make_from(fmt, expected, n, k).dequantize().numpy())


def make_from(fmt: Format, data: np.ndarray, n: int, k: int) -> cuda.CudaTensor:
    return cuda.to_device(QuantTensor(data.reshape(-1), (n, k), fmt))


def test_torch_tensors_come_in_and_go_out(device: cuda.Session) -> None:
    torch = pytest.importorskip("torch")
    w, values = make(get("q4_0"), 64, 256)
    sent = cuda.to_device(w)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.randn(3, 256, device="cuda").to(dtype)
        y = torch.from_dlpack(cuda.linear(x, sent))
        expected = x.double().cpu().numpy() @ values.T
        assert relative_error(y.cpu().numpy(), expected) < 3e-3
        out = torch.full((3, 64), float("nan"), device="cuda", dtype=dtype)
        assert cuda.linear(x, sent, out) is out
        assert relative_error(out.float().cpu().numpy(), expected) < 1e-2
    decoded = torch.from_dlpack(sent.dequantize("bf16"))
    assert decoded.dtype == torch.bfloat16
    assert np.allclose(decoded.float().cpu().numpy(), values, rtol=1e-2)
    seen = torch.as_tensor(sent.dequantize(), device="cuda")  # __cuda_array_interface__
    assert np.array_equal(seen.cpu().numpy(), values.astype(np.float32))


def test_what_does_not_fit_is_one_sentence(device: cuda.Session) -> None:
    w, _ = make(get("q4_0"), 8, 64)
    sent = cuda.to_device(w)
    with pytest.raises(ShapeError, match="rows of 64 values"):
        cuda.linear(np.zeros((2, 63), np.float32), sent)
    with pytest.raises(ShapeError, match="out must have shape"):
        cuda.linear(np.zeros((2, 64), np.float32), sent, device.empty((2, 9)))
    with pytest.raises(DtypeError, match="sends it there"):
        cuda.linear(np.zeros(64, np.float32), w)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="activations must be"):
        cuda.linear(np.zeros(64, np.float32), sent, activations="int3")
    with pytest.raises(LayoutError, match="in the GPU's memory"):
        cuda.linear(np.zeros(64, np.float32), sent, np.zeros(8, np.float32))
    with pytest.raises(FormatError, match="GPUs quantize to"):
        cuda.quantize(np.zeros((2, 256), np.float32), "q4_k")


def test_nothing_times_nothing(device: cuda.Session) -> None:
    w, _ = make(get("q4_0"), 8, 64)
    assert cuda.linear(np.zeros((0, 64), np.float32), cuda.to_device(w)).numpy().shape == (0, 8)
    none = cuda.to_device(QuantTensor(np.zeros(0, np.uint8), (0, 64), get("q4_0")))
    assert cuda.linear(np.zeros((3, 64), np.float32), none).numpy().shape == (3, 0)
