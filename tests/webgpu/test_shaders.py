"""All shaders through a second compiler: Dawn, the WebGPU of Chromium, which is stricter."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fewbit.ops.webgpu.decoders import device_format
from fewbit.ops.webgpu.products import PLAIN, Epilogue, decode_rows, few_rows, many_rows, table_rows
from fewbit.ops.webgpu.wgsl import Kernel

from ..samples import ALL

COMPILER = Path(__file__).with_name("dawn.mjs")


def refused(shaders: dict[str, str], folder: Path) -> dict[str, Any]:
    """What Dawn says of shaders that it does not compile, by name."""
    where = os.environ.get("FEWBIT_DAWN")
    if not where or not shutil.which("node"):
        pytest.skip("FEWBIT_DAWN names no folder with the npm package webgpu, or there is no node")
    (folder / "shaders.json").write_text(json.dumps(shaders))
    command = ["node", str(COMPILER), str(folder / "shaders.json"), where]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["features"] == ["shader-f16", "subgroups"]
    return dict(found["refused"])


def product_kernels() -> list[Kernel]:
    out: list[Kernel] = []
    for fmt in map(device_format, ALL):
        out += [decode_rows(fmt), table_rows(fmt)]
        for subgroups in (False, True):
            out += [few_rows(fmt, tokens, PLAIN, subgroups, f16) for tokens in (1, 8) for f16 in (False, True)]
            out.append(few_rows(fmt, 2, Epilogue(gated=True, residual="other"), subgroups))
        out += [many_rows(fmt, Epilogue(True), f16) for f16 in (False, True)]
        out.append(many_rows(fmt, Epilogue(False, True, "own")))
    return out


def test_a_wrong_shader_is_refused(tmp_path: Path) -> None:
    wrong = "@compute @workgroup_size(1) fn main() { let x: f32 = 1u; }"
    assert list(refused({"wrong": wrong, "right": wrong.replace("1u", "1.0")}, tmp_path)) == ["wrong"]


def test_products(tmp_path: Path) -> None:
    shaders = {f"{kernel.name} {kernel.digest}": kernel.portable_source for kernel in product_kernels()}
    assert len(shaders) > 300
    assert refused(shaders, tmp_path) == {}
