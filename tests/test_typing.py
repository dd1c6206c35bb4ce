"""A user's script passes mypy --strict, and runs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from . import user_script
from .cli.tiny import write_tiny

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tests" / "user_script.py"
BERT = ROOT / "tests" / "zoo" / "bert" / "model.gguf"
WRONG = """
import fewbit as fb

llm = fb.LLM()
llm.generate("a").strip()
llm.generate(["a", "b"]).text
llm.generate("a", max_token=3)
llm.stream("a", n=2)
llm.chat([[{"role": "user", "content": "hi"}]], stream=True)
"""


def test_the_script_is_typed_and_mistakes_are_found(tmp_path: Path) -> None:
    """By the settings of the project, which are strict."""
    path = tmp_path / "wrong.py"
    path.write_text(WRONG)
    command = [sys.executable, "-m", "mypy", str(SCRIPT), str(path)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert [line for line in errors if "wrong.py" not in line] == [], done.stdout + done.stderr
    assert {line.split(":")[1] for line in errors} == {str(line) for line in range(5, 10)}


def test_the_script_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    user_script.main(write_tiny(tmp_path / "model.gguf"), BERT, tmp_path)
    assert "max_tokens must be at least 0, got -1" in capsys.readouterr().out


def test_the_script_calls_what_users_call() -> None:
    calls = [node.func for node in ast.walk(ast.parse(SCRIPT.read_text())) if isinstance(node, ast.Call)]
    owners = ("fb", "llm", "cache", "tokenizer", "template", "w")
    named = [
        f for f in calls if isinstance(f, ast.Attribute) and isinstance(f.value, ast.Name) and f.value.id in owners
    ]
    assert len(named) >= 40
