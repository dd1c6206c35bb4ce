"""Calls of the JavaScript runtime, in Node. Tests that use it are skipped where there is no Node."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from fewbit.server import page

HERE = Path(__file__).parent
WEB = Path(__file__).parents[2] / "web"
BUNDLE = page.FOLDER / "fewbit.js"


def call(*asked: tuple[str, Any]) -> list[Any]:
    """What the runtime gives for each (name, argument); an error of ours is its sentence, any other fails."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no Node")
    with tempfile.TemporaryDirectory() as folder:
        given, answers = Path(folder, "asked.json"), Path(folder, "answers.json")
        given.write_text(json.dumps(asked))
        command = [node, str(HERE / "runtime.mjs"), str(BUNDLE), str(given), str(answers)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        found = json.loads(answers.read_text())
    assert [one for one in found if one.get("error", "").startswith("UNEXPECTED")] == []
    return [one.get("found", one.get("error")) for one in found]
