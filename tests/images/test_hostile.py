"""Hostile images: each gets a clear error or the right picture, in bounded memory."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

import fewbit as fb
from fewbit.images import open_picture

from .hostile import FILES

MAX_MIB = 500  # above what the process had before

PROGRAM = """
import resource, sys
from tests.images.hostile import FILES
import fewbit as fb
from fewbit.images import open_picture

open_picture(FILES["png_1_x_1"][0]())
for name in sys.argv[1:]:
    data = FILES[name][0]()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak starts from here
    before = int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1])
    try:
        open_picture(data)
    except fb.ImageError:
        pass
    peak = int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
    print(name, (peak - before) >> 10)
"""


def test_there_are_sixty() -> None:
    assert len(FILES) >= 60


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("name", FILES)
def test_an_error_or_the_picture(name: str) -> None:
    make, expected = FILES[name]
    if isinstance(expected, str):
        with pytest.raises(fb.ImageError) as raised:
            open_picture(make())
        assert re.search(expected, str(raised.value)), raised.value
        assert "\n" not in str(raised.value)
        assert len(str(raised.value)) < 200
        return
    picture = open_picture(make())
    assert picture.image.size == expected
    assert picture.image.mode == "RGB"
    assert np.asarray(picture.image.crop((0, 0, 2, 2))).dtype == np.uint8


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_bounded() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM, *FILES], capture_output=True, text=True, check=True)
    peaks = {line.split()[0]: int(line.split()[1]) for line in found.stdout.splitlines()}
    assert peaks.keys() == FILES.keys()
    assert max(peaks.values()) < MAX_MIB, {name: peak for name, peak in peaks.items() if peak > 100}
