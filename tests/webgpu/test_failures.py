"""A lost device, missing memory, a missing feature: one sentence each, and the process goes on."""

from __future__ import annotations

from pathlib import Path
from time import sleep
from typing import Any

import pytest

import fewbit as fb
from fewbit import devices
from fewbit.engine.engine import Engine
from fewbit.formats import get
from fewbit.load_options import LoadOptions
from fewbit.ops.webgpu import Gpu, open_gpu
from fewbit.ops.webgpu.products import PLAIN, few_rows
from fewbit.ops.webgpu.wgsl import F16

pytestmark = pytest.mark.webgpu
PATH = Path(__file__).parents[1] / "zoo/llama/model.gguf"
OPTIONS: dict[str, Any] = {"device": "webgpu", "ctx": 128, "cache_bytes": 1 << 20, "max_batched_tokens": 32}
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 8}


@pytest.mark.parametrize("flagged", [False, True], ids=["by the driver", "by us"])
def test_a_device_that_is_lost_while_a_model_writes(flagged: bool, gpu: Gpu) -> None:
    with fb.LLM(PATH, **OPTIONS) as llm, fb.LLM(PATH, ctx=128, threads=1) as other:
        expected = llm.generate([5, 6, 7], **GREEDY).tokens
        stream = llm.stream([5, 6, 7], temperature=0.0, max_tokens=60)
        for _ in range(3):
            next(stream)
        if flagged:
            open_gpu().lose()
        else:
            open_gpu()._device.destroy()  # nobody tells fewbit
        with pytest.raises(fb.DeviceError, match=r"was lost: load the model again$") as found:
            list(stream)
        assert "\n" not in str(found.value)
        with pytest.raises(fb.DeviceError, match="was lost"):
            llm.generate([5, 6, 7], max_tokens=2)
        assert len(other.generate([5, 6, 7], max_tokens=2, temperature=0.0).tokens) == 2
    with fb.LLM(PATH, **OPTIONS) as again:
        assert again.generate([5, 6, 7], **GREEDY).tokens == expected


@pytest.mark.parametrize("seconds", [0.0, 0.5], ids=["at once", "late"])
@pytest.mark.parametrize("allowed", [0, 3, 20])
def test_memory_that_runs_out_while_a_model_is_loaded(
    allowed: int, seconds: float, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its thread ends at once or later, the next model finds what it held."""
    left, create = [allowed], gpu._device.create_buffer

    def load_and_write() -> None:
        fb.LLM(PATH, **OPTIONS).generate([5, 6, 7], **GREEDY)

    def create_buffer(**given: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("Not enough memory left.")
        return create(**given)

    def fail(*given: Any) -> None:
        end(*given)
        sleep(seconds)

    end, device = Engine.fail, devices.get("webgpu", LoadOptions(device="webgpu"))
    device.memory_bytes(0, "")
    before = gpu.allocated_bytes
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "fail", fail)
        patch.setattr(gpu._device, "create_buffer", create_buffer)
        with pytest.raises(fb.OutOfMemory, match=r"no memory .* take a smaller cache_bytes") as found:
            load_and_write()
    assert "\n" not in str(found.value)
    del found
    assert device.memory_bytes(0, "") > 0
    assert gpu.allocated_bytes <= before
    with fb.LLM(PATH, **OPTIONS) as llm:
        assert len(llm.generate([5, 6, 7], **GREEDY).tokens) == 8


def test_a_kernel_that_needs_what_the_adapter_lacks(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "extensions", gpu.extensions - {F16})
    monkeypatch.setattr(gpu, "_pipelines", {})
    kernel = few_rows(get("q4_0"), 1, PLAIN, False, f16=True)
    with pytest.raises(fb.DeviceError, match=f"^{gpu.info.name.replace('(', '.').replace(')', '.')} lacks f16, which"):
        gpu.pipeline(kernel)


def test_activations_that_the_adapter_lacks(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "has_f16", False)
    with pytest.raises(fb.DeviceError, match=r"has no f16 arithmetic \(shader-f16\); leave activations out"):
        fb.LLM(PATH, **OPTIONS, activations="f16")
