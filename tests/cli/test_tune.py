"""`fewbit tune`: an adapter from a file of examples, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fewbit.cli import main

from .tiny import write_tiny

pytest.importorskip("torch", reason="training needs torch")


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"text": chr(65 + i % 5) * 8}) + "\n" for i in range(12)))
    return write_tiny(tmp_path / "model.gguf", hidden=32, feed_forward=64), data


def test_an_adapter_is_written(paths: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = paths
    args = ["tune", str(model), str(data), "-o", str(tmp_path / "out"), "--epochs", "1", "--rank", "2", "-t", "1"]
    done = CliRunner().invoke(main, [*args, "--json"])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["steps"] == 2
    assert facts["held_out_after"] > 0
    assert (tmp_path / "out" / "adapter_model.safetensors").exists()
    again = CliRunner().invoke(main, args)
    assert again.exit_code == 1
    assert "has an adapter already" in again.stderr
    forced = CliRunner().invoke(main, [*args, "--force", "--modules", "q_proj"])
    assert forced.exit_code == 0
    assert "held-out loss" in forced.stdout


def test_wrong_usage(paths: tuple[Path, Path], tmp_path: Path) -> None:
    model, data = paths
    missing = CliRunner().invoke(main, ["tune", str(model), str(tmp_path / "no.jsonl"), "-o", "out"])
    assert missing.exit_code == 2
    wrong = CliRunner().invoke(main, ["tune", str(model), str(data), "-o", str(tmp_path / "o"), "--modules", "x"])
    assert wrong.exit_code == 1
    assert "there are no modules x" in wrong.stderr
