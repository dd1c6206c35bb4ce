"""Decoding image files that anybody may have sent: few bytes may not ask for much memory or time."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from ..errors import ExtraError, ImageError

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
MAX_PIXELS = 36_000_000  # 144 MB as Pillow keeps them
MAX_COSTLY_PIXELS = 20_000_000  # where a decoder has several copies at once
MAX_SIDE = 32_768
MAX_READS = 1_000_000  # decoders read a chunk, block or tag at a time
MAX_TAG_BYTES = 2 << 20  # of a TIFF: each number in them becomes an object
MAX_TILE_PIXELS = 1 << 22  # of a TIFF whose tiles are larger than itself
MAX_SCANNED_PIXELS = 100 * MAX_PIXELS  # of a progressive JPEG: every scan may go over all pixels in a few bytes
START_OF_SCAN = b"\xff\xda"
TILE_WIDTH, TILE_LENGTH = 322, 323


class GuardedFile(io.BytesIO):
    """A file in memory that may be read only so often, and so much of it."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._reads_left = MAX_READS
        self.bytes_left: float = MAX_TAG_BYTES if data[:2] in (b"II", b"MM") else float("inf")

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        self._reads_left -= 1
        self.bytes_left -= len(found)
        if self._reads_left < 0:
            raise ImageError(f"the image's file has too many parts: it takes more than {MAX_READS} reads")
        if self.bytes_left < 0:
            raise ImageError(f"the image's file has more than {MAX_TAG_BYTES >> 20} MiB of tags")
        return found


def decode(data: bytes) -> Image:
    """The first frame of a file, whose size was checked before anything was decoded."""
    pillow = import_pillow()
    file = GuardedFile(data)
    with reported():
        try:
            image: Any = pillow.open(file, formats=FORMATS)
        except pillow.UnidentifiedImageError:
            raise ImageError(f"this is no image of a known format ({', '.join(FORMATS)}){_hint(data)}") from None
        check_size(image.width, image.height, _costly(image))
        _check_scans(image, data)
        _check_tiles(image)
        file.bytes_left += 8 * image.width * image.height
        image.seek(0)
        image.load()
    return image  # type: ignore[no-any-return]


def check_size(width: int, height: int, costly: str = "") -> None:
    """Refuse an image that is too large; `costly`: what kind of file it is, if its decoder takes more memory.

    >>> check_size(100_000, 100_000)
    Traceback (most recent call last):
        ...
    fewbit.errors.ImageError: the image has 100000 x 100000 pixels; at most 36 million fit, and 32768 on a side
    """
    most = MAX_COSTLY_PIXELS if costly else MAX_PIXELS
    if width * height > most or max(width, height) > MAX_SIDE:
        limits = f"at most {most // 1_000_000} million fit{costly and f' in a {costly}'}, and {MAX_SIDE} on"
        raise ImageError(f"the image has {width} x {height} pixels; {limits} a side")
    if not width or not height:
        raise ImageError(f"the image has {width} x {height} pixels, so there is nothing to see")


def _costly(image: Any) -> str:
    """Which kind of file that is whose decoder needs several copies; none: ""."""
    if image.format == "WEBP":
        return "WebP file"
    return "progressive JPEG in CMYK" if image.mode == "CMYK" and image.info.get("progressive") else ""


def _check_scans(image: Image, data: bytes) -> None:
    count = data.count(START_OF_SCAN) if image.format == "JPEG" else 0
    if count * image.width * image.height > MAX_SCANNED_PIXELS:
        raise ImageError(f"the image is drawn in too many scans for its size: {count}")


def _check_tiles(image: Any) -> None:
    tags = getattr(image, "tag_v2", {})
    width, length = int(tags.get(TILE_WIDTH, 1)), int(tags.get(TILE_LENGTH, 1))
    if width * length > max(image.width * image.height, MAX_TILE_PIXELS):
        raise ImageError(f"the image has tiles of {width} x {length} pixels, which are too large")


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


@cache
def import_pillow() -> Any:
    """Pillow's module `Image`. It warns of damaged metadata, which nobody can do anything about."""
    try:
        from PIL import Image
    except ImportError:
        raise ExtraError('images need Pillow: pip install "fewbit[vision]"') from None
    warnings.filterwarnings("ignore", module=r"PIL\.")
    return Image


def _hint(data: bytes) -> str:
    """
    >>> _hint(b"%PDF-1.7 ...")
    "; it starts with b'%PDF-1.7'"
    """
    return f"; it starts with {data[:8]!r}"
