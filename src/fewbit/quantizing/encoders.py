"""Which format each tensor of an image encoder gets. Tables and convolutions stay floats, as llama.cpp's converter has
them; mixes choose among the layers as they do in models of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..formats import Format, get
from .mixes import Mix, ModelSizes, choose

_TRANSPOSED = "mm.input_projection.weight"  # by Gemma 3 and 3n: blocks of its rows would be none of the product's


def choose_for_encoder(
    mix: Mix | None, name: str, shape: tuple[int, ...], source: Format, config: Mapping[str, Any]
) -> Format | None:
    """The format of a tensor of an encoder in a mix. None: its own, as far as GGUF files have it; so are all matrices
    without a mix.

    >>> from .mixes import MIXES
    >>> shapes = {"v.patch_embd.weight": (8, 3, 16, 16), "v.blk.0.attn_q.weight": (8, 256), "v.post_ln.weight": (8,)}
    >>> config = {"vision.block_count": 8}
    >>> [choose_for_encoder(MIXES["q8_0"], *item, get("f16"), config).name for item in shapes.items()]
    ['f16', 'q8_0', 'f32']
    """
    kind = str(config.get("projector_type", config.get("vision.projector_type")))
    is_transposed = name == _TRANSPOSED and kind.startswith("gemma3")
    if len(shape) < 2 or name.endswith(".position_embd.weight"):
        return get("f32")
    if len(shape) > 2 or is_transposed or name.endswith(".patch_merger.weight") or ".conv" in name:
        return get("f16" if "f16" in (source.name, mix and mix.usual) else "f32")
    if mix is None:
        return None
    layers = config.get("vision.block_count", 0)
    return choose(mix, name.removeprefix("v."), shape, ModelSizes(layers if isinstance(layers, int) else 0))
