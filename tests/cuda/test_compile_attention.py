"""Kernels of attention over pages compiled without a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from fewbit.formats import get
from fewbit.ops.cuda.kernels import Entry
from fewbit.ops.cuda.kernels_attention import PageShape, attend_mma, attend_plain, copy_pages, write_kv

from .compiling import ARCHITECTURES, spilled

FORMATS = [("f16", "f16"), ("q8_0", "q8_0"), ("bf16", "q4_0"), ("f8_e4m3", "f8_e4m3")]


def shape(k: str, v: str, k_dim: int, v_dim: int) -> PageShape:
    return PageShape(get(k), get(v), k_dim, v_dim)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_kernels_of_attention(arch: str, compiled: Any) -> None:
    found: list[Entry] = [copy_pages()]
    for k, v in FORMATS:
        pages = shape(k, v, 128, 128)
        assert pages.fits_mma
        found += [write_kv(pages), attend_mma(pages, 1, 4, True), attend_mma(pages, 1, 4, False)]
    found += [attend_mma(shape("q8_0", "q8_0", 128, 128), 2, 8, True)]
    found += [attend_mma(shape("f16", "f16", 256, 256), 1, 8, True)]
    odd, wide = shape("f32", "q4_0", 80, 96), shape("f16", "q8_0", 576, 512)
    found += [write_kv(odd), *(attend_plain(pages, fused) for pages in (odd, wide) for fused in (True, False))]
    used = compiled(found, arch)
    plain = {name: one for name, one in used.items() if name.startswith("attend_plain")}
    assert not spilled({name: one for name, one in used.items() if name not in plain})
    assert not spilled(plain, 64)  # the slow kernel, which takes any size
