"""Shell completion: the script, where it goes, and what Tab offers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fewbit.cli import main


def offered(line: str, tmp_path: Path) -> set[str]:
    """What the command tells bash for a line."""
    env = {"_FEWBIT_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    env |= {"FEWBIT_CACHE": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-m", "fewbit"], env={**os.environ, **env}, capture_output=True, text=True, check=True
    )
    return set(result.stdout.splitlines())


def test_tab_offers_commands_options_models_and_files(tmp_path: Path) -> None:
    assert {"plain,run", "plain,rm"} <= offered("fewbit r", tmp_path)
    assert "plain,--max-tokens" in offered("fewbit run --max", tmp_path)
    found = offered("fewbit run qwen3:", tmp_path)
    assert {"plain,qwen3:4b", "plain,qwen3:8b", "file,qwen3:"} <= found
    assert "plain,smollm2" in offered("fewbit rm smol", tmp_path)


@pytest.mark.parametrize(
    ("shell", "place"),
    [
        ("bash", ".local/share/bash-completion/completions/fewbit"),
        ("zsh", ".local/share/zsh/site-functions/_fewbit"),
        ("fish", ".config/fish/completions/fewbit.fish"),
    ],
)
def test_install(shell: str, place: str, tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "SHELL": f"/bin/{shell}", "XDG_DATA_HOME": None, "XDG_CONFIG_HOME": None}
    result = CliRunner().invoke(main, ["completion", "install"], env=env)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"wrote {tmp_path / place}\n")
    script = (tmp_path / place).read_text()
    assert f"_FEWBIT_COMPLETE={shell}_complete" in script
    assert CliRunner().invoke(main, ["completion", "show", shell]).stdout == script
    if program := shutil.which(shell):
        subprocess.run([program, "-n", str(tmp_path / place)], check=True)


def test_an_unknown_shell_is_named() -> None:
    result = CliRunner().invoke(main, ["completion", "install"], env={"SHELL": "/bin/tcsh"})
    assert result.exit_code == 2
    assert "$SHELL is tcsh; name one of bash, zsh, fish" in result.stderr
