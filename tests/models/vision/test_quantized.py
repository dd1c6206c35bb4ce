"""Encoders with packed weights: written by `quantize_model`, and run as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.encoding import ImageEncoder, open_encoder
from fewbit.images import open_picture
from fewbit.load_options import LoadOptions
from fewbit.models.vision import load_vision
from fewbit.ops.recorder import record
from fewbit.tensor import QuantTensor

from .wide import write_wide_encoder
from .zoo import NAMES, error, golden

NEAR = {"q8_0": 0.03, "q4_k": 0.25}  # root mean square of the error beside that of the rows
ENCODERS = [name for name in NAMES if name not in ("gemma4_limits", "qwen35", "qwen35moe", "qwen3vl_moe")]


@pytest.fixture(scope="module", params=ENCODERS)
def wide(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wide_encoder(request.param, tmp_path_factory.mktemp(request.param) / "mmproj-f32.gguf")


def rows_of(path: Path, **options: str) -> Floats:
    encoder = ImageEncoder(open_encoder(path), LoadOptions(**options))
    picture = open_picture(golden("gemma3")["first"])
    return encoder.encode(encoder.model.prepare(picture))[0]


def rms(got: Floats, expected: Floats) -> float:
    return float(np.sqrt(np.square(got - expected).mean() / np.square(expected).mean()))


def decoded(path: Path, out: Path) -> Path:
    """The same encoder with the values of its packed weights as f32."""
    source = fb.read_gguf(path)
    fb.write_gguf(out, source.metadata, {name: tensor.dequantize() for name, tensor in source.tensors.items()})
    return out


@pytest.mark.parametrize("format", NEAR)
def test_rows_from_packed_weights(wide: Path, tmp_path: Path, format: str) -> None:
    out = tmp_path / f"mmproj-{format}.gguf"
    fb.quantize_model(wide, out, format, mmproj=True)
    plain = rows_of(wide, activations="exact")
    got = rows_of(out, activations="exact")
    assert 0 < rms(got, plain) < NEAR[format]
    assert error(got, rows_of(decoded(out, tmp_path / "f32.gguf"), activations="exact")) < 1e-4
    assert rms(rows_of(out), plain) < NEAR[format] + 0.02  # 8-bit activations


@pytest.mark.parametrize("format", NEAR)
def test_products_take_weights_as_they_are_packed(wide: Path, tmp_path: Path, format: str) -> None:
    fb.quantize_model(wide, tmp_path / "out.gguf", format, mmproj=True)
    file = fb.read_gguf(tmp_path / "out.gguf")
    model = load_vision(file)
    nodes = [node for forward in (model.tower, model.project) for node in record(forward, has_head=False).nodes]
    used = [value for node in nodes for value in node.attributes.values() if isinstance(value, QuantTensor)]
    for_products, in_file = (
        sum(one.nbytes for one in tensors if one.format.name == format) for tensors in (used, file.tensors.values())
    )
    assert for_products == in_file > 0
