"""Decoders: NumPy's against the public gguf package, the native one against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from fewbit.formats import Format, from_gguf, get
from fewbit.formats.decode import decode
from fewbit.ops import cpu

from ..samples import ALL, random_bytes

BLOCKS = 10_000
ORACLE = [from_gguf(int(t)) for t in quants._type_traits] + [get("f32"), get("f16")]
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bit by bit; any NaN is like any other."""
    return bool(((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all())


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 10))])
@pytest.mark.parametrize("fmt", ORACLE, ids=str)
def test_both_decoders_are_bit_exact_with_gguf(fmt: Format, seed: int) -> None:
    data = random_bytes(fmt, BLOCKS, fmt.block, seed)
    expected = quants.dequantize(data, GGMLQuantizationType(fmt.gguf)).reshape(BLOCKS, fmt.block)
    assert same_bits(cpu.decode(fmt, data, fmt.block), expected)
    assert same_bits(decode(fmt, data, fmt.block), expected)


@pytest.mark.parametrize("fmt", ALL, ids=str)
@pytest.mark.parametrize("k", [1, 2, 31, 32, 33, 255, 256, 257, 576])
def test_native_is_bit_exact_with_numpy(fmt: Format, k: int, isa: str) -> None:
    data = random_bytes(fmt, 37, k, seed=k)
    assert same_bits(cpu.decode(fmt, data, k), decode(fmt, data, k)), isa


def test_sizes_are_those_of_gguf() -> None:
    for kind, (block, size) in GGML_QUANT_SIZES.items():
        fmt = from_gguf(int(kind))
        stale = kind == GGMLQuantizationType.Q8_1  # the package has f32 fields here, ggml itself has f16 ones
        assert (fmt.block, fmt.block_bytes) == (block, 36 if stale else size), fmt


def test_formats_that_gguf_does_not_decode() -> None:
    one = np.array([1.5], "<f2").view(np.uint8)
    signs = np.array([0b1010_0101] * 16, np.uint8)
    q1 = decode(get("q1_0"), np.concatenate([one, signs])[None], 128)
    assert q1[0, :8].tolist() == [1.5, -1.5, 1.5, -1.5, -1.5, 1.5, -1.5, 1.5]
    q2 = decode(get("q2_0"), np.concatenate([one, np.array([0b11_10_01_00] * 16, np.uint8)])[None], 64)
    assert q2[0, :4].tolist() == [-1.5, 0.0, 1.5, 3.0]
    q8 = np.concatenate([one, one, np.arange(32, dtype=np.uint8)])[None]
    assert decode(get("q8_1"), q8, 32)[0, :3].tolist() == [0.0, 1.5, 3.0]
    scale = np.array([0.5], "<f4").view(np.uint8)
    q8k = np.concatenate([scale, np.full(256, 0xFF, np.uint8), np.zeros(32, np.uint8)])[None]
    assert (decode(get("q8_k"), q8k, 256) == -0.5).all()


@pytest.mark.parametrize("fmt", ALL, ids=str)
def test_nothing_decodes_to_nothing(fmt: Format, isa: str) -> None:
    assert cpu.decode(fmt, np.zeros((0, fmt.row_bytes(64)), np.uint8), 64).shape == (0, 64)
    assert cpu.decode(fmt, np.zeros((3, fmt.row_bytes(0)), np.uint8), 0).shape == (3, 0)
    assert decode(fmt, np.zeros((3, fmt.row_bytes(0)), np.uint8), 0).shape == (3, 0)
