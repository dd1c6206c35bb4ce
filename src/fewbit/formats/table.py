"""Every format, one record each.

To add a format: write its record here and run `make emit`. The NumPy and native decoders and encoders, `fb.linear` on
every instruction set, the tests and the table in the docs all follow from it. For example, three bits in blocks of 32
with an f16 scale, the low two bits of the codes in `qs` and the third in `qh`:

    Format("q3_0", 32, (D, u8("qh", 4), u8("qs", 8)), ints(runs("qs", 2, 8), runs("qh", 1, 4), zero=4),
           rule="absmax_signed")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .spec import Factor, Format, Grid, Plane, Trits, every, ints, runs


def u8(name: str, count: int) -> tuple[str, str, int]:
    return name, "u8", count


D = ("d", "f16", 1)
M = ("m", "f16", 1)
DMIN = ("dmin", "f16", 1)

BINARY, TERNARY = "models trained with binary weights", "models trained with ternary weights"

FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the e2m1 values
NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

# Eight 6-bit scales and eight 6-bit mins in 12 bytes: the low four whole in bytes 0-3 (mins 4-7); of the high four, the
# low nibbles in bytes 8-11 (mins in the high half), the top two bits above the low four.
K6_SCALES = ints(
    every("scales", 6, 8, elements=(0, 4)),
    every("scales", 4, 8, start=64, elements=(4, 8)),
    every("scales", 2, 8, start=6, elements=(4, 8)),
)
K6_MINS = ints(
    every("scales", 6, 8, start=32, elements=(0, 4)),
    every("scales", 4, 8, start=68, elements=(4, 8)),
    every("scales", 2, 8, start=38, elements=(4, 8)),
)


def odd(*planes: Plane) -> Factor:
    """The scales of the grid formats: d * (2 * code + 1), in eighths."""
    return Factor("d", ints(*planes, times=2, zero=-1), 0.125)


def scalar(name: str, gguf: int | None, about: str = "plain numbers, one after another") -> Format:
    return Format(name, 1, (("x", name, 1),), rule="cast", gguf=gguf, about=about)


SCALARS = [
    scalar("f32", 0),
    scalar("f16", 1),
    scalar("bf16", 30),
    scalar("f8_e4m3", None, "8-bit floats up to 448, without infinities: for the KV cache"),
    scalar("f64", 28),
    scalar("i8", 24),
    scalar("i16", 25),
    scalar("i32", 26),
    scalar("i64", 27),
]

SIMPLE = [
    Format("q1_0", 128, (D, u8("qs", 16)), ints(runs("qs", 1, 1), times=2, zero=1), rule="mean", gguf=41,
           about="signs of 128 values and their mean magnitude", made_for=BINARY),
    Format("q2_0", 64, (D, u8("qs", 16)), ints(runs("qs", 2, 1), zero=1), rule="absmax", gguf=42,
           about="-1, 0, 1 and 2", made_for=TERNARY),
    Format("q4_0", 32, (D, u8("qs", 16)), ints(runs("qs", 4, 16), zero=8), rule="absmax_signed", gguf=2),
    Format("q4_1", 32, (D, M, u8("qs", 16)), ints(runs("qs", 4, 16)), offset=Factor("m"), rule="minmax", gguf=3),
    Format("q5_0", 32, (D, u8("qh", 4), u8("qs", 16)), ints(runs("qs", 4, 16), runs("qh", 1, 1), zero=16),
           rule="absmax_signed", gguf=6),
    Format("q5_1", 32, (D, M, u8("qh", 4), u8("qs", 16)), ints(runs("qs", 4, 16), runs("qh", 1, 1)),
           offset=Factor("m"), rule="minmax", gguf=7),
    Format("q8_0", 32, (D, u8("qs", 32)), ints(runs("qs", 8, 32), signed=True), rule="absmax", gguf=8),
    Format("q8_1", 32, (D, ("s", "f16", 1), u8("qs", 32)), ints(runs("qs", 8, 32), signed=True), rule="absmax",
           sums=("s", 32), gguf=9, about="q8_0 with the sum of the block, for activations"),
    Format("tq1_0", 256, (u8("qs", 52), D), Trits("qs", ((0, 32, 5), (32, 16, 5), (48, 4, 4))), rule="absmax", gguf=34,
           about="-1, 0 and 1, five in a byte", made_for=TERNARY),
    Format("tq2_0", 256, (u8("qs", 64), D), ints(runs("qs", 2, 32), zero=1), rule="absmax", gguf=35,
           about="-1, 0 and 1", made_for=TERNARY),
    Format("mxfp4", 32, (("e", "e8m0", 1), u8("qs", 16)), ints(runs("qs", 4, 16)), Factor("e"), codebook=FP4,
           rule="mxfp4", gguf=39, about="4-bit floats, power-of-two scales"),
    Format("nvfp4", 64, (("d", "ue4m3", 4), u8("qs", 32)), ints(runs("qs", 4, 8)), group=16, codebook=FP4, gguf=40,
           about="4-bit floats, 8-bit float scales"),
    Format("iq4_nl", 32, (D, u8("qs", 16)), ints(runs("qs", 4, 16)), codebook=NL, gguf=20, about="uneven steps"),
]  # fmt: skip

SUPER = [
    Format("q2_k", 256, (u8("scales", 16), u8("qs", 64), D, DMIN), ints(runs("qs", 2, 32)),
           Factor("d", ints(every("scales", 4, 8))), Factor("dmin", ints(every("scales", 4, 8, start=4))), -1, 16,
           gguf=10),
    Format("q3_k", 256, (u8("hmask", 32), u8("qs", 64), u8("scales", 12), D),
           ints(runs("qs", 2, 32), runs("hmask", 1, 32), zero=4),
           Factor("d", ints(runs("scales", 4, 8), runs("scales", 2, 4, start=64), zero=32)), group=16, gguf=11),
    Format("q4_k", 256, (D, DMIN, u8("scales", 12), u8("qs", 128)), ints(runs("qs", 4, 32)),
           Factor("d", K6_SCALES), Factor("dmin", K6_MINS), -1, 32, gguf=12),
    Format("q5_k", 256, (D, DMIN, u8("scales", 12), u8("qh", 32), u8("qs", 128)),
           ints(runs("qs", 4, 32), runs("qh", 1, 32)), Factor("d", K6_SCALES), Factor("dmin", K6_MINS), -1, 32,
           gguf=13),
    Format("q6_k", 256, (u8("ql", 128), u8("qh", 64), u8("scales", 16), D),
           ints(runs("ql", 4, 64), runs("qh", 2, 32), zero=32),
           Factor("d", ints(every("scales", 8, 8), signed=True)), group=16, gguf=14),
    Format("q8_k", 256, (("d", "f32", 1), u8("qs", 256), ("bsums", "i16", 16)), ints(runs("qs", 8, 32), signed=True),
           rule="q8_k", sums=("bsums", 16), gguf=15, about="for activations"),
    Format("iq4_xs", 256, (D, u8("scales_h", 2), u8("scales_l", 4), u8("qs", 128)), ints(runs("qs", 4, 16)),
           Factor("d", ints(every("scales_l", 4, 4), every("scales_h", 2, 2), zero=32)), group=32, codebook=NL,
           gguf=23, about="uneven steps"),
]  # fmt: skip

GRIDS = [
    Format("iq1_s", 256, (D, u8("qs", 32), u8("qh", 16)),
           Grid("iq1", ints(every("qs", 8, 8), Plane("qh", 3, ((4, 3), (0, 16)))), 8,
                shift=ints(every("qh", 1, 16, start=15)), shift_every=32),
           odd(every("qh", 3, 16, start=12)), group=32, gguf=19),
    Format("iq1_m", 256, (u8("qs", 32), u8("qh", 16), u8("scales", 8)),
           Grid("iq1", ints(every("qs", 8, 8), every("qh", 3, 4)), 8,
                shift=ints(every("qh", 1, 4, start=3)), shift_every=8),
           Factor(ints(*(every("scales", 4, 0, start=s) for s in (12, 28, 44, 60))),
                  ints(Plane("scales", 3, ((4, 3), (0, 16))), times=2, zero=-1), 0.125), group=16, gguf=29),
    Format("iq2_xxs", 256, (D, u8("qs", 64)),
           Grid("iq2_xxs", ints(Plane("qs", 8, ((4, 8), (0, 64)))), 8,
                signs=ints(Plane("qs", 7, ((4, 7), (0, 64)), start=32))),
           odd(every("qs", 4, 64, start=60)), group=32, gguf=16),
    Format("iq2_xs", 256, (D, u8("qs", 64), u8("scales", 8)),
           Grid("iq2_xs", ints(every("qs", 9, 16)), 8, signs=ints(every("qs", 7, 16, start=9))),
           odd(every("scales", 4, 4)), group=16, gguf=17),
    Format("iq2_s", 256, (D, u8("qs", 32), u8("signs", 32), u8("qh", 8), u8("scales", 8)),
           Grid("iq2_s", ints(every("qs", 8, 8), every("qh", 2, 2)), 8, signs=ints(every("signs", 8, 8))),
           odd(every("scales", 4, 4)), group=16, gguf=22),
    Format("iq3_xxs", 256, (D, u8("qs", 64), u8("signs", 32)),
           Grid("iq3_xxs", ints(every("qs", 8, 8)), 4, signs=ints(Plane("signs", 7, ((4, 7), (0, 32))))),
           Factor("d", ints(every("signs", 4, 32, start=28), times=2, zero=-1), 0.25), group=32, gguf=18),
    Format("iq3_s", 256, (D, u8("qs", 64), u8("qh", 8), u8("signs", 32), u8("scales", 4)),
           Grid("iq3_s", ints(every("qs", 8, 8), every("qh", 1, 1)), 4, signs=ints(every("signs", 8, 8))),
           Factor("d", ints(every("scales", 4, 4), times=2, zero=-1)), group=32, gguf=21),
]  # fmt: skip


def int8(per: str = "row") -> Format:
    """Signed bytes; one scale, max|x| / 127, for each row or for the whole tensor."""
    return Format(
        "int8" if per == "row" else f"int8:per={per}", 0, (u8("qs", 1), ("scale", "f32", 1)),
        ints(every("qs", 8, 8), signed=True), Factor("scale"), rule="absmax", placement="row",
        per_tensor=per == "tensor", about="signed bytes, a scale for each row, or `per=tensor`",
    )  # fmt: skip


def int8_affine(per: str = "row") -> Format:
    """Unsigned bytes; a scale and a zero point for each row or for the whole tensor."""
    return Format(
        "int8_affine" if per == "row" else f"int8_affine:per={per}", 0,
        (u8("qs", 1), ("scale", "f32", 1), u8("zero", 1)), ints(every("qs", 8, 8)), Factor("scale"),
        Factor("scale", ints(every("zero", 8, 8))), -1, rule="zero_point", placement="row",
        per_tensor=per == "tensor", about="bytes, a scale and a zero point for each row, or `per=tensor`",
    )  # fmt: skip


def int4(block: int = 32) -> Format:
    """Nibbles; (x - min) / scale for each block of `block` values (any even number)."""
    return Format(
        "int4" if block == 32 else f"int4:block={block}", block, (u8("qs", 1), ("scale", "f32", 1), ("min", "f32", 1)),
        ints(runs("qs", 4, 16)), Factor("scale"), Factor("min"), 1, block, rule="minmax", placement="row",
        about="a scale and a min for each `block` of 32 (any even number)",
    )  # fmt: skip


def int4_group(group: int = 32, zero: bool = False, scale: str = "f32") -> Format:
    """Nibbles of -8..7 in groups of 32, 64 or 128; scale max|x| / 7, or with a zero point; scales in f32 or f16."""
    options = [f"group={group}"] * (group != 32) + ["zero=true"] * zero + [f"scale={scale}"] * (scale != "f32")
    return Format(
        "int4_group" + (":" + ",".join(options) if options else ""), group,
        (u8("qs", 1), ("scale", scale, 1)) + ((u8("zero", 1),) if zero else ()), ints(runs("qs", 4, 16), zero=8),
        Factor("scale"), Factor("scale", ints(every("zero", 8, 8), signed=True)) if zero else None, -1, group,
        rule="zero_point" if zero else "absmax", placement="row",
        about="-8..7, a scale for each `group` of 32, 64 or 128; `zero=true`, `scale=f16`",
    )  # fmt: skip


# Families: formats with options. Option -> its allowed values, or the type of a free one.
FAMILIES: dict[str, tuple[Callable[..., Format], dict[str, Any]]] = {
    "int8": (int8, {"per": ("row", "tensor")}),
    "int8_affine": (int8_affine, {"per": ("row", "tensor")}),
    "int4": (int4, {"block": int}),
    "int4_group": (int4_group, {"group": (32, 64, 128), "zero": (False, True), "scale": ("f32", "f16")}),
}

# What native code is built for: every record, and each family in every shape of its fields.
NATIVE_VARIANTS = [int4_group(scale="f16"), int4_group(zero=True), int4_group(zero=True, scale="f16")]

FORMATS = [*SCALARS, *SIMPLE, *SUPER, *GRIDS, int8(), int8_affine(), int4(), int4_group()]
