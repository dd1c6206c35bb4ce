"""The range of numbers that a format can hold, and which numbers overflowed."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from ..arrays import Bytes, Floats
from .decode import decode, read_floats, read_ints, split
from .pack import small_floats
from .spec import Factor, Format, Integers

_MOST = {"f8_e4m3": 448.0, "f16": 65504.0, "bf16": 3.3895e38, "f32": 3.4028e38, "f64": np.inf}  # of a float field


@cache
def limits(fmt: Format) -> tuple[float, float]:
    """The least and the greatest number that the format can hold.

    >>> from fewbit.formats import get
    >>> limits(get("q8_0")), limits(get("q4_1"))
    ((-8319008.0, 8319008.0), (-65504.0, 1048064.0))
    """
    if fmt.is_scalar:
        most = _MOST.get(fmt.fields[0][1], np.inf)
        return -most, most
    low, high = fmt.code_range
    if isinstance(fmt.codes, Integers) and fmt.codes.signed:
        low = -high  # as the encoders have it
    scale = _most(fmt, fmt.scale)
    if fmt.offset is None:
        most = max(-low, high) * scale
        return -most, most
    if fmt.offset.field == fmt.scale.field:  # a zero point
        assert fmt.offset.ints
        zero_low, zero_high = fmt.offset.ints.range
        return scale * (low - zero_high), scale * (high - zero_low)
    offset = _most(fmt, fmt.offset)
    return -offset, high * scale + (offset if fmt.offset_sign > 0 else 0)


def is_safe(fmt: Format, most: float) -> bool:
    """Whether no scale, offset or sum overflows where no number is greater than `most`."""
    if fmt.is_scalar:
        return most <= limits(fmt)[1]
    kinds = {kind for _, kind, _ in fmt.fields} | ({"f16"} if isinstance(fmt.scale.field, Integers) else set())
    return most <= (_MOST["f16"] / (fmt.sums[1] if fmt.sums else 1) if "f16" in kinds else 2.0**126)


def overflows(fmt: Format, x: Floats, packed: Bytes) -> npt.NDArray[np.bool_]:
    """Which finite numbers of x, (n, k), were packed with a scale, an offset or a sum that is infinite, or as large
    as can be stored.

    >>> from fewbit.formats import get
    >>> from fewbit.formats.encode import encode
    >>> x = np.full((1, 32), 1e6, np.float32)
    >>> bool(overflows(get("q4_0"), x, encode(get("q4_0"), x)).all())
    True
    """
    n, k = x.shape
    bad = ~np.isfinite(decode(fmt, packed, k))
    if fmt.is_scalar or not n or not k:
        return bad & np.isfinite(x)
    fields = [(kind, read_floats(_field(fmt, name, packed, k), kind))
              for name, kind, _ in fmt.fields if kind in ("f16", "ue4m3")]  # fmt: skip
    if isinstance(fmt.scale.field, Integers):
        blocks = split(fmt, np.ascontiguousarray(packed).reshape(-1, fmt.block_bytes))
        fields.append(
            ("f16", read_ints(fmt.scale.field, blocks, 1).astype(np.uint16).view(np.float16).astype(np.float32))
        )
    for kind, numbers in fields:
        each = fmt.block * n * -(-k // fmt.block) // numbers.size  # values that share a number
        is_top = ~(abs(numbers) < _greatest(kind))
        bad |= np.repeat(is_top.reshape(n, -1), each, axis=1)[:, :k]
    return bad


def _field(fmt: Format, name: str, packed: Bytes, k: int) -> Bytes:
    if fmt.placement == "row":
        at, size = fmt.row_fields(k)[name]
        return packed[:, at : at + size]
    return split(fmt, np.ascontiguousarray(packed).reshape(-1, fmt.block_bytes))[name]


def _greatest(kind: str) -> float:
    return _MOST.get(kind) or float(small_floats(kind).max())


def _most(fmt: Format, factor: Factor) -> float:
    """The greatest scale or offset."""
    kind = fmt.field_type(factor.field) if isinstance(factor.field, str) else "f16"
    low, high = factor.ints.range if factor.ints else (0, 1)
    return _greatest(kind) * max(-low, high) * factor.unit
