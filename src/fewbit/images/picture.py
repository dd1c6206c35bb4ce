"""Opening images: from what they are given as to upright pictures in RGB."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DtypeError, ImageError
from .decoding import check_size, decode, import_pillow, reported

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_BYTES = 64 << 20  # of a file
STRIP_ROWS = 256  # that are looked at together: copies of whole images would take much memory
ORIENTATION = 274  # in EXIF data
ALPHA_MODES = ("RGBA", "LA", "PA", "La", "RGBa")


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """An image in RGB, upright, and what identifies its pixels."""

    image: Image
    digest: bytes


def open_picture(source: Any) -> Picture:
    """An image from a path, bytes, a PIL image or an array.

    It is turned as its EXIF data say, transparent parts become white, of an animation the first frame is taken.

    Args:
        source: Path, bytes of a file, open file, PIL image, or array of bytes: (height, width), or with 1, 3 or 4
            channels.

    Raises:
        ImageError: It is no image of a known format, is damaged, or is too large.
    """
    image = _image(read_source(source))
    check_size(*image.size)
    with reported():
        orientation = _orientation(image)
        image = _to_rgb(image)  # the one that was opened is not needed any more
        upright = _turned(image, orientation)
        return Picture(upright, _digest(upright))


def read_source(source: Any) -> Any:
    """The bytes of a file, from wherever they are; PIL images and arrays as they are."""
    if isinstance(source, import_pillow().Image | np.ndarray) or hasattr(source, "__array__"):
        return source
    return _read(source)


def _digest(image: Image) -> bytes:
    found = blake2b(f"{image.width}x{image.height}".encode(), digest_size=32)
    for strip in _strips(image):
        found.update(strip.tobytes())
    return found.digest()


def _strips(image: Image) -> Iterator[Image]:
    """The rows of an image, some at a time."""
    for top in range(0, image.height, STRIP_ROWS):
        yield image.crop((0, top, image.width, min(top + STRIP_ROWS, image.height)))


def _image(source: Any) -> Image:
    if isinstance(source, bytes):
        return decode(source)
    return source if isinstance(source, import_pillow().Image) else _from_array(np.asarray(source))


def _read(source: Any) -> bytes:
    if isinstance(source, bytes | bytearray | memoryview):
        data = bytes(source)
    elif hasattr(source, "read"):
        data = bytes(source.read(MAX_BYTES + 1))
    elif isinstance(source, str | os.PathLike):
        data = _read_path(os.path.expanduser(os.fspath(source)))
    else:
        raise DtypeError(f"an image is a path, bytes, a PIL image or an array, not {type(source).__name__}")
    if len(data) > MAX_BYTES:
        raise ImageError(f"the image's file is larger than {MAX_BYTES >> 20} MiB")
    if not data:
        raise ImageError("the image's file is empty")
    return data


def _read_path(path: Any) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ImageError(f"{path}: cannot be opened: {getattr(error, 'strerror', None) or error}") from None


def _from_array(pixels: np.ndarray) -> Image:
    shape = " x ".join(map(str, pixels.shape))
    if pixels.dtype != np.uint8:
        raise DtypeError(f"an image's array has bytes (uint8), not {pixels.dtype}")
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim != 2 and not (pixels.ndim == 3 and pixels.shape[2] in (3, 4)):
        raise ImageError(f"an image's array is (height, width), or has 1, 3 or 4 channels at the end; it is {shape}")
    check_size(pixels.shape[1], pixels.shape[0])
    image: Image = import_pillow().fromarray(np.ascontiguousarray(pixels))
    return image


def _orientation(image: Image) -> int:
    """How the EXIF data say that an image is turned; 1: not at all."""
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # damaged EXIF data say nothing
        return 1


def _turned(image: Image, orientation: int) -> Image:
    turns = import_pillow().Transpose
    methods = {
        2: turns.FLIP_LEFT_RIGHT, 3: turns.ROTATE_180, 4: turns.FLIP_TOP_BOTTOM, 5: turns.TRANSPOSE,
        6: turns.ROTATE_270, 7: turns.TRANSVERSE, 8: turns.ROTATE_90,
    }  # fmt: skip
    method = methods.get(orientation)
    return image if method is None else image.transpose(method)


def _to_rgb(image: Image) -> Image:
    """8 bits of red, green and blue; transparent parts are white."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    convert = _deep_converter(image) if image.mode.startswith(("I", "F")) else _over_white
    out, top = import_pillow().new("RGB", image.size), 0
    for strip in _strips(image):
        out.paste(convert(strip), (0, top))
        top += strip.height
    return out  # type: ignore[no-any-return]


def _over_white(image: Image) -> Image:
    if image.mode not in ALPHA_MODES and "transparency" not in image.info:
        return image.convert("RGB")
    over = image.convert("RGBA")
    white: Image = import_pillow().new("RGB", over.size, (255, 255, 255))
    white.paste(over, mask=over.getchannel("A"))
    return white


def _deep_converter(image: Image) -> Callable[[Image], Image]:
    """For 16 bits or more, or floats, by the range of an image: Pillow would cut what is above 255."""
    largest = max(float(np.nan_to_num(np.asarray(strip), posinf=0).max()) for strip in _strips(image))
    factor = 1 / 257 if image.mode.startswith("I;16") or largest > 255 else 255.0 if largest <= 1 else 1.0

    def convert(strip: Image) -> Image:
        values = np.nan_to_num(np.asarray(strip).astype(np.float64), posinf=255, neginf=0) * factor
        gray: Image = import_pillow().fromarray(np.clip(np.rint(values), 0, 255).astype(np.uint8))
        return gray.convert("RGB")

    return convert
