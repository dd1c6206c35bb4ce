"""What formats lose of ordinary weights, beside the bits that they take."""

from __future__ import annotations

from functools import cache

import fewbit as fb
from fewbit.bench.formats import gaussian, relative_rmse, weight_formats
from fewbit.formats import Format
from fewbit.formats.table import NATIVE_VARIANTS

FORMATS = [*weight_formats(), *NATIVE_VARIANTS]
ORDINARY = [fmt for fmt in FORMATS if not fmt.made_for]
TOLERANCE = 1.17  # a format may lose so many times what the best one with fewer bits loses

# Formats that lose more, and why.
EXCEPTIONS = {
    "int4": "the scale and the min of 32 values are f32, 2 of its 6 bits, and codes are those of plain min and max",
    "int4_group": "the scale of 32 values is f32, 1 of its 5 bits, and max|x| / 7 leaves the code -8 unused",
    "int4_group:scale=f16": "max|x| / 7 leaves the code -8 unused",
    "f8_e4m3": "floats keep small values well and large ones badly; it is for K and V",
    "q8_k": "one scale for 256 values; it is for activations",
}


@cache
def loss(fmt: Format) -> float:
    weights = gaussian(64, 2048)
    return relative_rmse(fb.quantize(weights, fmt).dequantize(), weights)


def least_loss_with_fewer_bits(fmt: Format) -> float:
    return min((loss(other) for other in FORMATS if other.bits_per_weight < fmt.bits_per_weight), default=1)


def test_more_bits_lose_less() -> None:
    worse = {fmt.name for fmt in ORDINARY if loss(fmt) > TOLERANCE * least_loss_with_fewer_bits(fmt)}
    assert worse == EXCEPTIONS.keys()


def test_formats_that_spoil_ordinary_weights_say_what_they_are_made_for() -> None:
    expected = {fmt.name for fmt in FORMATS if fmt.made_for} | {
        "iq1_s",
        "iq1_m",
        "iq2_xxs",
    }  # of about two bits at most
    assert {fmt.name for fmt in FORMATS if loss(fmt) > 0.3} == expected


def test_a_search_halves_what_ternary_formats_lose() -> None:
    """Their rules are those of ggml, and exact for trained weights; with importance they are not bound to them."""
    weights = gaussian(64, 2048)
    for name in ("q2_0", "tq1_0", "tq2_0"):
        searched = fb.quantize(weights, name, importance=weights[0] * 0 + 1)
        assert relative_rmse(searched.dequantize(), weights) < 0.55 * loss(fb.format(name))
