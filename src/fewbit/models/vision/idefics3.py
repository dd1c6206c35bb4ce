"""Idefics 3 and SmolVLM: SigLIP over tiles and an overview of them; squares of patches are joined (pixel shuffle)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ...arrays import Floats
from ...errors import FileError
from ...images import Picture, PreparedImage, patches_of, resize, to_floats
from ...ops.graph import Value
from ...ops.recorder import Ops
from ..checkpoint import Checkpoint
from ..layers import Linear
from .adapter import VisionAdapter, preprocessor, vision_config
from .blocks import neighbours
from .siglip import SIGLIP_TENSORS, Siglip

if TYPE_CHECKING:
    from PIL.Image import Image

LARGEST = 4096  # pixels on a side
AROUND, OVERVIEW = "<fake_token_around_image>", "<global-img>"

HF = VisionAdapter(
    ("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"),
    "idefics3",
    config=vision_config(
        image_size=224, patch_size=32, hidden_size=1152, intermediate_size=3072, num_hidden_layers=12,
        num_attention_heads=16,
    )
    | {
        "vision.projector.scale_factor": lambda config: config["whole"].get("scale_factor", 2),
        "vision.preproc_image_size": preprocessor("size.longest_edge"),
        "vision.tile_size": preprocessor("max_image_size.longest_edge"),
        "vision.splits": preprocessor("do_image_splitting"),
    },
    tensors=SIGLIP_TENSORS | {"connector.modality_projection.proj": "mm.model.fc"},
)  # fmt: skip


class Model(Siglip):
    placeholder = token = "<image>"
    sees_all, joint_tokens = False, 0

    def __init__(self, file: Checkpoint) -> None:
        super().__init__(file, "lanczos")
        c = self.sizes
        self.scale = file.size("vision.projector.scale_factor", default=2, most=64)
        self.longest = file.size("vision.preproc_image_size", default=4 * c.image, most=1 << 14)
        self.splits = file.flag("vision.splits", default=True)
        if c.side % self.scale or file.size("vision.tile_size", default=c.image) != c.image:
            sizes = f"tiles must have {c.image} pixels on a side, and join in squares of {self.scale}"
            raise FileError(f"{file.path}: {sizes}")
        self.fc = Linear(file, "mm.model.fc", c.out, c.hidden * self.scale**2)

    def prepare(self, picture: Picture) -> PreparedImage:
        tiles, rows, columns = self._tiles(picture.image)
        patches = [patches_of(to_floats(np.asarray(tile), self.pixels), self.sizes.patch) for tile in tiles]
        side = self.sizes.side // self.scale
        return PreparedImage(
            np.concatenate(patches), (self.sizes.side**2,) * len(tiles), self._text(rows, columns), (side, side)
        )

    def _tiles(self, image: Image) -> tuple[list[Image], int, int]:
        """Tiles row by row and the overview, and how many rows and columns there are; 0: the overview is all."""
        size, resample = self.sizes.image, self.pixels.resample
        image = resize(image, *fitted(*image.size, self.longest), resample)
        if not self.splits:
            return [resize(image, size, size, resample)], 0, 0
        image = resize(image, *_multiples(*image.size, size), resample)
        columns, rows = image.width // size, image.height // size
        if rows * columns == 1:
            return [image], 0, 0
        boxes = [(x * size, y * size, (x + 1) * size, (y + 1) * size) for y in range(rows) for x in range(columns)]
        return [*map(image.crop, boxes), resize(image, size, size, resample)], rows, columns

    def _text(self, rows: int, columns: int) -> str:
        tokens = self.token * (self.sizes.side // self.scale) ** 2
        overview = f"{AROUND}{OVERVIEW}{tokens}{AROUND}"
        if not rows:
            return overview
        lines = (
            "".join(f"{AROUND}<row_{row}_col_{column}>{tokens}" for column in range(1, columns + 1)) + "\n"
            for row in range(1, rows + 1)
        )
        return f"{''.join(lines)}\n{overview}"

    def merge(self, hidden: Floats, image: PreparedImage) -> Floats:
        side = self.sizes.side
        return np.ascontiguousarray(neighbours(hidden, side, side, self.scale)).reshape(
            -1, hidden.shape[1] * self.scale**2
        )

    def project(self, ops: Ops) -> Value:
        return self.fc(ops, ops.given(self.sizes.hidden * self.scale**2))


def fitted(width: int, height: int, longest: int) -> tuple[int, int]:
    """The size whose longer side is `longest`, and the other one even, but at most `LARGEST`.

    >>> fitted(100, 30, 64), fitted(30, 100, 64)
    ((64, 20), (20, 64))
    """
    ratio = width / height
    if width >= height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        width, height = int(longest * ratio), longest
        width += width % 2
    width, height = max(width, 1), max(height, 1)
    ratio = width / height
    if width >= height and width > LARGEST:
        width, height = LARGEST, int(LARGEST / ratio)
    elif height > width and height > LARGEST:
        width, height = int(LARGEST * ratio), LARGEST
    return max(width, 1), max(height, 1)


def _multiples(width: int, height: int, size: int) -> tuple[int, int]:
    """Whole tiles on each side."""
    ratio = width / height
    if width >= height:
        width = math.ceil(width / size) * size
        height = math.ceil(int(width / ratio) / size) * size
    else:
        height = math.ceil(height / size) * size
        width = math.ceil(int(height * ratio) / size) * size
    return width, height
