"""`fewbit pull`: where models are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fewbit.cli import main
from fewbit.files.hub import builtin


def pull(*args: str, **env: str) -> Result:
    return CliRunner().invoke(main, ["pull", *args], env={"FEWBIT_OFFLINE": "1", **env})


def test_a_file_that_is_here(tiny: str) -> None:
    assert pull(tiny).stdout == f"{tiny}\n"
    facts = json.loads(pull(tiny, "--json").stdout)
    assert facts == {"model": tiny, "path": tiny, "bytes": Path(tiny).stat().st_size}


def test_what_cannot_be_fetched_is_one_line_and_status_1(tmp_path: Path) -> None:
    result = pull("smollm2", FEWBIT_CACHE=str(tmp_path))
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "not in the cache" in result.stderr


def test_list(tmp_path: Path) -> None:
    empty = json.loads(pull("--list", "--json", FEWBIT_CACHE=str(tmp_path / "none")).stdout)
    assert [row["name"] for row in empty] == list(builtin())
    assert all(row["path"] is None for row in empty)
    other = tmp_path / "a" / "b.gguf"
    other.parent.mkdir()
    other.write_bytes(b"GGUF")
    found = json.loads(pull("--list", "--json", FEWBIT_CACHE=str(tmp_path)).stdout)
    assert found[-1] == {"name": None, "about": None, "license": None, "bytes": 4, "path": str(other)}
    lines = pull("--list", FEWBIT_CACHE=str(tmp_path)).stdout.splitlines()
    assert lines[0].split() == ["name", "about", "license", "size", "path"]
    assert lines[-1].split() == ["-", "-", "-", "4", "bytes", str(other)]
    assert any("not here yet" in line for line in lines)


@pytest.mark.parametrize("args", [[], ["smollm2", "--list"], ["a", "b"]])
def test_wrong_usage_is_status_2(args: list[str]) -> None:
    assert pull(*args).exit_code == 2
