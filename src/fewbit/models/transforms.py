"""What becomes of tensors on their way from a checkpoint of transformers to the names and shapes of GGUF.

A transform takes one array or several, and the contents of config.json, and gives an array. Most only move values, and
get them as they lie (bf16 as 16-bit integers); one that `computes` gets floats and gives floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Config = Mapping[str, Any]


@dataclass(frozen=True)
class Transform:
    """A transform of tensors. `packs` names the format if the result is packed bytes."""

    function: Callable[..., Array]
    computes: bool = False
    packs: str = ""
    moves_rows: bool = False  # only whole rows, so packed ones too

    def __call__(self, *arrays: Array, config: Config) -> Array:
        return self.function(*arrays, config)


def interleaved_rope(heads: str) -> Transform:
    """Rows of each head in the order of interleaved rope: (1, n/2, 2, n/2 + 1, ...) where transformers has halves.

    `heads` names the key of config.json that counts them.

    >>> rows = np.arange(8).reshape(8, 1)
    >>> interleaved_rope("n")(rows, config={"n": 2}).reshape(-1).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """

    def move(w: Array, config: Config) -> Array:
        count = config[heads]
        return w.reshape(count, 2, w.shape[0] // count // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)

    return Transform(move, moves_rows=True)


def part(number: int, count: int, axis: int = 0) -> Transform:
    """One of several equal parts of a fused tensor, along an axis.

    >>> part(1, 2)(np.arange(6), config={}).tolist()
    [3, 4, 5]
    """
    return Transform(lambda w, config: np.split(w, count, axis)[number], moves_rows=axis == 0)


def every(start: int, step: int, axis: int = 0) -> Transform:
    """Every `step`-th row: one of several tensors fused row by row.

    >>> every(1, 2)(np.arange(6), config={}).tolist()
    [1, 3, 5]
    """
    return Transform(lambda w, config: w[(slice(None),) * axis + (slice(start, None, step),)])


def transposed_every(start: int, step: int) -> Transform:
    """Every `step`-th column, as rows: one of several tensors fused row by row and then transposed.

    >>> transposed_every(1, 2)(np.arange(8).reshape(2, 4), config={}).tolist()
    [[1, 5], [3, 7]]
    """
    return Transform(lambda w, config: np.swapaxes(w[..., start::step], -1, -2))


def transposed_part(number: int, count: int) -> Transform:
    """One of several equal parts of the columns, as rows.

    >>> transposed_part(1, 2)(np.arange(8).reshape(2, 4), config={}).tolist()
    [[2, 6], [3, 7]]
    """
    return Transform(lambda w, config: np.swapaxes(np.split(w, count, -1)[number], -1, -2))


TRANSPOSED = Transform(lambda w, config: np.swapaxes(w, -1, -2))
PLUS_ONE = Transform(lambda w, config: w + 1, computes=True)  # norms that scale by 1 + weight
NEGATIVE_EXP = Transform(lambda w, config: -np.exp(w), computes=True)
SQUEEZED = Transform(lambda w, config: w.reshape(w.shape[0], w.shape[-1]))  # a convolution of each channel for itself
JOINED = Transform(lambda *given: np.concatenate(given[:-1]), moves_rows=True)


def tiled_heads(width: str = "", axis: int = 0, negative_exp: bool = False) -> Transform:
    """Heads of v in the order of llama.cpp's delta rule: the first of each head of k, then the second, and so on.

    They are the last along the axis; `width` names the key of config.json that says how wide each is. A convolution of
    each channel for itself becomes a matrix.

    >>> config = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    >>> tiled_heads()(np.array([9, 0, 1, 2, 3]), config=config).tolist()
    [9, 0, 2, 1, 3]
    """

    def move(w: Array, config: Config) -> Array:
        heads, v_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
        each = config[width] if width else 1
        w = w.reshape(w.shape[0], w.shape[-1]) if w.ndim == 3 else w
        before, values = np.split(w, [w.shape[axis] - v_heads * each], axis)
        by_head = values.reshape(*w.shape[:axis], heads, v_heads // heads, each, *w.shape[axis + 1 :])
        tiled = by_head.swapaxes(axis, axis + 1).reshape(values.shape)
        return np.concatenate([before, -np.exp(tiled) if negative_exp else tiled], axis)

    return Transform(move, computes=negative_exp)


def shaped(*shape: int | str, negative_exp: bool = False) -> Transform:
    """The tensor in another shape; a string names a key of config.json.

    >>> shaped("n", -1)(np.arange(4), config={"n": 2}).tolist()
    [[0, 1], [2, 3]]
    """

    def move(w: Array, config: Config) -> Array:
        sizes = [config[size] if isinstance(size, str) else size for size in shape]
        return (-np.exp(w) if negative_exp else w).reshape(sizes)

    return Transform(move, computes=negative_exp)


def _mxfp4(blocks: Array, scales: Array, config: Config) -> Array:
    """Blocks of 32 4-bit floats: their scale, then 16 bytes; byte j has values j and j + 16, not 2j and 2j + 1."""
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
    packed = codes[..., :16] | codes[..., 16:] << 4
    joined = np.concatenate([scales[..., None], packed], -1)
    return joined.reshape(*joined.shape[:-2], -1)


MXFP4 = Transform(_mxfp4, packs="mxfp4")


def mxfp4_rows(start: int, step: int) -> Transform:
    """`MXFP4` of every `step`-th row of each expert."""
    rows = (slice(None), slice(start, None, step))
    return Transform(lambda blocks, scales, config: _mxfp4(blocks[rows], scales[rows], config), packs="mxfp4")


def rope_factors(config: Config) -> dict[str, Array]:
    """The GGUF tensors of llama3 and longrope ropes: divisors of the frequencies.

    >>> rope_factors({"rope": {"rope_type": "default"}})
    {}
    """
    rope = config["rope"]
    if rope.get("rope_type") == "llama3":
        return {"rope_freqs.weight": _llama3_factors(config, rope)}
    if rope.get("rope_type") in ("longrope", "su"):
        kinds = {"long": rope["long_factor"], "short": rope["short_factor"]}
        return {f"rope_factors_{name}.weight": np.asarray(values, np.float32) for name, values in kinds.items()}
    return {}


def head_dim(config: Config) -> int:
    """The number of values in a head."""
    given = config.get("head_dim")
    return int(given or config["hidden_size"] // config["num_attention_heads"])


def rotary_dim(config: Config, usual: float = 1.0) -> int:
    """The number of rotated values in a head; `usual` is the default share.

    >>> rotary_dim({"head_dim": 64, "rope": {"partial_rotary_factor": 0.5}})
    32
    """
    return int(head_dim(config) * (config["rope"].get("partial_rotary_factor") or usual))


def _llama3_factors(config: Config, rope: Mapping[str, Any]) -> Array:
    """1 for frequencies that rotate often in the original context, `factor` for those that rotate rarely."""
    dim, factor = head_dim(config), rope.get("factor", 8.0)
    low, high = rope.get("low_freq_factor", 1.0), rope.get("high_freq_factor", 4.0)
    frequencies = float(rope.get("rope_theta", 10000.0)) ** (-np.arange(0, dim, 2) / dim)
    rotations = rope.get("original_max_position_embeddings", 8192) * frequencies / (2 * math.pi)
    smooth = np.clip((rotations - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - smooth) / factor + smooth), np.float32)
