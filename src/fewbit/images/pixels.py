"""From a picture to rows of pixels, as the processors of transformers do it with Pillow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..arrays import Bytes, Floats

if TYPE_CHECKING:
    from PIL.Image import Image

ResampleName = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]
RESAMPLES: tuple[ResampleName, ...] = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # by number


@dataclass(frozen=True, slots=True)
class PixelRules:
    """How bytes become floats: (x / 255 - mean) / std of each channel, after resampling."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    resample: ResampleName


def resize(image: Image, width: int, height: int, resample: ResampleName) -> Image:
    """The image with another size; nothing is done if it has it."""
    return image.resize((width, height), resample=RESAMPLES.index(resample))


def to_floats(pixels: Bytes, rules: PixelRules) -> Floats:
    """(height, width, 3) bytes as normalized floats.

    >>> rules = PixelRules((0.5,) * 3, (0.5,) * 3, "bilinear")
    >>> to_floats(np.full((1, 1, 3), 255, np.uint8), rules).tolist()
    [[[1.0, 1.0, 1.0]]]
    """
    mean, std = np.array(rules.mean, np.float32), np.array(rules.std, np.float32)
    table = (np.arange(256, dtype=np.float32)[:, None] * np.float32(1 / 255) - mean) / std  # (256, 3)
    return np.asarray(np.stack([table[pixels[..., channel], channel] for channel in range(3)], axis=-1))


def patches_of(pixels: Floats, size: int) -> Floats:
    """Square patches, row by row: (patches, channel x row x column), as a convolution's weights lie.

    Pixels that are left over on the right and at the bottom are dropped.

    >>> patches_of(np.arange(8, dtype=np.float32).reshape(2, 4, 1), 2).tolist()
    [[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]
    """
    rows, columns, channels = pixels.shape[0] // size, pixels.shape[1] // size, pixels.shape[2]
    cut = pixels[: rows * size, : columns * size].reshape(rows, size, columns, size, channels)
    return np.ascontiguousarray(cut.transpose(0, 2, 4, 1, 3)).reshape(-1, channels * size * size)
