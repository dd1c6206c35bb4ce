"""KV pages of a GPU, in the memory of a device that is made of NumPy arrays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fewbit.cache.layout import make_layout
from fewbit.cache.store import HostStore
from fewbit.errors import ArgumentError, FormatError, OutOfMemory, PositionError
from fewbit.formats import get
from fewbit.formats.encode import encode
from fewbit.ops.cuda import pages as cuda_pages
from fewbit.ops.cuda.pages import DeviceStore
from fewbit.ops.specs import AttentionSpec, RecurrentSpec

rng = np.random.default_rng(0)
SPECS = [AttentionSpec(2, 96, 64), RecurrentSpec(100), None, AttentionSpec(1, 32, 160, window=40), RecurrentSpec(64)]


class HostGpu:
    """Memory of a GPU whose pointers are places in one array."""

    def __init__(self, nbytes: int = 1 << 22) -> None:
        self.memory = np.full(nbytes, 0xFF, np.uint8)
        self.used = 16

    def free_bytes(self) -> int:
        return len(self.memory) - self.used

    def allocate(self, nbytes: int) -> SimpleNamespace:
        at, self.used = self.used, self.used + -(-nbytes // 256) * 256
        return SimpleNamespace(handle=at, size=nbytes)

    def fill(self, pointer: int, byte: int, nbytes: int) -> None:
        self.memory[pointer : pointer + nbytes] = byte

    def upload(self, data: Any, pointer: int) -> None:
        self.memory[pointer : pointer + data.nbytes] = np.ascontiguousarray(data).reshape(-1).view(np.uint8)

    def download(self, pointer: int, out: Any) -> Any:
        out[...] = self.memory[pointer : pointer + out.nbytes].view(out.dtype)
        return out

    def launch(self, entry: Any, grid: tuple[int, ...], threads: int, table: int, *numbers: Any) -> None:
        """What `copy_pages` does, in any order: here from the last pair to the first."""
        assert entry.name == "copy_pages"
        assert grid[0] * threads > 0
        arrays = self.memory[table : table + 16 * grid[1]].view(np.uint64).reshape(-1, 2).astype(int)
        for i in reversed(range(grid[2])):
            source, destination = int(numbers[i]), int(numbers[i + 8])
            for pointer, size in arrays:
                first, second = pointer + source * size, pointer + destination * size
                self.memory[second : second + size] = self.memory[first : first + size]


def make(k: str = "q8_0", v: str | None = None, pages: tuple[int, ...] = (5, 4, 6)) -> tuple[DeviceStore, HostStore]:
    layout = make_layout(SPECS, k, v)
    gpu: Any = HostGpu()
    return DeviceStore(gpu, layout, pages), HostStore(layout, pages)


def random_parts(store: Any, layer: int, count: int) -> list[np.ndarray]:
    """Rows of K and V, or a state."""
    spec = store.layout.specs[layer]
    if isinstance(spec, RecurrentSpec):
        return [rng.integers(0, 256, spec.nbytes, np.uint8)]
    kinds = (store.layout.k, spec.k_dim), (store.layout.v, spec.v_dim)
    return [
        encode(fmt, rng.standard_normal((count * spec.kv_heads, dim), np.float32)).reshape(count, spec.kv_heads, -1)
        for fmt, dim in kinds
    ]


@pytest.mark.parametrize(
    ("k", "v"), [("f32", "f16"), ("bf16", "q8_0"), ("q8_0", "q4_0"), ("q4_0", "f32"), ("f8_e4m3", "f8_e4m3")]
)
@pytest.mark.parametrize(("first", "count"), [(0, 32), (0, 7), (11, 21)])
def test_what_is_written_is_read(k: str, v: str, first: int, count: int) -> None:
    store, host = make(k, v)
    assert store.nbytes == host.nbytes + 6 * 12  # slots are padded to 16 bytes
    for layer in (0, 1, 3, 4):
        parts = random_parts(store, layer, count)
        for one in (store, host):
            one.write(layer, 3, parts, first)
        for found, expected in zip(store.read(layer, 3, 32), host.read(layer, 3, 32), strict=True):
            assert np.array_equal(found, expected)
        assert not any(part.any() for page in (0, 1, 2) for part in store.read(layer, page, 32))


@pytest.mark.parametrize("dim", [32, 96])
def test_places_are_those_of_the_header(dim: int) -> None:
    """The formulas of kv_pages.h, by hand."""
    token, at = 5, dim - 9  # of a dim in the upper half of its block
    rows = encode(get("q4_0"), rng.standard_normal((32, dim), np.float32)).reshape(1, 32, -1)
    k, v = (cuda_pages.to_pages(get("q4_0"), rows, is_value)[0] for is_value in (False, True))
    code, block, blocks = at // 32 * 16 + at % 16, at // 32, dim // 32
    own = rows[0, token].reshape(blocks, 18)[block]
    assert k[token * dim // 2 + code] == v[code * 32 + token] == own[2 + at % 16]
    codes = 32 * dim // 2
    for start, page in ((codes + 2 * (token * blocks + block), k), (codes + 2 * (block * 32 + token), v)):
        assert np.array_equal(page[start : start + 2], own[:2])
    halves = rng.integers(0, 256, (1, 32, 2 * dim), np.uint8)
    page = cuda_pages.to_pages(get("f16"), halves, True)[0]
    assert np.array_equal(page[2 * (at * 32 + token) :][:2], halves[0, token, 2 * at : 2 * at + 2])


def test_copies_are_as_if_one_after_the_other() -> None:
    store, host = make()
    for page in range(5):
        for layer, pages in ((0, 5), (1, 6), (3, 4), (4, 6)):
            if page < pages:
                parts = random_parts(store, layer, 32)
                store.write(layer, page, parts)
                host.write(layer, page, parts)
    pairs = [(0, 1), (1, 2), (3, 0), (2, 3), (0, 2), (0, 1)] * 3
    for group in range(3):
        store.copy(group, pairs)
        host.copy(group, pairs)
    for layer, pages in ((0, 5), (1, 6), (3, 4), (4, 6)):
        for page in range(pages):
            for found, expected in zip(store.read(layer, page, 32), host.read(layer, page, 32), strict=True):
                assert np.array_equal(found, expected)


def test_formats_of_pages_are_those_of_the_records_that_fit() -> None:
    assert set(cuda_pages.FORMATS) == {"f32", "f16", "bf16", "f8_e4m3", "q4_0", "q8_0"}


def test_many_copies_are_few_launches() -> None:
    pairs = [(i, 100 + i) for i in range(20)]
    assert [len(batch) for batch in cuda_pages.independent(pairs, 8)] == [8, 8, 4]


def test_what_does_not_fit_is_one_sentence() -> None:
    gpu: Any = HostGpu(1 << 12)
    with pytest.raises(OutOfMemory, match="does not fit; the GPU has"):
        DeviceStore(gpu, make_layout(SPECS, "f16"), (50, 50, 5))
    with pytest.raises(FormatError, match=r"v cannot be q5_0; a KV cache there takes: .*f16.*, q4_0, q8_0$"):
        DeviceStore(gpu, make_layout(SPECS, "f16", "q5_0"), (1, 1, 1))
    with pytest.raises(ArgumentError, match="32 tokens, not 64"):
        DeviceStore(gpu, make_layout(SPECS, "f16", page_tokens=64), (1, 1, 1))
    store, _ = make()
    with pytest.raises(PositionError, match="layer 1 keeps no K and V"):
        store.kv(1)
    with pytest.raises(PositionError, match="layer 2 keeps no state"):
        store.states(2)
    assert store.states(1).slot_bytes == 112
    assert store.kv(3).group == 1
