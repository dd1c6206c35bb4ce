"""All shaders through a second compiler: Dawn, the WebGPU of Chromium, which is stricter."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest

from fewbit.formats import get
from fewbit.ops import webgpu
from fewbit.ops.webgpu import (
    attention,
    byte_products,
    expert_tiles,
    experts,
    page_writers,
    products,
    recurrent,
    rows,
    sampling,
)
from fewbit.ops.webgpu.byte_products import few_bytes, pack_bytes
from fewbit.ops.webgpu.decoders import decoder, device_format
from fewbit.ops.webgpu.products import PLAIN, Epilogue, decode_rows, few_rows, many_rows, table_rows
from fewbit.ops.webgpu.wgsl import Kernel

from ..samples import ALL

quantize = import_module("fewbit.ops.webgpu.quantize")  # the package's attribute is its function

COMPILER = Path(__file__).with_name("dawn.mjs")
AT_ONCE = 500  # shaders; Dawn 0.6.2 aborts after some 950 in a process


def refused(shaders: dict[str, str], folder: Path) -> dict[str, Any]:
    """What Dawn says of shaders that it does not compile, by name."""
    where = os.environ.get("FEWBIT_DAWN")
    if not where or not shutil.which("node"):
        pytest.skip("FEWBIT_DAWN names no folder with the npm package webgpu, or there is no node")
    out: dict[str, Any] = {}
    names = list(shaders)
    for first in range(0, len(names), AT_ONCE):
        batch = {name: shaders[name] for name in names[first : first + AT_ONCE]}
        (folder / "shaders.json").write_text(json.dumps(batch))
        command = ["node", str(COMPILER), str(folder / "shaders.json"), where]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        assert found["features"] == ["shader-f16", "subgroups"]
        out |= found["refused"]
    return out


def product_kernels() -> list[Kernel]:
    out: list[Kernel] = []
    for fmt in map(device_format, ALL):
        out += [decode_rows(fmt), table_rows(fmt)]
        for subgroups in (False, True):
            out += [few_rows(fmt, tokens, PLAIN, subgroups, f16) for tokens in (1, 8) for f16 in (False, True)]
            out.append(few_rows(fmt, 2, Epilogue(gated=True, residual="other"), subgroups))
        out += [many_rows(fmt, Epilogue(True), f16) for f16 in (False, True)]
        out.append(many_rows(fmt, Epilogue(False, True, "own")))
        if decoder(fmt).has_packed:
            out += [few_bytes(fmt, tokens, PLAIN, tokens == 1) for tokens in (1, 8)]
    return [*out, pack_bytes()]


def other_kernels() -> dict[Callable[..., Kernel], list[tuple[Any, ...]]]:
    """The arguments of every other function that makes a kernel."""
    flags, pages = (False, True), [get(name) for name in page_writers.FORMATS]
    weights = [device_format(fmt) for fmt in ALL]
    packed = [get(name) for name in ("int8", "int8_affine", "int4", "int4_group:group=32,zero=true", "int4_group")]
    sides = [(k, v) for k in pages for v in pages]
    return {
        attention.attend: [
            *((k, v, 64, 40, False) for k, v in sides),
            *((k, k, 80, 128, True, splits, True) for k in pages for splits in (1, attention.SPLITS)),
        ],
        attention.join_splits: [(40, attention.SPLITS)],
        page_writers.write_pages: [(k, v, 80, 40) for k, v in sides],
        experts.route: [(bias, scale) for bias in flags for scale in flags],
        experts.expert_rows: [(fmt, bias, first) for fmt in weights for bias in flags for first in flags],
        expert_tiles.group_tokens: [()],
        expert_tiles.expert_tiles: [
            *((fmt, False, True) for fmt in weights),
            *((get("q4_k"), bias, first, subgroups) for bias in flags for first in flags for subgroups in flags),
        ],
        experts.activate_rows: [(gated,) for gated in flags],
        experts.combine: [()],
        experts.linear_heads: [(fmt,) for fmt in weights],
        quantize.find_ranges: [(f16,) for f16 in flags],
        quantize.pack_codes: [(fmt, f16) for fmt in packed for f16 in flags],
        quantize.pack_factors: [(fmt, f16) for fmt in packed for f16 in flags],
        recurrent.conv: [(bias,) for bias in flags],
        recurrent.delta_rule: [()],
        recurrent.scan: [()],
        rows.norm: [(mean, bias) for mean in flags for bias in flags],
        rows.rope: [(place,) for place in flags],
        rows.hadamard: [(64,), (96,)],
        sampling.sample: [()],
        **{
            make: [()]
            for make in (rows.add, rows.gate, rows.activate, rows.scale, rows.softcap, rows.clamp, rows.shift,
                         rows.columns, rows.join, rows.gather)
        },
    }  # fmt: skip


def all_kernels() -> list[Kernel]:
    return product_kernels() + [make(*given) for make, cases in other_kernels().items() for given in cases]


def test_no_kernel_is_left_out() -> None:
    modules = [import_module(f"{webgpu.__name__}.{info.name}") for info in iter_modules(webgpu.__path__)]
    made = {
        f"{module.__name__}.{name}" for module in modules for name, one in vars(module).items()
        if not name.startswith("_") and getattr(one, "__annotations__", {}).get("return") == "Kernel"
        and one.__module__ == module.__name__
    }  # fmt: skip
    known = {*other_kernels(), byte_products.few_bytes, byte_products.pack_bytes, products.few_rows, products.many_rows,
             products.decode_rows, products.table_rows}  # fmt: skip
    assert made == {f"{make.__module__}.{make.__name__}" for make in known}


def test_a_wrong_shader_is_refused(tmp_path: Path) -> None:
    wrong = "@compute @workgroup_size(1) fn main() { let x: f32 = 1u; }"
    assert list(refused({"wrong": wrong, "right": wrong.replace("1u", "1.0")}, tmp_path)) == ["wrong"]


def test_every_kernel(tmp_path: Path) -> None:
    shaders = {f"{kernel.name} {kernel.digest}": kernel.portable_source for kernel in all_kernels()}
    assert len(shaders) > 700
    assert refused(shaders, tmp_path) == {}
