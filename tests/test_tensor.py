"""QuantTensor and fb.quantize: what goes in, what comes out, and what is refused."""

from __future__ import annotations

import copy
import mmap
import pickle
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import fewbit as fb
from fewbit.formats import Format, get

from .samples import ALL, random_bytes


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("fmt", ALL, ids=str)
@pytest.mark.parametrize("k", [1, 31, 33, 257])
def test_rows_of_any_length(fmt: Format, k: int) -> None:
    x = weights(3, k)
    w = fb.quantize(x, fmt)
    assert w.shape == (3, k)
    assert w.nbytes == 3 * fmt.row_bytes(k)
    assert w.dequantize().shape == (3, k)
    assert np.isfinite(w.dequantize()).all()


@pytest.mark.parametrize("fmt", ALL, ids=str)
def test_bytes_and_pickle_round_trip(fmt: Format) -> None:
    k = 256
    w = fb.QuantTensor.from_bytes(random_bytes(fmt, 4, k), (2, 2, k), fmt)
    again = fb.QuantTensor.from_bytes(w.to_bytes(), w.shape, fmt)
    assert again == w
    assert pickle.loads(pickle.dumps(w)) == w
    assert w.dequantize().shape == (2, 2, k)


def test_pickle_keeps_padded_rows() -> None:
    w = fb.quantize(weights(2, 33), "q4_0")
    assert pickle.loads(pickle.dumps(w)) == w


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_rows_and_repacked_weights(protocol: int) -> None:
    w = fb.quantize(weights(37, 256), "q4_k")
    for made in (w, fb.repack(w), w[3:5], w[[1, 2]]):
        again = pickle.loads(pickle.dumps(made, protocol))
        assert again == made
        assert np.array_equal(again.dequantize(), made.dequantize())
    assert len(pickle.dumps(w[3:5], pickle.HIGHEST_PROTOCOL)) < w.nbytes / 4
    assert w == pickle.loads(pickle.dumps(w.T, protocol)).T
    assert copy.deepcopy(w) == w


def test_memory_map_is_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "w.bin"
    path.write_bytes(fb.quantize(weights(8, 64), "q8_0").to_bytes())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        w = fb.QuantTensor.from_bytes(view, (8, 64), "q8_0")
        assert not w.data.flags.owndata
        assert w == fb.quantize(weights(8, 64), "q8_0")
        del w
    mapped = np.memmap(path, np.uint8, "r")
    assert np.shares_memory(fb.QuantTensor.from_bytes(mapped, (8, 64), "q8_0").data, mapped)


@pytest.mark.parametrize("make", [
    lambda x: x.tolist(), np.asfortranarray, lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    memoryview, lambda x: x.astype(">f4"), lambda x: x.astype(np.float64),
], ids=["list", "fortran", "strided", "memoryview", "big-endian", "float64"])  # fmt: skip
def test_same_numbers_however_they_come(make: object) -> None:
    x = weights(4, 64)
    assert fb.quantize(make(x), "q4_0") == fb.quantize(x, "q4_0")  # type: ignore[operator]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_arrays(dtype: type) -> None:
    x = weights(4, 64).astype(dtype)
    assert fb.quantize(x, "q8_0") == fb.quantize(x.astype(np.float32), "q8_0")
    assert fb.linear(x, fb.quantize(weights(8, 64), "q4_0")).shape == (4, 8)


class TorchLike:
    """What fewbit uses of a torch tensor; the real one is tested where torch is installed."""

    class Device:
        type = "cpu"

    device = Device()
    dtype = "torch.bfloat16"

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def detach(self) -> TorchLike:
        return self

    def float(self) -> TorchLike:
        return self

    def numpy(self) -> np.ndarray:
        return self.array


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = weights(4, 64)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        t = torch.from_numpy(x).to(dtype)
        assert fb.quantize(t, "q8_0") == fb.quantize(t.float().numpy(), "q8_0")


def test_objects_that_look_like_torch_tensors() -> None:
    assert fb.quantize(TorchLike(weights(4, 64)), "q8_0") == fb.quantize(weights(4, 64), "q8_0")


def test_dlpack() -> None:
    class Capsule:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **options: object) -> object:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()

    assert fb.quantize(Capsule(weights(4, 64)), "q8_0") == fb.quantize(weights(4, 64), "q8_0")


def test_repr_and_bits() -> None:
    w = fb.quantize(weights(8, 256), "q4_k")
    assert repr(w) == "QuantTensor(q4_k, 8x256, 1152 bytes, 4.5 bits a weight)"
    assert (w.nbytes, w.bits_per_weight, w.format.name) == (1152, 4.5, "q4_k")
    assert fb.quantize(weights(0, 256), "q4_k").bits_per_weight == 4.5


@pytest.mark.parametrize("shape", [(0, 32), (4, 0), (0, 0), (0,), (1,)])
@pytest.mark.parametrize("fmt", ALL, ids=str)
def test_empty_and_single(fmt: Format, shape: tuple[int, ...]) -> None:
    w = fb.quantize(np.ones(shape, np.float32), fmt)
    assert w.dequantize().shape == shape
    if w.dequantize().size:
        assert abs(float(w.dequantize()[0]) - 1) < 0.2


def test_what_is_refused() -> None:
    x, packed = weights(2, 64), fb.QuantTensor.from_bytes
    cases = [
        (fb.FormatError, "unknown format 'q9_z'; there are", lambda: fb.quantize(x, "q9_z")),
        (fb.FormatError, "takes no options", lambda: fb.quantize(x, "q4_0:group=3")),
        (fb.FormatError, "has no option 'size'", lambda: fb.quantize(x, "int4:size=3")),
        (fb.FormatError, "even number", lambda: fb.quantize(x, "int4:block=7")),
        (fb.FormatError, "one of 32, 64, 128", lambda: fb.quantize(x, "int4_group:group=48")),
        (fb.FormatError, "format must be a name", lambda: fb.quantize(x, 4)),
        (fb.ShapeError, "at least one dimension", lambda: fb.quantize(np.float32(1), "q4_0")),
        (fb.DtypeError, "numbers", lambda: fb.quantize(np.array(["a"]), "q4_0")),
        (fb.DtypeError, "array of numbers", lambda: fb.quantize(object(), "q4_0")),
        (fb.ShapeError, "must have shape", lambda: fb.quantize(x, "q4_0", importance=np.ones(63))),
        (fb.DataError, "at least 0", lambda: fb.quantize(x, "q4_0", importance=-np.ones(64))),
        (fb.ShapeError, "multiple of 32 values, got 33", lambda: packed(bytes(36), (1, 33), "q4_0")),
        (fb.ShapeError, "takes 36 bytes, got 35", lambda: packed(bytes(35), (1, 64), "q4_0")),
        (fb.ShapeError, "no negative size", lambda: packed(b"", (-1, 64), "q4_0")),
        (fb.ShapeError, "tuple of sizes", lambda: packed(b"", "ab", "q4_0")),
        (fb.ShapeError, "too large", lambda: packed(b"", (1 << 62, 1 << 62), "q4_0")),
        (fb.LayoutError, "contiguous", lambda: packed(np.zeros((2, 72), "u1")[:, ::2], (2, 64), "q4_0")),
    ]  # fmt: skip
    for kind, words, call in cases:
        with pytest.raises(kind, match=words):
            call()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_weights_say_where(value: float) -> None:
    x = weights(3, 64)
    x[2, 5] = value
    with pytest.raises(fb.DataError, match=f"hold {value} at row 2, column 5"):
        fb.quantize(x, "q4_k")
    assert np.array_equal(fb.quantize(x, "f16").dequantize()[2, 5], np.float32(value), equal_nan=True)


def test_errors_are_fewbit_errors_and_built_in_ones() -> None:
    assert issubclass(fb.ShapeError, fb.FewbitError)
    assert issubclass(fb.ShapeError, ValueError)
    assert issubclass(fb.DtypeError, TypeError)
    assert issubclass(fb.LayoutError, BufferError)
    assert issubclass(fb.LayoutError, ValueError)


def test_options_of_families() -> None:
    assert fb.format("int4").name == "int4"
    assert fb.format("int4:block=32") == fb.format("int4")
    assert fb.format("int4_group:zero=true,scale=f16").name == "int4_group:zero=true,scale=f16"
    assert "q4_k" in fb.formats()


def test_int8_per_tensor_has_one_scale() -> None:
    x = np.array([[1.0, 2.0], [0.5, -4.0]], np.float32)
    w = fb.quantize(x, "int8:per=tensor").dequantize()
    assert np.allclose(w, np.round(x * 127 / 4) * 4 / 127)
    assert np.allclose(fb.quantize(x, "int8").dequantize()[0], np.round(x[0] * 127 / 2) * 2 / 127)


def test_get_is_the_same_for_names_and_formats() -> None:
    assert get(get("q4_0")) is get("Q4_0")
