"""Image encoders with packed weights on a GPU, beside the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.encoding import ImageEncoder, open_encoder
from fewbit.images import open_picture
from fewbit.load_options import LoadOptions

from ..models.vision.wide import write_wide_encoder
from ..models.vision.zoo import error, golden

pytestmark = pytest.mark.cuda
ROWS = 5e-3  # the largest error of a value beside the largest value: products are in f16, of rows of 256 values


def rows_of(path: Path, **options: str) -> Floats:
    encoder = ImageEncoder(open_encoder(path), LoadOptions(**options))
    return encoder.encode(encoder.model.prepare(open_picture(golden("idefics3")["first"])))[0]


@pytest.mark.parametrize("format", ["q8_0", "q4_k"])
@pytest.mark.parametrize("name", ["idefics3", "qwen2_5vl_merger", "qwen3vl_merger", "llava_pixtral"])
def test_rows_from_packed_weights(name: str, format: str, tmp_path: Path) -> None:
    out = tmp_path / "mmproj.gguf"
    fb.quantize_model(write_wide_encoder(name, tmp_path / "f32.gguf"), out, format, mmproj=True)
    got = rows_of(out, device="cuda")
    assert np.isfinite(got).all()
    assert error(got, rows_of(out, activations="exact")) < ROWS
