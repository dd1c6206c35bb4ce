"""Every kernel compiled by NVRTC without a GPU, for each architecture; none may spill where it was tuned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fewbit.formats import Format, get
from fewbit.ops.cuda import compile as compiler
from fewbit.ops.cuda import kernels, kernels_sampling
from fewbit.ops.cuda import kernels_products as products
from fewbit.ops.cuda.kernels_prompt import H200_SHARED, attend_prompt, gather_kv, prompt_shape
from fewbit.ops.cuda.layout import tile_layout
from fewbit.ops.cuda.matrices import FLOATS
from fewbit.ops.cuda.pages import FORMATS
from fewbit.ops.cuda.shapes import gemv_shape, invariant_shape, panel_shape, shared_shape, skinny_shape
from fewbit.ops.shape_rules import FUSED_GATES

from . import compiling
from .cases import ALL, QUANTIZED, entries
from .compiling import ARCHITECTURES, TRADED, compile_kernels, spilled

PROMPT_DIMS = [(32, 32), (64, 64), (80, 80), (96, 96), (128, 128), (256, 256), (192, 128), (576, 512)]
PROMPT_SHARED = {
    "sm_80": (166912, 167936),
    "sm_86": (101376, 102400),
    "sm_90": H200_SHARED,
    "sm_100": H200_SHARED,
}  # bytes of a block and of a multiprocessor
PROMPT_SPILLS = 64  # bytes; sums of two row tiles take 192 of 255 registers


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("fmt", ALL, ids=str)
def test_kernels_of_a_format(fmt: Format, arch: str, compiled: Any) -> None:
    found = entries(fmt, 4096, 4096)
    if fmt in QUANTIZED:
        found += [kernels.encode(fmt, dtype) for dtype in FLOATS]
    assert not spilled(compiled(found, arch), traded=TRADED)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_kernels_of_activations(arch: str, compiled: Any) -> None:
    found = [kernels.cast_rows(a, b) for a in FLOATS for b in FLOATS]
    for dtype in FLOATS:
        found += [products.quantize_row(dtype, parts) for parts in (1, 2)]
        found += [products.norm_quantize_row(dtype, rounds, parts) for rounds in (1, 2) for parts in (1, 2)]
    for norm in (False, True):
        found += [products.pack_fragments(dtype, 1, norm) for dtype in FLOATS] + [
            products.pack_fragments("f32", 4, norm)
        ]
        found += [products.form_rows("f32", target, 1, norm) for target in FLOATS]
    found += [products.gate_rows(kind, target) for kind in FUSED_GATES for target in ("f32", "bf16")]
    found += [products.begin_rows(), products.backward_rows()]
    assert not spilled(compiled(found, arch), traded=TRADED)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_kernels_of_fused_products(arch: str, compiled: Any) -> None:
    """The formats of most models, in the shapes of a model of 8 billion weights."""
    q4_k, q6_k = get("q4_k"), get("q6_k")
    found: list[kernels.Entry] = []
    for formats, n, gate in (((q4_k, q6_k), 6144, None), ((q4_k,), 28672, "silu"), ((q6_k,), 28672, "gelu")):
        tiles = tile_layout(formats[0])
        assert tiles
        found.append(products.gemv(formats, 32, gemv_shape(n, 32, tiles, gate is not None), 1, gate))
        found += [products.skinny(formats, skinny_shape(t, n, 32), gate) for t in (8, 16)]
        light = formats == (q4_k,)
        found += [products.skinny_shared(formats, shared_shape(t, n, 32, light), gate) for t in (32, 48, 64)]
        found += [products.skinny(formats, invariant_shape(t, n, 32), gate) for t in (8, 100)]
    assert not spilled(compiled(found, arch), traded=TRADED)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("fmt", [fmt for fmt in ALL if tile_layout(fmt)], ids=str)
def test_panels_of_a_format(fmt: Format, arch: str, compiled: Any) -> None:
    found = panels((fmt,), arch, (40, 128))
    assert not spilled(compiled(found, arch), traded=TRADED)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_panels_of_fused_products(arch: str, compiled: Any) -> None:
    """The formats of most models. The compiler may let each product of warpgroups wait for the one before: not here."""
    q4_k, q6_k = get("q4_k"), get("q6_k")
    found = panels((q4_k, q6_k), arch, (128,), n=6144) + panels((q4_k,), arch, (40, 64, 96, 128), "silu")
    assert not spilled(compiled(found, arch), traded=TRADED)
    if arch == "sm_90":
        assert "serialized" not in compiler.compile_source(kernels.program(tuple(found)), arch, verbose=True)[1]


def panels(
    formats: tuple[Format, ...], arch: str, tokens: tuple[int, ...], gate: str | None = None, n: int = 28672
) -> list[kernels.Entry]:
    return [products.panel(formats, panel_shape(t, n, 32, arch == "sm_90"), gate) for t in tokens]


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dims", PROMPT_DIMS, ids=str)
def test_kernels_of_prompt_attention(dims: tuple[int, int], arch: str, compiled: Any) -> None:
    shape = prompt_shape(*dims, *PROMPT_SHARED.get(arch, PROMPT_SHARED["sm_86"]))
    formats = list(map(get, FORMATS))
    found = [gather_kv(k, v, *dims, shape) for k, v in zip(formats, formats[::-1], strict=True)]
    for one in dict.fromkeys((shape, shape.small)):
        found += [attend_prompt(one, 0, False, "f32"), attend_prompt(one, dims[0] & -dims[0], True, "bf16")]
        found += [attend_prompt(one, 0, False, "f16", has_spans=True)]
    assert not spilled(compiled(found, arch), PROMPT_SPILLS)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_kernels_of_sampling(arch: str, compiled: Any) -> None:
    found = [kernels_sampling.sample_scan(), kernels_sampling.sample_pick()]
    assert not spilled(compiled(found, arch))


@pytest.mark.usefixtures("nvrtc")
def test_what_is_compiled_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWBIT_CACHE", str(tmp_path))
    source = products.quantize_row("f32", 1).source
    code = compiler.cubin(source, "sm_90")
    (kept,) = (tmp_path / "cubins").iterdir()
    assert kept.read_bytes() == code
    monkeypatch.setattr(compiler, "compile_source", None)  # it would be called
    assert compiler.cubin(source, "sm_90") == code


@pytest.mark.usefixtures("nvrtc")
def test_a_report_is_made_once_for_the_same_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWBIT_CUDA_REPORT", str(tmp_path / "report.json"))
    entry, text = products.quantize_row("f32", 1), compiling._text
    first = compile_kernels([entry], "sm_90")
    monkeypatch.setattr(compiling, "_compile", lambda *_: {entry.name: {"registers": 1, "spilled": 0}})
    assert compile_kernels([entry], "sm_90") == first
    monkeypatch.setattr(compiling, "_text", lambda path: text(path) + ("//" if path.name == "device.h" else ""))
    assert compile_kernels([entry], "sm_90") != first
