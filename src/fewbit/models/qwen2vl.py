"""The text model of Qwen2-VL and Qwen2.5-VL: as Qwen2, but tokens of images are rotated by their row and column."""

from __future__ import annotations

from . import qwen2
from .adapter import DECODER, OPTIONAL_WINDOWS, Adapter, rope_sections

HF = Adapter(
    ("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
    config=DECODER | OPTIONAL_WINDOWS | {"rope.dimension_sections": rope_sections},
)


class Model(qwen2.Model):
    pass
