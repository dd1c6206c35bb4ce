"""What `make test` runs of GPU kernels where there is no GPU: a few of them, in the emulator. It wants a C++ compiler.

`make test-cuda-emulated` runs all tests of kernels there.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewbit.formats import get
from fewbit.ops import cuda
from fewbit.ops.cuda import device

from ..cli.tiny import write_tiny
from .cases import int8_values, make, relative_error
from .emulator.device import EmulatedGpu

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "gpu.md", DOCS / "cookbook/gpu.md"]
ALL = bool(os.environ.get("FEWBIT_EMULATE_CUDA"))
pytestmark = pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="there is no C++ compiler")


@pytest.fixture(autouse=True)
def gpu() -> Iterator[cuda.Session]:
    """An emulated one, for a test at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "_opened", cache(EmulatedGpu))
        yield cuda.shared_session()


def test_products(gpu: cuda.Session) -> None:
    """One token by dot products of bytes, three by matrix products, weights in tiles."""
    assert gpu.arch == "emulated"
    w, values = make(get("q4_k"), 21, 512)
    sent, x = cuda.to_device(w), np.random.default_rng(0).standard_normal((3, 512), np.float32)
    assert np.array_equal(sent.dequantize().numpy(), values.astype(np.float32))
    assert relative_error(cuda.linear(x[0], sent).numpy(), values @ int8_values(x[0])) < 1e-5
    assert relative_error(cuda.linear(x, sent).numpy(), x.astype(np.float64) @ values.T) < 3e-3


@pytest.mark.parametrize("name", ["q4_k", "tq2_0"])  # in tiles, and as in files
def test_gradients(gpu: cuda.Session, name: str) -> None:
    w, values = make(get(name), 21, 512)
    grad = np.random.default_rng(0).standard_normal((3, 21), np.float32)
    assert relative_error(cuda.to_device(w).linear_backward(grad).numpy(), grad.astype(np.float64) @ values) < 1e-6


def test_memory_past_the_end_is_not_there(gpu: cuda.Session) -> None:
    """What the emulator promises: arrays end before a page that cannot be touched, less than 256 bytes away."""
    buffer = gpu.allocate(1000)
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    ends = {int(line[0].split("-")[0], 16) for line in lines if line[1].startswith("---")}
    assert any(0 <= end - buffer.handle - 1000 < 256 for end in ends)


def blocks(page: Path, about_models: bool) -> list[str]:
    """The page's Python, that with models or the other."""
    found = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [block for block in found if ("LLM" in block) is about_models]


def run(found: list[str]) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec("import fewbit as fb", names)
    for block in found:
        exec(compile(block, "an example", "exec"), names)
    return names


def test_the_examples_of_the_page_run() -> None:
    names = run(blocks(PAGES[0], False))
    weights, y = names["weights"], names["y"]
    assert isinstance(y, cuda.DeviceArray)
    assert relative_error(y.numpy(), weights[:3].astype(np.float64) @ weights.T) < 0.1
    assert names["packed"].shape == (64, 256)


def test_the_recipe_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run(blocks(PAGES[1], False))
    assert capsys.readouterr().out == "(3, 64)\n"


@pytest.mark.skipif(not ALL, reason="kernels of a whole model take a minute to compile; FEWBIT_EMULATE_CUDA=1 runs it")
def test_the_example_of_a_model_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path / "model.gguf")
    for page in PAGES:
        run(blocks(page, True))
    assert capsys.readouterr().out.strip()
