"""Packed rows to test with."""

from __future__ import annotations

import numpy as np

from fewbit.arrays import Bytes
from fewbit.formats import Format, get
from fewbit.formats.table import FORMATS, NATIVE_VARIANTS

# Every format, and the families in shapes that take other ways through the code.
ALL = [*FORMATS, *NATIVE_VARIANTS] + [
    get(name)
    for name in (
        "int8:per=tensor",
        "int8_affine:per=tensor",
        "int4:block=6",
        "int4:block=16",
        "int4:block=64",
        "int4:block=96",
        "int4_group:group=64",
        "int4_group:group=128,zero=true,scale=f16",
    )
]
PACKED = [f for f in ALL if not f.is_scalar]
ISAS = ["amx", "avx512", "avx512bw", "avx2", "neon_i8mm", "neon_dotprod", "neon", "scalar"]

SCALES = {
    "f16": lambda r, shape: (r.uniform(0.001, 0.01, shape)).astype("<f2"),
    "f32": lambda r, shape: (r.uniform(0.001, 0.01, shape)).astype("<f4"),
    "f64": lambda r, shape: r.standard_normal(shape),
    "bf16": lambda r, shape: r.integers(0x3C00, 0x3D00, shape).astype("<u2"),
    "f8_e4m3": lambda r, shape: (r.integers(0x18, 0x38, shape) + r.choice([0, 0x80], shape)).astype("u1"),
    "e8m0": lambda r, shape: r.integers(115, 122, shape).astype("u1"),
    "ue4m3": lambda r, shape: r.integers(20, 60, shape).astype("u1"),
}


def random_bytes(fmt: Format, n: int, k: int, seed: int = 0) -> Bytes:
    """Any bytes at all: NaN, infinite and subnormal scales too."""
    return np.random.default_rng(seed).integers(0, 256, (n, fmt.row_bytes(k)), dtype=np.uint8)


def random_rows(fmt: Format, n: int, k: int, seed: int = 0) -> Bytes:
    """Random codes with scales of about one size, so that sums can be compared."""
    rng = np.random.default_rng(seed)
    data = random_bytes(fmt, n, k, seed)
    if data.size == 0:
        return data
    if fmt.placement == "row":
        for name, kind, _ in fmt.fields:
            at, size = fmt.row_fields(k)[name]
            _put(rng, data[:, at : at + size], "u8" if name in fmt.code_bits else kind)
        return data
    blocks = data.reshape(n, -1, fmt.block_bytes)
    for name, kind, count in fmt.fields:
        at = fmt.field_offset(name)
        _put(rng, blocks[..., at : at + len(SCALES.get(kind, _no)(rng, (count,)).tobytes())], kind)
    if fmt.name == "iq1_m":  # its f16 scale lies in the top nibbles of the last bytes
        blocks[..., 49::2] = blocks[..., 49::2] & 15 | np.array([0x10, 0xA0, 0x00, 0x20], np.uint8)
    return data


def _no(_rng: np.random.Generator, _shape: tuple[int, ...]) -> Bytes:
    return np.zeros(0, np.uint8)


def _put(rng: np.random.Generator, where: Bytes, kind: str) -> None:
    if kind in SCALES and where.size:
        width = SCALES[kind](rng, (1,)).itemsize
        values = SCALES[kind](rng, (*where.shape[:-1], where.shape[-1] // width))
        where[...] = values.view(np.uint8).reshape(where.shape)
