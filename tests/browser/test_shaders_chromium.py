"""Chromium's compiler takes the shaders: those of products in every format, and those of plans."""

from __future__ import annotations

import pytest

from fewbit.browser import AdapterLimits, make_plan
from fewbit.models import open_model
from fewbit.ops.webgpu.wgsl import F16

from ..webgpu.test_shaders import all_kernels
from .conftest import ZOO, OpenPage

pytestmark = [pytest.mark.webgpu, pytest.mark.exhaustive]
COMPILE = """async (shaders) => {
  const adapter = await navigator.gpu.requestAdapter();
  const device = await adapter.requestDevice({ requiredFeatures: ["subgroups"] });
  const refused = {};
  for (const [name, code] of Object.entries(shaders)) {
    device.pushErrorScope("validation");
    const { messages } = await device.createShaderModule({ code }).getCompilationInfo();
    const error = await device.popErrorScope();
    const wrong = messages.filter((one) => one.type === "error").map((one) => `${one.lineNum}: ${one.message}`);
    if (wrong.length || error) refused[name] = wrong[0] ?? error.message;
  }
  device.destroy();
  return refused;
}"""


def test_all_shaders_compile(open_page: OpenPage) -> None:
    shaders = {one.digest: one.portable_source for one in all_kernels() if F16 not in one.enables}
    for name in ("llama", "gemma3", "qwen3", "gemma2", "qwen35moe", "granitehybrid"):
        for subgroups in (False, True):
            plan = make_plan(open_model(ZOO / name / "model.gguf"), AdapterLimits(subgroups=subgroups))
            shaders |= {digest: one["wgsl"] for digest, one in plan["kernels"].items()}
    assert len(shaders) > 600
    page = open_page()
    assert list(page.evaluate(COMPILE, {"wrong": "@compute fn main() { let x: f32 = 1u; }"})) == ["wrong"]
    assert page.evaluate(COMPILE, shaders) == {}
