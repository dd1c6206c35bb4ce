"""What a block format is.

A format is one record (`table.py` holds them all): fields of bytes, small integers that lie in those fields as bit
planes, and a scale and perhaps an offset for each group of values:

    value = code * scale + offset

Nothing here computes; `decode.py`, `encode.py` and `emit.py` read the records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from .grids import LEVELS

K_BLOCK = 256  # values of a row that a kernel handles at once; row-placed formats and activations are counted in it
GRANULE = 32  # rows of row-placed formats are padded to a multiple of this many values

FIELD_BYTES = {
    "u8": 1, "e8m0": 1, "ue4m3": 1, "i8": 1, "f8_e4m3": 1,
    "f16": 2, "bf16": 2, "i16": 2,
    "f32": 4, "i32": 4, "f64": 8, "i64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Plane:
    """`bits` bits of every small integer, stored in `field`.

    An element's number is read in digits, fastest first: `digits` holds (size, stride in bits) for each, and the last
    one has no limit. Its bits begin at bit `start + sum(digit * stride)` of the field. A plane may belong to some
    elements only: those in `range(*elements)`, and they are counted from the first of them.
    """

    field: str
    bits: int
    digits: tuple[tuple[int, int], ...]
    start: int = 0
    elements: tuple[int, int] | None = None

    def bit(self, i: int) -> int:
        """Where element i begins, in bits from the start of the field."""
        i -= self.elements[0] if self.elements else 0
        bit = self.start
        for size, stride in self.digits[:-1]:
            bit += i % size * stride
            i //= size
        return bit + i * self.digits[-1][1]

    def holds(self, i: int) -> bool:
        return self.elements is None or self.elements[0] <= i < self.elements[1]


def runs(field: str, bits: int, run: int, start: int = 0) -> Plane:
    """The usual plane: runs of `run` bytes, each holding `8 // bits` runs of elements, lowest bits first.

    With `per = 8 // bits`, element i is in byte `i // (run * per) * run + i % run` at bit `bits * (i // run % per)`.
    """
    per = 8 // bits
    return Plane(field, bits, ((run, 8), (per, bits), (0, 8 * run)), start)


def every(field: str, bits: int, stride: int, start: int = 0, elements: tuple[int, int] | None = None) -> Plane:
    """A plane whose elements follow each other every `stride` bits."""
    return Plane(field, bits, ((0, stride),), start, elements)


@dataclass(frozen=True)
class Integers:
    """Small integers. The planes that hold an element are joined lowest bits first; value = times * code - zero."""

    planes: tuple[Plane, ...]
    zero: int = 0
    times: int = 1
    signed: bool = False  # two's complement

    @property
    def bits(self) -> int:
        return sum(p.bits for p in self.planes if p.holds(0))

    @property
    def range(self) -> tuple[int, int]:
        """The lowest and the highest value."""
        if self.signed:
            return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1
        return -self.zero, self.times * ((1 << self.bits) - 1) - self.zero


def ints(*planes: Plane, zero: int = 0, times: int = 1, signed: bool = False) -> Integers:
    return Integers(planes, zero, times, signed)


@dataclass(frozen=True)
class Trits:
    """Digits of base 3, five or four in a byte, highest first; value = digit - 1.

    `parts` holds (first byte, bytes, digits a byte): digit n of byte b of a part is its element n * bytes + b.
    """

    field: str
    parts: tuple[tuple[int, int, int], ...]
    range = (-1, 1)


@dataclass(frozen=True)
class Grid:
    """Codes picked eight or four at a time from a list of points (`grids.py`), then given signs or a shift.

    `signs` are 8 bits for 8 codes, or 7 bits whose parity is the eighth. With `shift` (one bit for every
    `shift_every` codes) a code is `8 * point + 1`, or `8 * point - 1` where the bit is set.
    """

    points: str
    index: Integers
    width: int
    signs: Integers | None = None
    shift: Integers | None = None
    shift_every: int = 0

    @property
    def range(self) -> tuple[int, int]:
        low, high = min(LEVELS[self.points]), max(LEVELS[self.points])
        return (8 * low - 1, 8 * high + 1) if self.shift else (-high, high)


@dataclass(frozen=True)
class Factor:
    """A number for every group: a float field, times small integers where there are some, times a power of two.

    `field` may be Integers: the 16 bits of an f16 that lie apart.
    """

    field: str | Integers
    ints: Integers | None = None
    unit: float = 1.0


Rule = Literal["cast", "absmax", "absmax_signed", "minmax", "zero_point", "mean", "mxfp4", "q8_k", "search"]


@dataclass(frozen=True)
class Format:
    """One block format: value = code * scale + offset, with a scale and an offset for each group.

    Attributes:
        name: Its name, options included.
        block: Values of a block.
        fields: Name, type and count of each field, in file order.
        codes: Where the codes are. None for plain numbers.
        scale: Where the scales are.
        offset: Where the offsets are, if there are any.
        offset_sign: -1 if offsets are subtracted.
        group: Values that share a scale and an offset. 0 for a whole row.
        codebook: The values that codes stand for, if they are not the codes themselves.
        rule: How the encoder finds scales. With importance weights it always searches.
        sums: Field that holds sums of the codes, and of how many values.
        gguf: Number of the type in GGUF files.
        placement: "block" keeps the fields of a block together, as in GGUF files. "row" keeps each field together for a
            whole row: the codes, padded to 32 values, then the scales, then the offsets.
        per_tensor: One scale for all rows.
        about: A few words for the list of formats.
    """

    name: str
    block: int
    fields: tuple[tuple[str, str, int], ...]  # (name, type, count), in file order
    codes: Integers | Grid | Trits | None = None  # None: the only field is the value
    scale: Factor = Factor("d")
    offset: Factor | None = None
    offset_sign: int = 1
    group: int = 0
    codebook: tuple[int, ...] | None = None
    rule: Rule = "search"
    sums: tuple[str, int] | None = None  # field that holds the sum of the codes of every so many values
    gguf: int | None = None  # number of the type in GGUF files
    placement: Literal["block", "row"] = "block"
    per_tensor: bool = False  # one scale for all rows (it is stored in each)
    about: str = field(default="", compare=False)
    made_for: str = field(default="", compare=False)  # the only models that it suits

    def __post_init__(self) -> None:
        if self.placement == "block" and self.group == 0:
            object.__setattr__(self, "group", self.block)

    def __hash__(self) -> int:
        return hash(self.name)  # many look one up in every step

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Format({self.name}, {self.bits_per_weight:.4g} bits a weight)"

    @cached_property
    def native_name(self) -> str:
        """The name in C++: options that change the fields are part of it, sizes are not.

        >>> from fewbit.formats import get
        >>> get("int4_group:group=64,zero=true").native_name
        'int4_group_zero'
        """
        family, _, options = self.name.partition(":")
        shape = [option.partition("=") for option in options.split(",") if option]
        return "_".join([family, *("zero" if k == "zero" else v for k, _, v in shape if k in ("zero", "scale"))])

    @property
    def description(self) -> str:
        """What is special about it, and for which models it is if not for all.

        >>> from fewbit.formats import get
        >>> get("tq2_0").description
        '-1, 0 and 1; for models trained with ternary weights'
        """
        return "; for ".join(text for text in (self.about, self.made_for) if text)

    @property
    def is_scalar(self) -> bool:
        return self.codes is None

    @property
    def is_file_format(self) -> bool:
        return self.gguf is not None

    @property
    def block_bytes(self) -> int:
        """Bytes of a block (block placement)."""
        return sum(FIELD_BYTES[kind] * count for _, kind, count in self.fields)

    def field_offset(self, name: str) -> int:
        """Byte in the block where a field begins (block placement)."""
        at = 0
        for field_name, kind, count in self.fields:
            if field_name == name:
                return at
            at += FIELD_BYTES[kind] * count
        raise KeyError(name)

    def field_type(self, name: str) -> str:
        return next(kind for field_name, kind, _ in self.fields if field_name == name)

    @property
    def code_bits(self) -> dict[str, int]:
        """Field -> bits of a code that lie in it."""
        return {p.field: p.bits for p in self.codes.planes} if isinstance(self.codes, Integers) else {}

    @property
    def code_range(self) -> tuple[int, int]:
        """The lowest and the highest number that is multiplied by the scale."""
        if self.codebook:
            return min(self.codebook), max(self.codebook)
        assert self.codes is not None
        return self.codes.range

    def groups(self, k: int) -> int:
        """Groups in a row of k values."""
        return -(-k // self.group) if self.group else min(k, 1)

    def row_fields(self, k: int) -> dict[str, tuple[int, int]]:
        """Field -> (first byte, bytes) in a row of k values (row placement)."""
        at, out = 0, {}
        padded = -(-k // GRANULE) * GRANULE
        for name, kind, _ in self.fields:
            bits = self.code_bits.get(name)
            size = self.groups(k) * FIELD_BYTES[kind] if bits is None else padded * bits // 8
            out[name] = (at, size)
            at += size
        return out

    def row_bytes(self, k: int) -> int:
        """Bytes of a row of k values; the last block is padded.

        >>> from fewbit.formats import get
        >>> get("q4_0").row_bytes(64)
        36
        """
        if self.placement == "row":
            return sum(size for _, size in self.row_fields(k).values())
        return -(-k // self.block) * self.block_bytes

    @property
    def bits_per_weight(self) -> float:
        """Bits a value in a long row.

        >>> from fewbit.formats import get
        >>> get("q4_k").bits_per_weight
        4.5
        """
        if self.placement == "block":
            return 8 * self.block_bytes / self.block
        codes = self.code_bits
        per_group = sum(8 * FIELD_BYTES[kind] for name, kind, _ in self.fields if name not in codes)
        return sum(codes.values()) + (per_group / self.group if self.group else 0)
