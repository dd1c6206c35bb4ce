"""What needs neither a GPU nor its packages: sizes of tiles, arrays of others, and what is said without them."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest

from fewbit.errors import DtypeError, ExtraError, LayoutError
from fewbit.formats import Format, get
from fewbit.ops.cuda import compile as compiler
from fewbit.ops.cuda import dlpack
from fewbit.ops.cuda.layout import TileLayout, tile_layout

from .cases import ALL


@pytest.mark.parametrize("fmt", ALL, ids=str)
def test_tiles_take_little_more_than_the_file(fmt: Format) -> None:
    tiles = tile_layout(fmt)
    if tiles is None:
        return
    bits = 8 * sum(tiles.sizes(4096, 4096)) / 4096**2
    assert bits <= fmt.bits_per_weight + 0.5


def test_formats_that_stay_as_in_files() -> None:
    kept = {fmt.name for fmt in ALL if tile_layout(fmt) is None and not fmt.is_scalar}
    assert kept == {
        "tq1_0", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "int4:block=6", "int4:block=16",
        "int4:block=96",
    }  # fmt: skip
    assert tile_layout(get("int8")) == TileLayout(32, 0, 0, 4, 0)


class Host:
    """An array in host memory that offers DLPack and nothing else."""

    def __init__(self, values: Any) -> None:
        self.view = dlpack.read(values, 0, "x", int)

    def __dlpack__(self, **_others: Any) -> Any:
        return dlpack.write(self.view)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU, 0


def test_arrays_come_in_and_go_out_through_dlpack() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    back = np.from_dlpack(Host(values))
    assert np.array_equal(back, values)
    assert np.shares_memory(back, values)
    capsule = Host(values).__dlpack__()  # nobody takes it
    del capsule, back
    gc.collect()
    assert not dlpack._given


def test_arrays_that_cannot_be_read() -> None:
    with pytest.raises(LayoutError, match="contiguous"):
        dlpack.read(np.zeros((4, 4), np.float32)[:, :2], 0, "x", int)
    with pytest.raises(DtypeError, match="DLPack type"):
        dlpack.read(np.zeros(4), 0, "x", int)
    assert dlpack.read([1.0], 0, "x", int) is None


def test_a_package_that_is_missing_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(ExtraError, match=r"install it: pip install 'fewbit\[cuda\]'"):
        compiler.package("cuda.core")
