"""Opening images: what is taken, and how; hostile ones are in test_hostile.py."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fewbit as fb
from fewbit.images import PixelRules, open_picture, patches_of, to_floats

RULES = PixelRules((0.4, 0.5, 0.6), (0.2, 0.3, 0.4), "bicubic")


def noise(height: int = 7, width: int = 5, channels: int = 3) -> Any:
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(1).integers(0, 256, shape, np.uint8)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def test_paths_bytes_images_and_arrays_are_the_same_picture(tmp_path: Path) -> None:
    pixels = noise()
    data = encoded(Image.fromarray(pixels))
    path = tmp_path / "a.png"
    path.write_bytes(data)
    sources = [path, str(path), data, bytearray(data), Image.fromarray(pixels), pixels]
    pictures = [open_picture(source) for source in sources]
    assert len({picture.digest for picture in pictures}) == 1
    for picture in pictures:
        np.testing.assert_array_equal(np.asarray(picture.image), pixels)


def test_other_pixels_and_other_shapes_have_other_digests() -> None:
    pixels = noise(4, 6)
    changed = pixels.copy()
    changed[0, 0, 0] ^= 1
    digests = {open_picture(one).digest for one in (pixels, changed, pixels.reshape(6, 4, 3), pixels[::-1])}
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("mode", "kind"), [("L", "PNG"), ("1", "PNG"), ("P", "GIF"), ("CMYK", "JPEG"), ("YCbCr", "JPEG")]
)
def test_modes_become_rgb(mode: str, kind: str) -> None:
    image = Image.fromarray(np.full((8, 8, 3), 200, np.uint8)).convert(mode)
    picture = open_picture(encoded(image, kind))
    assert picture.image.mode == "RGB"
    assert np.abs(np.asarray(picture.image).astype(int).mean() - (255 if mode == "1" else 200)) < 60


def test_transparent_parts_are_white() -> None:
    pixels = noise(2, 2, 4)
    pixels[..., 3] = [[0, 255], [0, 255]]
    got = np.asarray(open_picture(encoded(Image.fromarray(pixels))).image)
    np.testing.assert_array_equal(got[:, 0], 255)
    np.testing.assert_array_equal(got[:, 1], pixels[:, 1, :3])


def test_exif_says_what_is_up() -> None:
    image = Image.fromarray(noise(3, 2))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    got = open_picture(encoded(image, "PNG", exif=exif)).image
    np.testing.assert_array_equal(np.asarray(got), np.rot90(np.asarray(image), -1))


def test_16_bits_are_scaled() -> None:
    deep = np.linspace(0, 65535, 16).astype(np.uint16).reshape(4, 4)
    got = np.asarray(open_picture(encoded(Image.fromarray(deep))).image)
    np.testing.assert_array_equal(got[..., 0], np.rint(deep / 257).astype(np.uint8))


def test_the_first_frame_of_an_animation() -> None:
    frames = [Image.fromarray(np.full((4, 4, 3), value, np.uint8)) for value in (10, 200)]
    data = encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    assert np.asarray(open_picture(data).image).max() == 10


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(fb.DtypeError, match="a path, bytes, a PIL image or an array, not int"):
        open_picture(3)
    with pytest.raises(fb.DtypeError, match="bytes"):
        open_picture(np.zeros((3, 3)))
    with pytest.raises(fb.ImageError, match="3 x 3 x 7"):
        open_picture(np.zeros((3, 3, 7), np.uint8))
    with pytest.raises(fb.ImageError, match="cannot be opened"):
        open_picture("/nowhere/a.png")


def test_floats_and_patches() -> None:
    pixels = noise(4, 6)
    floats = to_floats(pixels, RULES)
    expected = (pixels / 255 - np.array(RULES.mean)) / np.array(RULES.std)
    np.testing.assert_allclose(floats, expected, atol=1e-6)
    patches = patches_of(floats, 2)
    assert patches.shape == (6, 12)
    np.testing.assert_array_equal(patches[4], floats[2:4, 2:4].transpose(2, 0, 1).reshape(-1))
