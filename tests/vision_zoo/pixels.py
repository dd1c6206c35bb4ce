"""Writes what transformers' processors make of 40 pictures of odd sizes: some of the pixels, and how many there are.

python -m tests.vision_zoo.pixels
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

SIZES = [
    (1, 1), (1, 2), (3, 2), (7, 7), (13, 5), (16, 16), (17, 33), (27, 28), (28, 27), (29, 56), (31, 32), (40, 3),
    (55, 57), (61, 64), (64, 64), (65, 63), (90, 20), (97, 101), (100, 140), (111, 112), (112, 113), (127, 250),
    (150, 149), (199, 30), (201, 202), (223, 224), (224, 224), (225, 223), (240, 320), (256, 255), (301, 17),
    (320, 333), (333, 100), (364, 365), (400, 301), (448, 447), (480, 360), (512, 200), (513, 511), (640, 480),
]  # fmt: skip
NUM_SAMPLES = 48
MANY = 128  # tokens: of longer prompts the logits of some positions are kept
PATH = Path(__file__).parent / "pixels.npz"
FAMILIES = ("gemma3", "idefics3", "qwen2vl_merger", "qwen3vl_merger", "pixtral", "gemma4v")


def picture(width: int, height: int) -> Any:
    """Blocks of colors over a gradient, made without any library for images."""
    draw = np.random.default_rng(width * 1000 + height)
    blocks = draw.integers(0, 256, (height // 7 + 1, width // 5 + 1, 3), np.uint8)
    large = blocks.repeat(7, 0).repeat(5, 1)[:height, :width]
    fade = np.linspace(0, 60, width, dtype=np.uint8)[None, :, None]
    return np.minimum(large, 195) + fade


def places(count: int) -> Any:
    """The numbers of the values that are compared."""
    return np.random.default_rng(count).integers(0, count, NUM_SAMPLES)


def processors() -> dict[str, Any]:
    import transformers

    return {
        "gemma3": transformers.Gemma3ImageProcessorPil(size={"height": 224, "width": 224}),
        "idefics3": transformers.Idefics3ImageProcessorPil(
            size={"longest_edge": 256}, max_image_size={"longest_edge": 128}
        ),
        "qwen2vl_merger": transformers.Qwen2VLImageProcessorPil(
            size={"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 200}
        ),
        "qwen3vl_merger": transformers.Qwen2VLImageProcessorPil(  # as the checkpoints of Qwen3-VL and Qwen3.5 name it
            size={"shortest_edge": 64 * 64, "longest_edge": 32 * 32 * 150},
            patch_size=16,
            image_mean=[0.5] * 3,
            image_std=[0.5] * 3,
        ),
        "gemma4v": transformers.Gemma4ImageProcessorPil(max_soft_tokens=70),
        "pixtral": transformers.PixtralImageProcessorPil(
            size={"longest_edge": 280}, patch_size={"height": 28, "width": 28}
        ),
    }


def unpadded(found: Any) -> Any:
    """The values of a picture, without patches that only fill up."""
    values = np.asarray(found["pixel_values"], np.float32)
    if "image_position_ids" in found:
        return values[np.asarray(found["image_position_ids"])[..., 0] >= 0]
    return values


def grid(found: Any) -> list[int]:
    """Rows and columns of patches; 0: their number is the same for all pictures, or that of tiles."""
    if "image_position_ids" in found:
        return (np.asarray(found["image_position_ids"])[0].max(axis=0)[::-1] + 1).tolist()  # type: ignore[no-any-return]
    if "image_sizes" in found:
        return [size // 14 for size in np.asarray(found["image_sizes"])[0].tolist()]
    rows, columns = np.asarray(found.get("image_grid_thw", [[0, 0, 0]]))[0][1:].tolist()
    return [rows, columns]


def main() -> None:
    from PIL import Image

    golden: dict[str, Any] = {}
    for name, processor in processors().items():
        samples, shapes = [], []
        for size in SIZES:
            found = processor(Image.fromarray(picture(*size)), return_tensors="np")
            values = unpadded(found).reshape(-1)
            samples.append(values[places(len(values))])
            shapes.append([len(values), *grid(found)])
        golden[name], golden[f"{name}_shapes"] = np.stack(samples), np.array(shapes)
    np.savez_compressed(PATH, **golden)


if __name__ == "__main__":
    main()
