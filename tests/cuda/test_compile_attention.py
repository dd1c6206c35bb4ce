"""Kernels of attention over pages compiled without a GPU."""

from __future__ import annotations

import pytest

from fewbit.ops.cuda.kernels import Entry
from fewbit.ops.cuda.kernels_attention import PageShape, attend_mma, attend_plain, copy_pages, write_kv

from .test_compile import ARCHITECTURES, compiled, nvrtc

__all__ = ["nvrtc"]
FORMATS = [("f16", "f16"), ("q8_0", "q8_0"), ("bf16", "q4_0")]


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_kernels_of_attention(arch: str) -> None:
    found: list[Entry] = [copy_pages()]
    for k, v in FORMATS:
        pages = PageShape(k, v, 128, 128)
        assert pages.fits_mma
        found += [write_kv(pages), attend_mma(pages, 1, 4, True), attend_mma(pages, 1, 4, False)]
    odd = PageShape("f32", "q4_0", 80, 96)
    found += [write_kv(odd), attend_plain(odd, True), attend_plain(odd, False)]
    used = compiled(found, arch)
    assert not any(one["spilled"] for name, one in used.items() if not name.startswith("attend_plain"))
    assert max(one["spilled"] for one in used.values()) <= 64  # the slow kernel, which takes any size
