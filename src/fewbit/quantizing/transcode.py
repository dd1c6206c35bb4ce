"""Integers with scales, as checkpoints have them, into the blocks of GGUF files that hold the same integers."""

from __future__ import annotations

import numpy as np

from ..arrays import Bytes
from ..formats import Format
from ..formats.decode import read_codes, read_factor
from ..formats.pack import Found, pack
from ..formats.spec import FIELD_BYTES, Integers
from ..tensor import QuantTensor


def can_transcode(source: Format, target: Format) -> bool:
    """Whether the codes of a format are those of another, so that only scales are rounded."""
    is_plain = isinstance(source.codes, Integers) and isinstance(target.codes, Integers)
    names = (source.native_name.removesuffix("_f16"), target.name)
    return is_plain and names in (("int4_group", "q4_0"), ("int4_group_zero", "q4_1"), ("int8", "q8_0"))


def transcode(rows: QuantTensor, target: Format) -> Bytes:
    """The same codes in another format. Scales become f16; so do offsets, which are products of a scale and an integer.

    >>> import fewbit as fb
    >>> w = fb.quantize(np.arange(128, dtype=np.float32).reshape(1, 128), "int4_group:scale=f16")
    >>> made = QuantTensor.from_bytes(transcode(w, fb.format("q4_0")), w.shape, "q4_0")
    >>> bool((made.dequantize() == w.dequantize()).all())
    True
    """
    fmt, (n, k) = rows.format, rows.shape
    data = rows.data.reshape(n, -1)
    fields = {name: data[:, at : at + size] for name, (at, size) in fmt.row_fields(k).items()}
    codes = read_codes(fmt, fields, k)
    repeats = k // target.block // fmt.groups(k)
    scale = np.repeat(read_factor(fmt, fmt.scale, fields, fmt.groups(k)), repeats, axis=1).reshape(-1, 1)
    offset = None
    if fmt.offset:
        zero = np.repeat(read_factor(fmt, fmt.offset, fields, fmt.groups(k)), repeats, axis=1).reshape(-1, 1)
        offset, codes = -(zero + 8 * scale), codes + 8
    found = Found(codes.reshape(-1, target.block), scale, offset)
    parts = pack(target, found, {name: FIELD_BYTES[kind] * count for name, kind, count in target.fields})
    return np.concatenate([parts[name] for name, _, _ in target.fields], axis=1).reshape(-1)
