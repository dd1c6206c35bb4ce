"""Pixels of 40 pictures of odd sizes beside those of transformers' processors: see tests/vision_zoo/pixels.py."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit.arrays import Floats
from fewbit.images import PixelRules, PreparedImage, open_picture
from fewbit.models.vision import gemma3, gemma4v, idefics3, load_vision, pixtral, qwen2vl_merger, qwen3vl_merger
from fewbit.models.vision.blocks import VisionSizes
from fewbit.models.vision.qwen import CLIP_MEAN, CLIP_STD

from ...vision_zoo.pixels import FAMILIES, PATH, SIZES, picture, places
from .zoo import NAMES, encoder_file

HALF = (0.5,) * 3
LEVEL = 1 / 255  # of a pixel
SQUARE = 28 * 28


@cache
def golden() -> dict[str, Any]:
    return dict(np.load(PATH))


def sizes(patch: int, image: int) -> VisionSizes:
    return VisionSizes(1, 8, 8, 2, patch, image, 8, 1e-6)


def gemma() -> Any:
    model = object.__new__(gemma3.Model)
    model.sizes, model.pixels, model.scale = sizes(14, 224), PixelRules(HALF, HALF, "bilinear"), 4
    return model


def idefics() -> Any:
    model = object.__new__(idefics3.Model)
    model.sizes, model.pixels, model.scale = sizes(16, 128), PixelRules(HALF, HALF, "lanczos"), 2
    model.longest, model.splits = 256, True
    return model


def qwen() -> Any:
    model = object.__new__(qwen2vl_merger.Model)
    model.sizes, model.merge_size = sizes(14, 560), 2
    model.pixels = PixelRules(tuple(CLIP_MEAN), tuple(CLIP_STD), "bicubic")
    model.min_pixels, model.max_pixels = 56 * 56, SQUARE * 200
    return model


def qwen3() -> Any:
    model = object.__new__(qwen3vl_merger.Model)
    model.sizes, model.merge_size, model.pixels = sizes(16, 768), 2, PixelRules(HALF, HALF, "bicubic")
    model.min_pixels, model.max_pixels = 64 * 64, 32 * 32 * 150
    model.table, model.side = np.zeros((16, 8), np.float32), 4
    return model


def mistral() -> Any:
    model = object.__new__(pixtral.Model)
    model.sizes, model.merge_size, model.longest = sizes(14, 280), 2, 280
    model.pixels = PixelRules(tuple(CLIP_MEAN), tuple(CLIP_STD), "bicubic")
    return model


def gemma4() -> Any:
    model = object.__new__(gemma4v.Model)
    model.sizes, model.scale, model.max_tokens = sizes(16, 768), 3, 70
    model.pixels = gemma4v.tower_pixels(PixelRules((0.0,) * 3, (1.0,) * 3, "bicubic"))
    model.position_embd = np.zeros((2, 210, 8), np.float32)
    return model


MODELS = {
    "gemma3": gemma,
    "gemma4v": gemma4,
    "idefics3": idefics,
    "qwen2vl_merger": qwen,
    "qwen3vl_merger": qwen3,
    "pixtral": mistral,
}


def as_transformers(name: str, image: PreparedImage) -> Floats:
    """Patches in the order that transformers' processor gives their values in."""
    if name.startswith("qwen"):  # each patch twice, for two frames
        patches = image.patches.reshape(len(image.patches), 3, 1, -1)
        return np.repeat(patches, 2, axis=2).reshape(-1)
    if name == "gemma4v":  # channels last, and what the tower's pixels were made of
        return (image.patches.reshape(-1, 3, 256).transpose(0, 2, 1).reshape(-1) + 1) / 2
    patch = {"gemma3": 14, "idefics3": 16, "pixtral": 14}[name]
    side = int(image.tiles[0] ** 0.5)
    rows, columns = (2 * size for size in image.grid) if name == "pixtral" else (side, side)
    tiles = image.patches.reshape(-1, rows, columns, 3, patch, patch).transpose(0, 3, 1, 4, 2, 5)
    return np.ascontiguousarray(tiles).reshape(-1)


@pytest.mark.parametrize("number", range(len(SIZES)), ids=[f"{width}x{height}" for width, height in SIZES])
@pytest.mark.parametrize("name", FAMILIES)
def test_pixels_are_those_of_transformers(name: str, number: int) -> None:
    model = MODELS[name]()
    image = model.prepare(open_picture(picture(*SIZES[number])))
    values = as_transformers(name, image)
    expected, (count, rows, columns) = golden()[name][number], golden()[f"{name}_shapes"][number]
    assert len(values) == count
    std = min(model.pixels.std)
    assert np.abs(values[places(count)] - expected).max() * std <= LEVEL
    joined = 9 if name == "gemma4v" else 4
    assert image.text.count(model.token) == (rows * columns // joined if rows else num_tokens(name, image))
    if name == "pixtral":
        row = model.token * (columns // 2)
        assert image.text == "[IMG_BREAK]".join([row] * (rows // 2)) + "[IMG_END]"


def num_tokens(name: str, image: PreparedImage) -> int:
    each = image.tiles[0] // {"gemma3": 16, "idefics3": 4}[name]
    return each * len(image.tiles)


@pytest.mark.parametrize("size", [(1, 1), (20_000, 10), (10, 20_000), (32_768, 1), (1, 32_768), (201, 1), (1, 199)])
@pytest.mark.parametrize("name", [name for name in NAMES if "limits" not in name])
def test_pictures_of_odd_shapes(name: str, size: tuple[int, int]) -> None:
    """Each has as many rows as tokens, whatever its shape, or it is said to be too narrow."""
    model = load_vision(encoder_file(f"{name}/hf"))
    picture = open_picture(np.zeros((*size[::-1], 3), np.uint8))
    if name.startswith("qwen") and max(size) > 200 * min(size):
        with pytest.raises(fb.ImageError, match="too narrow"):
            model.prepare(picture)
        return
    image = model.prepare(picture)
    assert sum(image.tiles) == len(image.patches) <= 2520
    tower = np.zeros((image.tiles[0], model.parts * model.sizes.hidden), np.float32)  # type: ignore[attr-defined]
    rows = len(model.merge(tower, image)) * len(image.tiles)
    assert rows == image.text.count(model.token)


def test_too_narrow_for_squares_of_patches() -> None:
    with pytest.raises(fb.ImageError, match="too narrow"):
        qwen().prepare(open_picture(np.zeros((2, 402, 3), np.uint8)))
