"""Opening images that anybody may have sent: few formats, limits before anything is decoded, one clear error."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DtypeError, ExtraError, ImageError

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
MAX_BYTES = 64 << 20  # of a file
MAX_PIXELS = 36_000_000  # 144 MB as Pillow keeps them
MAX_SIDE = 32_768
STRIP_ROWS = 256  # that are looked at together: copies of whole images would take much memory


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
    image = _decode(source)
    check_size(*image.size)
    with reported():
        upright = _to_rgb(_upright(image))
        return Picture(upright, _digest(upright))


def _digest(image: Image) -> bytes:
    found = blake2b(f"{image.width}x{image.height}".encode(), digest_size=32)
    for strip in _strips(image):
        found.update(strip.tobytes())
    return found.digest()


def _strips(image: Image) -> Iterator[Image]:
    """The rows of an image, some at a time."""
    for top in range(0, image.height, STRIP_ROWS):
        yield image.crop((0, top, image.width, min(top + STRIP_ROWS, image.height)))


def check_size(width: int, height: int) -> None:
    """
    >>> check_size(100_000, 100_000)
    Traceback (most recent call last):
        ...
    fewbit.errors.ImageError: the image has 100000 x 100000 pixels; at most 36 million fit, and 32768 on a side
    """
    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
        most = f"at most {MAX_PIXELS // 1_000_000} million fit, and {MAX_SIDE} on a side"
        raise ImageError(f"the image has {width} x {height} pixels; {most}")
    if not width or not height:
        raise ImageError(f"the image has {width} x {height} pixels, so there is nothing to see")


@contextmanager
def reported() -> Iterator[None]:
    """Whatever a decoder stumbles over becomes an ImageError."""
    try:
        yield
    except ImageError:
        raise
    except import_pillow().DecompressionBombError:
        raise ImageError(f"the image has too many pixels; at most {MAX_PIXELS // 1_000_000} million fit") from None
    except MemoryError:
        raise ImageError("the image needs more memory than there is") from None
    except Exception as error:
        raise ImageError(f"the image is damaged: {error or type(error).__name__}") from None


def _decode(source: Any) -> Image:
    pillow = import_pillow()
    if isinstance(source, pillow.Image):
        check_size(*source.size)
        return source  # type: ignore[no-any-return]
    if isinstance(source, np.ndarray) or hasattr(source, "__array__"):
        return _from_array(np.asarray(source))
    return _from_file(_read(source))


@cache
def import_pillow() -> Any:
    """Pillow's module `Image`. It warns of damaged metadata, which nobody can do anything about."""
    try:
        from PIL import Image
    except ImportError:
        raise ExtraError('images need Pillow: pip install "fewbit[vision]"') from None
    warnings.filterwarnings("ignore", module=r"PIL\.")
    return Image


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


def _from_file(data: bytes) -> Image:
    pillow = import_pillow()
    with reported():
        try:
            image = pillow.open(io.BytesIO(data), formats=FORMATS)
        except pillow.UnidentifiedImageError:
            raise ImageError(f"this is no image of a known format ({', '.join(FORMATS)}){_hint(data)}") from None
        check_size(*image.size)
        image.seek(0)
        image.load()
    return image  # type: ignore[no-any-return]


def _hint(data: bytes) -> str:
    """
    >>> _hint(b"%PDF-1.7 ...")
    "; it starts with b'%PDF-1.7'"
    """
    return f"; it starts with {data[:8]!r}"


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


def _upright(image: Image) -> Image:
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # damaged EXIF data say nothing
        return image


def _to_rgb(image: Image) -> Image:
    """8 bits of red, green and blue; transparent parts are white."""
    if image.mode.startswith(("I", "F")):
        return _from_deep(image)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        over = image if image.mode == "RGBA" else image.convert("RGBA")
        white = import_pillow().new("RGB", over.size, (255, 255, 255))
        white.paste(over, mask=over.getchannel("A"))
        return white  # type: ignore[no-any-return]
    return image if image.mode == "RGB" else image.convert("RGB")


def _from_deep(image: Image) -> Image:
    """16 bits or more, or floats, by their range: Pillow would cut what is above 255."""
    largest = max(float(np.nan_to_num(np.asarray(strip), posinf=0).max()) for strip in _strips(image))
    factor = 1 / 257 if image.mode.startswith("I;16") or largest > 255 else 255.0 if largest <= 1 else 1.0
    out, top = import_pillow().new("RGB", image.size), 0
    for strip in _strips(image):
        values = np.nan_to_num(np.asarray(strip).astype(np.float64), posinf=255, neginf=0) * factor
        gray = import_pillow().fromarray(np.clip(np.rint(values), 0, 255).astype(np.uint8))
        out.paste(gray.convert("RGB"), (0, top))
        top += strip.height
    return out  # type: ignore[no-any-return]
