"""Images: from files, bytes, arrays or PIL images to the pixels of encoders. Needs Pillow, the extra `vision`."""

from .picture import Picture, open_picture, read_source
from .pixels import PixelRules, ResampleName, patches_of, resize, to_floats
from .prepared import PreparedImage

__all__ = [
    "Picture",
    "PixelRules",
    "PreparedImage",
    "ResampleName",
    "open_picture",
    "patches_of",
    "read_source",
    "resize",
    "to_floats",
]
