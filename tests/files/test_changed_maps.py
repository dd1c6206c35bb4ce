"""Files that are truncated or overwritten while they are mapped: their model fails, and the process goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fewbit.errors import FileChanged
from fewbit.files.maps import check_maps, open_map

from ..cli.tiny import write_tiny

TWO_MODELS = """
import os, sys
from fewbit import LLM
from fewbit.errors import FileChanged

first, second, how = sys.argv[1:]
options = {"ctx": 256, "threads": 1, "repack": False}
with LLM(first, **options) as one, LLM(second, **options) as two:
    expected = one.generate("a", max_tokens=4, temperature=0).text
    if how == "truncated":
        os.truncate(first, 4096)
    else:
        with open(first, "r+b") as file:
            file.seek(os.path.getsize(first) // 2)
            file.write(b"other")
    for _ in range(2):
        try:
            one.generate("b", max_tokens=4)
        except FileChanged as error:
            print("changed" if first in str(error) else error)
    print(two.generate("a", max_tokens=4, temperature=0).text == expected)
"""


@pytest.mark.parametrize("how", ["truncated", "overwritten"])
def test_a_model_whose_file_changes_fails_alone(tmp_path: Path, how: str) -> None:
    paths = [str(write_tiny(tmp_path / name)) for name in ("a.gguf", "b.gguf")]
    os.utime(paths[0], (1, 1))  # so that a write changes it
    found = subprocess.run([sys.executable, "-c", TWO_MODELS, *paths, how], check=False, capture_output=True, text=True)
    assert found.stdout.split() == ["changed", "changed", "True"], found.stderr
    assert found.returncode == 0


def test_pages_that_are_gone_read_as_zeros(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    data = open_map(path)
    check_maps([data])
    os.truncate(path, 1)
    assert bytes(data[50_000:50_004]) == bytes(4)
    assert data[99_999] == 0
    with pytest.raises(FileChanged, match="changed while it was in use"):
        check_maps([data])


def test_a_file_that_is_removed_or_replaced_stays_as_it_was(tmp_path: Path) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    for name in (path, other):
        name.write_bytes(b"x" * 10_000)
    data = open_map(path)
    os.replace(other, path)
    check_maps([data])
    path.unlink()
    check_maps([data])
    assert data[9_999:] == b"x"


def test_other_bus_errors_still_end_the_process(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10_000)
    code = (
        "import mmap, os, sys; from pathlib import Path; from fewbit.files.maps import open_map; path = sys.argv[1]\n"
        "kept = open_map(Path(path)); file = open(path, 'r+b'); other = mmap.mmap(file.fileno(), 0)\n"
        "os.truncate(path, 1); print(kept[9000]); other[9000]"
    )
    found = subprocess.run([sys.executable, "-c", code, str(path)], check=False, capture_output=True, text=True)
    assert found.stdout == "0\n"
    assert found.returncode == -7
