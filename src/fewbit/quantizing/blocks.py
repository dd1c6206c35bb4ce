"""Codes and floats of packed blocks, read and written apart."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..arrays import Bytes, Floats, Ints
from ..formats import Format
from ..formats.decode import read_factor
from ..formats.pack import book_index, write_ints, write_trits
from ..formats.spec import Factor, Integers, Trits


def write_codes(fmt: Format, fields: Mapping[str, Bytes], codes: Ints) -> None:
    """Other codes into fields, which are views of packed bytes."""
    if isinstance(fmt.codes, Trits):
        write_trits(fmt.codes, dict(fields), codes)
        return
    assert isinstance(fmt.codes, Integers)
    for plane in fmt.codes.planes:
        fields[plane.field][:] = 0
    write_ints(fmt.codes, dict(fields), book_index(fmt, codes) if fmt.codebook else codes)


def factors(fmt: Format, fields: Mapping[str, Bytes]) -> tuple[Floats, Floats]:
    """The scale and the offset of each value."""
    scale = _of_values(fmt, fmt.scale, fields)
    if fmt.offset is None:
        return scale, np.zeros_like(scale)
    return scale, np.float32(fmt.offset_sign) * _of_values(fmt, fmt.offset, fields)


def _of_values(fmt: Format, factor: Factor, fields: Mapping[str, Bytes]) -> Floats:
    return np.repeat(read_factor(fmt, factor, dict(fields), fmt.block // fmt.group), fmt.group, axis=1)


def scalable(fmt: Format) -> list[str]:
    """The f16 fields that all scales, or all offsets, of a block are multiplied by.

    >>> from fewbit.formats import get
    >>> [scalable(get(name)) for name in ("q4_k", "q8_0", "iq1_m", "mxfp4")]
    [['d', 'dmin'], ['d'], [], []]
    """
    found = [factor.field for factor in (fmt.scale, fmt.offset) if factor is not None]
    names = [name for name in found if isinstance(name, str)]
    kinds = {name: (kind, count) for name, kind, count in fmt.fields}
    return names if len(names) == len(found) and all(kinds[name] == ("f16", 1) for name in names) else []
