"""Prompt attention without a GPU: what each lane addresses and holds, re-done in NumPy, and the sizes of blocks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fewbit.arrays import Floats
from fewbit.errors import ArgumentError, ShapeError
from fewbit.formats import get
from fewbit.ops.cuda.kernels_prompt import H200_SHARED, prompt_shape
from fewbit.ops.cuda.pages import LayerPages
from fewbit.ops.cuda.prompt_attention import FAR, Reach, _heads, prompt_attention, reach
from fewbit.ops.cuda.values import GroupTables, Launcher, Rows, StepInputs
from fewbit.ops.specs import AttentionSpec

from .fake import FakeGpu

Lanes = npt.NDArray[np.int64]
LANES = np.arange(32)
CARDS = {"sm_80": (166912, 167936), "sm_86": (101376, 102400), "sm_90": H200_SHARED}
DIMS = [(32, 32), (64, 64), (80, 80), (96, 96), (128, 128), (256, 256), (192, 128), (576, 512), (36, 20), (512, 512)]
rng = np.random.default_rng(0)


def swizzled(chunks: int, row: Lanes, chunk: Lanes) -> Lanes:
    """As csrc/cuda/gather_kv.h."""
    span = np.gcd(chunks, 8)
    return np.asarray(chunk ^ (row // (8 // span) % span))


def matrix_offset(chunks: int, is_a: bool, row: int, chunk: int) -> Lanes:
    """As csrc/cuda/attend_prompt.h: the byte that each lane names."""
    matrix = LANES // 8
    down, right = (matrix % 2, matrix // 2) if is_a else (matrix // 2, matrix % 2)
    inner = 8 * down + LANES % 8
    return np.asarray(((row + inner) * chunks + swizzled(chunks, inner, chunk + right)) * 16)


def make_tile(values: Floats) -> Floats:
    """Rows of a tile in the order of shared memory."""
    rows, width = values.shape
    row, chunk = np.mgrid[:rows, : width // 8]
    out = np.empty((rows, width // 8, 8), np.float32)
    out[row, swizzled(width // 8, row, chunk)] = values.reshape(rows, -1, 8)
    return out.reshape(-1)


def load_matrices(tile: Floats, offsets: Lanes) -> Floats:
    """`ldmatrix.x4`: (lanes, registers, halves)."""
    at = offsets[8 * np.arange(4) + LANES[:, None] // 4] // 2 + LANES[:, None] % 4 * 2
    assert not (offsets % 16).any()
    return np.asarray(tile[at[..., None] + np.arange(2)])


def mma(a: Floats, b: Floats) -> Floats:
    """`mma.m16n8k16`: registers of A (lanes, 4, 2) and of B (lanes, 2, 2) to those of C, (lanes, 4)."""
    whole_a, whole_b = np.empty((16, 16), np.float32), np.empty((16, 8), np.float32)
    for i in range(4):
        for h in range(2):
            whole_a[LANES // 4 + 8 * (i % 2), LANES % 4 * 2 + h + 8 * (i // 2)] = a[:, i, h]
    for i in range(2):
        for h in range(2):
            whole_b[LANES % 4 * 2 + h + 8 * i, LANES // 4] = b[:, i, h]
    whole = whole_a @ whole_b
    return np.stack([whole[LANES // 4 + 8 * (i // 2), LANES % 4 * 2 + i % 2] for i in range(4)], axis=1)


@pytest.mark.parametrize("chunks", [2, 4, 6, 8, 10, 12, 16, 24, 32, 36, 72])
def test_eight_rows_of_a_chunk_are_in_different_banks(chunks: int) -> None:
    row, chunk = np.mgrid[:64, :chunks]
    assert np.array_equal(np.sort(swizzled(chunks, row, chunk)), chunk)
    for is_a in (True, False):
        for first in range(0, 48, 16):
            for at in range(0, chunks, 2):
                banks = matrix_offset(chunks, is_a, first, at) // 16 % 8
                assert np.array_equal(np.sort(banks.reshape(4, 8)), np.tile(np.arange(8), (4, 1)))


@pytest.mark.parametrize(("k_dim", "v_dim", "keys"), [(128, 128, 64), (80, 96, 64), (32, 32, 32), (48, 16, 16)])
def test_fragments(k_dim: int, v_dim: int, keys: int) -> None:
    """One warp, 16 rows: (q K^T) V as `multiply_keys` and `add_values` do it, of small integers."""
    q, k, v = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((16, k_dim), (keys, k_dim), (keys, v_dim)))
    q_tile, k_tile, v_tile = make_tile(q), make_tile(k), make_tile(v.T)
    s = np.zeros((keys // 8, 32, 4), np.float32)
    for d in range(k_dim // 16):
        a = load_matrices(q_tile, matrix_offset(k_dim // 8, True, 0, 2 * d))
        for n in range(0, keys // 8, 2):
            b = load_matrices(k_tile, matrix_offset(k_dim // 8, False, 8 * n, 2 * d))
            s[n] += mma(a, b[:, :2])
            s[n + 1] += mma(a, b[:, 2:])
    o = np.zeros((v_dim // 8, 32, 4), np.float32)
    for n in range(0, keys // 8, 2):
        a = np.stack([s[n + i // 2][:, i % 2 * 2 : i % 2 * 2 + 2] for i in range(4)], axis=1)
        for d in range(0, v_dim // 8, 2):
            b = load_matrices(v_tile, matrix_offset(keys // 8, False, 8 * d, n))
            o[d] += mma(a, b[:, :2])
            o[d + 1] += mma(a, b[:, 2:])
    found = np.empty((16, v_dim), np.float32)
    for d in range(v_dim // 8):
        for i in range(4):
            found[LANES // 4 + 8 * (i // 2), 8 * d + LANES % 4 * 2 + i % 2] = o[d][:, i]
    assert np.array_equal(found, q @ k.T @ v)


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_blocks_fit(dims: tuple[int, int], card: str) -> None:
    shape = prompt_shape(*dims, *CARDS[card])
    assert shape.shared <= CARDS[card][0]
    assert shape.k_dim >= dims[0]
    assert shape.v_dim * shape.parts >= dims[1]
    assert shape.k_dim % 16 == shape.v_dim % 16 == shape.keys % 16 == 0
    assert shape.slots >= 2
    sums = shape.row_tiles * (shape.v_dim + shape.keys) // 2  # registers of a thread
    assert sums <= 192


def test_two_blocks_on_a_multiprocessor() -> None:
    for dims in DIMS[:7]:
        assert 2 * (prompt_shape(*dims, *H200_SHARED).shared + 1024) <= H200_SHARED[1]
    with pytest.raises(ShapeError, match="too large"):
        prompt_shape(4096, 64, *H200_SHARED)


@pytest.mark.parametrize("window", [1, 2, 63, 64, 65, 200])
@pytest.mark.parametrize("new", [1, 5, 64, 65, 300])
def test_there_is_room_for_all_tiles_that_are_seen(window: int, new: int) -> None:
    sees = reach(window, True, 0)
    for length in (new, new + 1, new + 63, new + 64, new + 500):
        first = max(0, length - new - sees.back) // 64
        assert -(-length // 64) - first <= sees.capacity(length, new, 64)
    assert Reach(FAR, FAR).capacity(0, 1, 64) == 1


def test_what_does_not_fit_is_said() -> None:
    pages = LayerPages(0, 0, get("q8_0"), get("f16"), AttentionSpec(2, 64, 32), 0, False)
    q, out = Rows(0, 256, 256), Rows(0, 128, 128)
    assert _heads(pages, q, out, "bf16") == 4
    with pytest.raises(ShapeError, match="rows of 192 values"):
        _heads(pages, q._replace(width=192), out, "f32")
    with pytest.raises(ShapeError, match="4 heads of 32 do not fit"):
        _heads(pages, q, out.columns(0, 120), "f32")
    with pytest.raises(ArgumentError, match="f32, f16 or bf16, not i8"):
        _heads(pages, q, out, "i8")


def test_prompts_that_are_too_long_for_a_grid_are_refused() -> None:
    device: Any = FakeGpu()
    names = "max_shared_memory_per_block_optin", "max_shared_memory_per_multiprocessor"
    limits = dict(zip(names, H200_SHARED, strict=True))
    device.device = SimpleNamespace(properties=SimpleNamespace(multiprocessor_count=132, **limits))
    pages = LayerPages(0, 0, get("f16"), get("f16"), AttentionSpec(1, 64, 64), 0, False)
    q, out, run = Rows(0, 32 * 64, 32 * 64), Rows(0, 32 * 64, 32 * 64), Launcher(device, device.stream)

    def step(tokens: int) -> StepInputs:
        return StepInputs(*(1 << 20,) * 9, (GroupTables(*(1 << 20,) * 3),), tokens, 1, 1, tokens, tokens)

    prompt_attention(run, step(262_140), pages, q, out, scale=1.0)
    assert len(device.launches) == 2
    with pytest.raises(ArgumentError, match="takes 262140 tokens of a prompt at once, not 262141; lower max_batched"):
        prompt_attention(run, step(262_141), pages, q, out, scale=1.0)
