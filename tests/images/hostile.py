"""Images that somebody may send to do harm, or by mistake, and what each of them gets: an error, or its size."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageCms, PngImagePlugin

Expected = str | tuple[int, int]  # a part of the error, or width and height
FILES: dict[str, tuple[Callable[[], bytes], Expected]] = {}


def hostile(expected: Expected) -> Callable[[Callable[[], bytes]], Callable[[], bytes]]:
    def register(make: Callable[[], bytes]) -> Callable[[], bytes]:
        FILES[make.__name__] = make, expected
        return make

    return register


def add(name: str, expected: Expected, make: Callable[[], bytes]) -> None:
    FILES[name] = make, expected


def noise(width: int = 16, height: int = 12, mode: str = "RGB") -> Image.Image:
    shape = (height, width, 3)
    return Image.fromarray(np.random.default_rng(3).integers(0, 256, shape, np.uint8)).convert(mode)


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def chunk(kind: bytes, data: bytes, crc: int | None = None) -> bytes:
    sum_ = zlib.crc32(kind + data) if crc is None else crc
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", sum_)


def png(width: int, height: int, data: bytes = b"", bits: int = 8, color: int = 2, extra: bytes = b"") -> bytes:
    """A PNG with any header."""
    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def bmp_header(width: int, height: int) -> bytes:
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + head


def tiff_width(width: int) -> bytes:
    """A TIFF that says it is so wide."""
    entries = [struct.pack("<HHI", 256, kind, 1) for kind in (3, 4)]
    data = saved(noise(), "TIFF")
    at = max(data.find(entry) for entry in entries)
    return data[:at] + struct.pack("<HHII", 256, 4, 1, width) + data[at + 12 :]


def half(kind: str) -> bytes:
    data = saved(noise(64, 64), kind)
    return data[: len(data) // 2]


def webp_header(width: int, height: int) -> bytes:
    extended = b"\x10\0\0\0" + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBP" + b"VP8X" + struct.pack("<I", 10) + extended
    return b"RIFF" + struct.pack("<I", len(body)) + body


def zeros(nbytes: int) -> bytes:
    compressor, out = zlib.compressobj(1), []
    for _ in range(nbytes >> 20):
        out.append(compressor.compress(bytes(1 << 20)))
    return b"".join([*out, compressor.compress(bytes(nbytes % (1 << 20))), compressor.flush()])


def segment(marker: int, data: bytes) -> bytes:
    """A segment of a JPEG."""
    return bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + data


def ifd(entries: list[tuple[int, int, int, int]], data: bytes = b"") -> bytes:
    """A TIFF, or EXIF data: tags with their type, count, and value or place."""
    head = struct.pack("<2sHIH", b"II", 42, 8, len(entries))
    return head + b"".join(struct.pack("<HHII", *entry) for entry in sorted(entries)) + bytes(4) + data


def tiff_tags(width: int, height: int, compression: int = 1) -> list[tuple[int, int, int, int]]:
    return [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, compression), (262, 3, 1, 1)]


def many_tags(size: int) -> list[tuple[int, int, int, int]]:
    """Each has all bytes of the file for its value."""
    return [(40_000 + number, 7, size, 8) for number in range(2000)]


TOO_LARGE = "million fit"
TOO_MANY = "too many parts"
SIDE = 5900  # of the largest images that fit
NO_IMAGE = "no image of a known format"
DAMAGED = "damaged"


def webp(width: int, height: int) -> bytes:
    return saved(Image.new("RGBA", (width, height), (1, 2, 3, 4)), "WEBP", lossless=True, quality=0, method=0)


def gif_frame_beyond() -> bytes:
    data = saved(Image.new("P", (SIDE, SIDE), 1), "GIF")
    return data[:6] + struct.pack("<HH", 1, 1) + data[10:]


def large_tiff(mode: str) -> bytes:
    return saved(Image.new(mode, (SIDE, SIDE)), "TIFF", compression="tiff_adobe_deflate", tiffinfo={278: SIDE})


def large_jpeg(width: int, height: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return saved(Image.new("CMYK", (width, height), 7), "JPEG", progressive=True, exif=exif)


# Too large
add("png_100000_x_100000", TOO_LARGE, lambda: png(100_000, 100_000, zeros(1000)))
add("png_2_31_wide", TOO_LARGE, lambda: png((1 << 31) - 1, 1, b""))
add("png_20000_x_20000_bomb", TOO_LARGE, lambda: png(20_000, 20_000, zeros(1 << 24)))
add("png_40000_wide", TOO_LARGE, lambda: png(40_000, 10, zeros(40_000 * 30 + 10)))
add("bmp_60000_x_60000", TOO_LARGE, lambda: bmp_header(60_000, 60_000))
add("webp_16383_x_16383", "million fit|damaged|no image", lambda: webp_header(16_383, 16_383))
add(
    "gif_65535_x_65535",
    f"{TOO_LARGE}|{DAMAGED}|{NO_IMAGE}",
    lambda: b"GIF89a" + struct.pack("<HH", 65_535, 65_535) + b"\0\0\0;",
)
add("jpeg_65500_x_65500", TOO_LARGE, lambda: saved(noise(), "JPEG").replace(
    struct.pack(">HH", 12, 16), struct.pack(">HH", 65_500, 65_500), 1))  # fmt: skip
add("tiff_huge", f"{TOO_LARGE}|{DAMAGED}", lambda: tiff_width(4_000_000_000))
add("file_of_65_mib", "larger than 64 MiB", lambda: saved(noise()) + bytes(65 << 20))

# Large, and fine
add("png_5900_x_5900", (5900, 5900), lambda: png(5900, 5900, zeros(5900 * (4 * 5900 + 1)), color=6))
add("png_20000_wide", (20_000, 10), lambda: saved(noise(20_000, 10)))
add("png_20000_high", (10, 20_000), lambda: saved(noise(10, 20_000)))
add(
    "jpeg_5000_x_4000_progressive",
    (5000, 4000),
    lambda: saved(Image.new("RGB", (5000, 4000), 7), "JPEG", progressive=True),
)
add("png_16_bits_3000_x_3000", (3000, 3000), lambda: png(3000, 3000, zeros(3000 * 6001), bits=16, color=0))  # fmt: skip
add("webp_4400_x_4500", (4400, 4500), lambda: webp(4400, 4500))
add("webp_5900_x_5900_of_46_bytes", TOO_LARGE, lambda: webp(SIDE, SIDE))
add("gif_5900_x_5900", (SIDE, SIDE), lambda: saved(Image.new("P", (SIDE, SIDE), 1), "GIF", transparency=1))
add("gif_of_1_x_1_with_a_frame_of_5900_x_5900", (SIDE, SIDE), gif_frame_beyond)
add("tiff_of_floats_5900_x_5900", (SIDE, SIDE), lambda: large_tiff("F"))
add("tiff_cmyk_5900_x_5900", (SIDE, SIDE), lambda: large_tiff("CMYK"))
add("jpeg_4500_x_4400_cmyk_progressive_turned", (4400, 4500), lambda: large_jpeg(4500, 4400))
add("jpeg_5900_x_5900_cmyk_progressive", TOO_LARGE, lambda: large_jpeg(SIDE, SIDE))
add("png_5900_x_5900_with_a_transparent_color", (SIDE, SIDE), lambda: png(
    SIDE, SIDE, zeros(SIDE * (3 * SIDE + 1)), extra=chunk(b"tRNS", bytes(6))))  # fmt: skip


# Small
add("png_1_x_1", (1, 1), lambda: saved(noise(1, 1)))
add("jpeg_1_x_1", (1, 1), lambda: saved(noise(1, 1), "JPEG"))
add("png_0_x_0", "damaged|nothing to see|no image", lambda: png(0, 0, b""))
add("png_0_wide", "damaged|nothing to see|no image", lambda: png(0, 5, b""))
add("gif_0_x_0", "nothing to see|no image|damaged", lambda: b"GIF89a" + bytes(4) + b"\0\0\0;")

# Cut off, or changed
for _kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"):
    add(f"{_kind.lower()}_half", f"{DAMAGED}|{NO_IMAGE}", lambda kind=_kind: half(kind))
    add(
        f"{_kind.lower()}_20_bytes", f"{DAMAGED}|{NO_IMAGE}|nothing", lambda kind=_kind: saved(noise(64, 64), kind)[:20]
    )
    add(f"{_kind.lower()}_whole", (64, 64), lambda kind=_kind: saved(noise(64, 64), kind))
add("png_wrong_sums", DAMAGED + "|" + NO_IMAGE, lambda: saved(noise()).replace(b"IDAT", b"IDAX"))
add("png_without_data", DAMAGED, lambda: png(16, 16, b""))
add("png_short_data", DAMAGED, lambda: png(16, 16, zlib.compress(bytes(10))))
add("png_not_deflated", DAMAGED, lambda: png(16, 16, b"hello" * 20))
add("png_3_bits", f"{DAMAGED}|{NO_IMAGE}", lambda: png(16, 16, zlib.compress(bytes(999)), bits=3))
add("jpeg_noise_inside", "damaged|no image", lambda: saved(noise(64, 64), "JPEG")[:30] + bytes(range(256)) * 4)

# No images
add("empty", "empty", lambda: b"")
add("one_byte", NO_IMAGE, lambda: b"\x89")
add("text", NO_IMAGE, lambda: b"hello, world")
add("html", NO_IMAGE, lambda: b"<!doctype html><script>alert(1)</script>")
add("svg", NO_IMAGE, lambda: b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>')
add("pdf", NO_IMAGE, lambda: b"%PDF-1.7\n%%EOF")
add("postscript", NO_IMAGE, lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
add("zip", NO_IMAGE, lambda: b"PK\x03\x04" + bytes(100))
add("gguf", NO_IMAGE, lambda: b"GGUF\x03\0\0\0" + bytes(100))
add("icns", NO_IMAGE, lambda: b"icns" + struct.pack(">I", 16) + b"ic07" + struct.pack(">I", 8))
add("zeros", NO_IMAGE, lambda: bytes(1000))

# More than pixels


@hostile((8, 8))
def gif_of_3000_frames() -> bytes:
    frame = Image.new("P", (8, 8), 1)
    others = [Image.new("P", (8, 8), number % 7) for number in range(3000)]
    return saved(frame, "GIF", save_all=True, append_images=others)


@hostile((8, 8))
def apng() -> bytes:
    return saved(noise(8, 8), "PNG", save_all=True, append_images=[noise(8, 8).rotate(90)])


@hostile(f"{DAMAGED}|too large")
def png_text_bomb() -> bytes:
    text = chunk(b"zTXt", b"Comment\0\0" + zeros(100 << 20))
    return png(4, 4, zlib.compress(bytes(52)), extra=text)


@hostile(DAMAGED)
def png_icc_bomb() -> bytes:
    return png(4, 4, zlib.compress(bytes(52)), extra=chunk(b"iCCP", b"p\0\0" + zeros(20 << 20)))


@hostile((16, 12))
def png_with_profile() -> bytes:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return saved(noise(), icc_profile=profile)


@hostile((12, 16))
def jpeg_turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return saved(noise(), "JPEG", exif=exif)


@hostile((16, 12))
def jpeg_damaged_exif() -> bytes:
    return saved(noise(), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + bytes(range(200)))


@hostile((16, 12))
def jpeg_cmyk() -> bytes:
    return saved(noise(mode="CMYK"), "JPEG")


@hostile((16, 12))
def png_palette_transparent() -> bytes:
    return saved(noise(mode="P"), transparency=3)


@hostile((16, 12))
def png_many_texts() -> bytes:
    info = PngImagePlugin.PngInfo()
    for number in range(2000):
        info.add_text(f"k{number}", "v" * 100)
    return saved(noise(), pnginfo=info)


@hostile((16, 12))
def tiff_floats() -> bytes:
    values = np.random.default_rng(0).standard_normal((12, 16)).astype(np.float32)
    values[0, :3] = np.nan, np.inf, -np.inf
    return saved(Image.fromarray(values), "TIFF")


@hostile((16, 12))
def webp_transparent() -> bytes:
    return saved(noise(mode="RGBA"), "WEBP")


# Few bytes that ask for much


@hostile("too many scans")
def jpeg_of_500_scans() -> bytes:
    blocks = ((SIDE + 7) // 8) ** 2
    tables = segment(0xDB, bytes([0] + [1] * 64))
    tables += segment(0xC4, bytes([0x00, 1] + [0] * 16)) + segment(0xC4, bytes([0x10, 1] + [0] * 15 + [0xE0]))
    frame = segment(0xC2, struct.pack(">BHHB", 8, SIDE, SIDE, 1) + bytes([1, 0x11, 0]))
    first = segment(0xDA, bytes([1, 1, 0, 0, 0, 0])) + bytes((blocks + 7) // 8)
    scan = segment(0xDA, bytes([1, 1, 0, 1, 63, 0])) + bytes(blocks // 16384 * 2 + 3)  # runs of empty blocks
    return b"\xff\xd8" + tables + frame + first + scan * 500 + b"\xff\xd9"


@hostile((16, 12))
def jpeg_tags_many_times_its_size() -> bytes:
    data, parts = ifd(many_tags(100_000), bytes(80_000)), saved(noise(), "JPEG")
    exif = [segment(0xE1, b"Exif\0\0" + data[at : at + 60_000]) for at in range(0, len(data), 60_000)]
    return parts[:2] + b"".join(exif) + parts[2:]


@hostile((16, 12))
def webp_tags_many_times_its_size() -> bytes:
    return saved(noise(), "WEBP", exif=ifd(many_tags(1 << 20), bytes(1 << 20)))


@hostile("MiB of tags")
def tiff_tags_many_times_its_size() -> bytes:
    return ifd([*tiff_tags(4, 4), (273, 4, 1, 8), (279, 4, 1, 16), *many_tags(4 << 20)], bytes(4 << 20))


@hostile("MiB of tags")
def tiff_of_a_million_strips() -> bytes:
    strips = [(273, 4, 1_000_000, 200), (278, 4, 1, 1), (279, 4, 1_000_000, 200)]
    return ifd([*tiff_tags(1000, 30_000), *strips], bytes(4_000_200))


@hostile("tiles of 30000 x 30000")
def tiff_of_a_giant_tile() -> bytes:
    tiles = [(322, 4, 1, 30_000), (323, 4, 1, 30_000), (324, 4, 1, 400), (325, 4, 1, 1000)]
    return ifd([*tiff_tags(64, 64, 8), *tiles], zeros(2000).ljust(2000))


@hostile(TOO_MANY)
def gif_of_a_million_comments() -> bytes:
    data = saved(Image.new("P", (8, 8), 1), "GIF")
    return data[:13] + b"\x21\xfe\x01a\0" * 1_000_000 + data[13:]


@hostile(TOO_MANY)
def png_of_500000_chunks() -> bytes:
    return png(4, 4, zlib.compress(bytes(52)), extra=chunk(b"teSt", b"") * 500_000)


@hostile(TOO_MANY)
def jpeg_of_500000_comments() -> bytes:
    data = saved(noise(), "JPEG")
    return data[:2] + segment(0xFE, b"") * 500_000 + data[2:]


@hostile(TOO_MANY)
def bmp_of_two_million_runs() -> bytes:
    pixels = bytes([1, 5]) * 2_000_000 + b"\0\1"
    head = struct.pack("<IiiHHIIiiII", 40, 2000, 1000, 1, 8, 1, len(pixels), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 0, 0, 0, 54 + 1024) + head + bytes(1024) + pixels
