"""Hostile images: each gets a clear error or the right picture, in bounded memory. Those of servers are in
tests/server/test_hostile_images.py."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fewbit as fb
from fewbit.images import decoding, open_picture

from .hostile import FILES, noise, saved
from .table import outcome, written

MAX_BYTES = 500_000_000  # above what the process had before

PROGRAM = """
import sys
import fewbit as fb
from fewbit.images import open_picture

def kib(name):
    return int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1])

open_picture(sys.argv[1])
idle = kib("VmRSS")
for path in sys.argv[2:]:
    try:
        open_picture(path)
    except fb.ImageError:
        pass
    print(path, kib("VmHWM") - idle)  # the largest so far
"""


def test_there_are_sixty() -> None:
    assert len(FILES) >= 60


@pytest.mark.filterwarnings("ignore:Corrupt EXIF", "ignore:Tag data larger")
@pytest.mark.parametrize("name", FILES)
def test_an_error_or_the_picture(name: str) -> None:
    make, expected = FILES[name]
    data = make()
    if isinstance(expected, str):
        with pytest.raises(fb.ImageError) as raised:
            open_picture(data)
        assert re.search(expected, str(raised.value)), raised.value
        assert "\n" not in str(raised.value)
        assert len(str(raised.value)) < 200
    else:
        picture = open_picture(data)
        assert picture.image.size == expected
        assert picture.image.mode == "RGB"
        assert np.asarray(picture.image.crop((0, 0, 2, 2))).dtype == np.uint8
    assert f"| `{name}` | {outcome(data)} |\n" in written(), "python -m tests.images.table"


def test_the_table_has_all_of_them() -> None:
    assert [row.split("`")[1] for row in written()] == [*FILES]


def test_a_file_is_read_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(noise())
    monkeypatch.setattr(decoding, "MAX_READS", 5)
    with pytest.raises(fb.ImageError, match="more than 5 reads"):
        open_picture(data)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_bounded(tmp_path: Path) -> None:
    for name, (make, _) in FILES.items():
        (tmp_path / name).write_bytes(make())
    paths = [tmp_path / name for name in ("png_1_x_1", *FILES)]
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, paths)], capture_output=True, text=True, check=True
    )
    peaks = {Path(path).name: int(peak) * 1024 for path, peak in map(str.split, found.stdout.splitlines())}
    assert peaks.keys() == FILES.keys()
    assert max(peaks.values()) < MAX_BYTES, peaks
