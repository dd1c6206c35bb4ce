"""The examples of docs/webgpu.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fewbit.ops.webgpu import Gpu

from ..cli.tiny import TEMPLATE, write_tiny

PAGE = Path(__file__).parents[2] / "docs/webgpu.md"

pytestmark = pytest.mark.webgpu


def test_examples_run(gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path / "model.gguf", TEMPLATE)
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        exec(compile(block, PAGE.name, "exec"), names)
