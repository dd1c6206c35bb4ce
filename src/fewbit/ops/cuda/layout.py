"""How a format lies on a GPU: as in files, or in tiles, whose sizes follow from its record."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ...formats.spec import FIELD_BYTES, GRANULE, Format, Integers

ROWS, GRANULES = 16, 4  # tensors are padded to whole pairs of row tiles, and to whole tiles along k


@dataclass(frozen=True)
class TileLayout:
    """Bytes a granule of 32 values takes in each plane, and of each float scale."""

    q0: int
    q1: int
    smalls: int
    scale: int  # of one float scale, with the offset's float
    per: int  # granules that share it; 0: a row

    @property
    def is_light(self) -> bool:
        """Whether codes are nibbles, and nothing else: registers hold many of them."""
        return self.q0 == 16 and not self.q1

    def sizes(self, n: int, k: int) -> tuple[int, int, int, int]:
        """Bytes of the four planes of n rows of k values."""
        rows, columns = padded(n, ROWS), tile_columns(k)
        granules = rows * columns * GRANULES
        if self.per == 0:
            scales = rows
        elif self.per < GRANULES:
            scales = granules // self.per
        else:
            scales = rows * -(-columns // (self.per // GRANULES))
        return granules * self.q0, granules * self.q1, granules * self.smalls, scales * self.scale


def padded(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def tile_columns(k: int) -> int:
    """Tiles along a row of k values.

    >>> tile_columns(128), tile_columns(129)
    (1, 2)
    """
    return max(1, -(-k // (GRANULE * GRANULES)))


@cache
def tile_layout(fmt: Format) -> TileLayout | None:
    """The tiles of a format; None: it stays as it lies in files.

    >>> from fewbit.formats import get
    >>> tile_layout(get("q4_k"))
    TileLayout(q0=16, q1=0, smalls=2, scale=4, per=8)
    """
    if not isinstance(fmt.codes, Integers) or not isinstance(fmt.scale.field, str):
        return None
    halves = fmt.group == GRANULE // 2
    scale_ints, offset_ints = fmt.scale.ints, fmt.offset.ints if fmt.offset else None
    own_offset = fmt.offset is not None and fmt.offset.field != fmt.scale.field
    if halves and (fmt.placement == "row" or (own_offset and not scale_ints)):
        return None
    every = fmt.block if fmt.placement == "block" and scale_ints else fmt.group
    per = 1 if halves and not scale_ints else every // GRANULE
    if fmt.group and not halves and (every % GRANULE or (per not in (1, 2) and per % GRANULES)):
        return None
    bits = fmt.codes.bits
    first = next(p for p in (8, 4, 2, 1) if bits >= p)
    real = FIELD_BYTES[fmt.field_type(fmt.scale.field)] * (2 if halves and not scale_ints else 1)
    both = bool(scale_ints and offset_ints and scale_ints.bits + offset_ints.bits > 8)
    smalls = (2 if halves else 1) * (2 if both else 1) if scale_ints or offset_ints else 0
    return TileLayout(4 * first, 4 * (bits - first), smalls, real * (2 if own_offset else 1), per)


def row_fields(fmt: Format, k: int) -> tuple[int, int, int]:
    """Bytes of a row, and where the fields after the codes begin (row placement), as kernels take them."""
    if fmt.placement == "block":
        return fmt.row_bytes(k), 0, 0
    at = [first for name, (first, _) in fmt.row_fields(k).items() if name not in fmt.code_bits]
    return fmt.row_bytes(k), at[0], at[1] if len(at) > 1 else 0
