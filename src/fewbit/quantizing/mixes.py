"""Mixes: which format each tensor of a model gets. The choices are llama.cpp's.

To add one, write a line in `MIXES`: the format of most matrices, then those of others by their names. A choice may
depend on where a matrix is: `{"first eighth": "q5_k", "": "q4_k"}` is q5_k in the first eighth of the layers and q4_k
in the others; `CONDITIONS` holds the words. A matrix whose rows are not whole blocks of its format gets another one
(`FALLBACKS`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import DtypeError, FormatError
from ..formats import Format, all_formats, get

FLOATS = ("f32", "f16", "bf16")

_LAYER = re.compile(r"blk\.(\d+)\.(.+)")
_EMBEDDINGS = ("token_embd", "per_layer_token_embd")
_KEPT = (
    "_norm", "ffn_gate_inp", "ffn_gate_inp_shexp", "conv1d", "shortconv.conv", "patch_embd", "position_embd",
    "token_types", "per_layer_model_proj", "attn_rel_b", "indexer.k_proj", "indexer.q_proj",
)  # fmt: skip

Choice = str | Mapping[str, str]  # a format, or formats by condition; "" is everywhere else


@dataclass(frozen=True)
class Mix:
    """The format of most matrices, and of some by their names."""

    usual: str
    file_type: int | None = None  # llama.cpp's number of the mix
    others: Mapping[str, Choice] = field(default_factory=dict)  # by the name without the layer
    output: str = "q6_k"  # of logits
    embedding: str = ""  # of tokens, where logits have a matrix of their own
    eight_experts: str = "q8_0"  # K and V of models with eight experts


@dataclass(frozen=True)
class ModelSizes:
    """What the choice of formats depends on beside a tensor's name."""

    layers: int
    is_tied: bool = False  # whether logits are made with the embeddings
    heads_per_kv: int = 1
    experts: int = 0
    value_layers: tuple[int, ...] = ()  # that have a matrix of values
    has_importance: bool = False


@dataclass(frozen=True)
class _Place:
    """Where a matrix is: the number of its layer, of how many, in a model of some sizes."""

    layer: int
    layers: int
    sizes: ModelSizes


def _is_boosted(place: _Place) -> bool:
    eighth = place.layers // 8
    return place.layer < eighth or place.layer >= 7 * place.layers // 8 or (place.layer - eighth) % 3 == 2


CONDITIONS: Mapping[str, Callable[[_Place], bool]] = {
    "grouped": lambda place: place.sizes.heads_per_kv >= 4,
    "grouped or experts": lambda place: place.sizes.heads_per_kv >= 4 or place.sizes.experts >= 4,
    "boosted": _is_boosted,  # every third layer and the first and last eighth
    "boosted experts": lambda place: place.sizes.experts == 8 and _is_boosted(place),
    "first two": lambda place: place.layer < 2,
    "first four": lambda place: place.layer < 4,
    "first eighth": lambda place: place.layer < place.layers // 8,
    "first sixteenth": lambda place: place.layer < place.layers // 16,
    "middle": lambda place: place.layers // 8 <= place.layer < 7 * place.layers // 8,
    "no importance": lambda place: not place.sizes.has_importance,
    "early with importance": lambda place: place.sizes.has_importance and place.layer < place.layers // 8,
    "early without": lambda place: not place.sizes.has_importance and place.layer < place.layers // 8,
    "": lambda place: True,
}

V, K, Q, OUT, DOWN = "attn_v", "attn_k", "attn_q", "attn_output", "ffn_down"
_MIDDLE_XXS: dict[str, Choice] = {name: {"middle": "iq3_xxs"} for name in ("ffn_gate", "ffn_up")}
_BOOSTED: dict[str, Choice] = {name: {"boosted": "q6_k"} for name in (V, DOWN)}
_V_OF_2_BITS = {"grouped or experts": "q4_k", "": "q2_k"}
_V_OF_3_BITS = {"grouped or experts": "q4_k", "": "iq3_s"}
_IQ1: dict[str, Choice] = {V: _V_OF_2_BITS, DOWN: {"first eighth": "q2_k"}, OUT: "iq2_xxs"}
_IQ2: dict[str, Choice] = {V: _V_OF_2_BITS, DOWN: {"first eighth": "q2_k"}}
_IQ2_M: dict[str, Choice] = {V: _V_OF_3_BITS, DOWN: {"first eighth": "iq3_s"}, OUT: "iq3_s"}
_IQ4: dict[str, Choice] = {V: {"grouped": "q5_k"}, DOWN: {"early without": "q5_k"}}

MIXES: Mapping[str, Mix] = {
    "iq1_s": Mix("iq1_s", 24, _IQ1, "q5_k", "q2_k", "q4_k"),
    "iq1_m": Mix("iq1_m", 31, _IQ1, "q5_k", "q2_k", "q4_k"),
    "iq2_xxs": Mix("iq2_xxs", 19, _IQ2, "q5_k", "q2_k", "q4_k"),
    "iq2_xs": Mix("iq2_xs", 20, _IQ2, "q5_k", "q2_k", "q4_k"),
    "iq2_s": Mix("iq2_xs", 28, _IQ2_M, "q5_k", "iq3_s", "q4_k"),
    "iq2_m": Mix("iq2_s", 29, _IQ2_M, "q5_k", "iq3_s", "q4_k"),
    "iq3_xxs": Mix(
        "iq3_xxs", 23,
        {V: {"grouped": "q4_k", "no importance": "iq3_s"}, K: "iq2_s", Q: "iq2_s", OUT: "iq3_s",
         DOWN: {"early without": "q4_k", "no importance": "q3_k"}}, "q5_k", "iq3_s",
    ),
    "iq3_xs": Mix("iq3_s", 22, {V: {"grouped": "q4_k"}, K: "iq3_xxs", Q: "iq3_xxs", **_MIDDLE_XXS}),
    "iq3_s": Mix("iq3_s", 26, {V: {"grouped": "q4_k"}}),
    "iq3_m": Mix("iq3_s", 27, {V: "q4_k", OUT: "q4_k", DOWN: {"first eighth": "q4_k", "boosted experts": "q4_k"}}),
    "iq4_xs": Mix("iq4_xs", 30, _IQ4),
    "iq4_nl": Mix("iq4_nl", 25, _IQ4),
    "q2_k_s": Mix("q2_k", 21, {V: {"grouped": "q4_k"}, DOWN: {"first eighth": "q4_k"}}),
    "q2_k": Mix("q2_k", 10, {V: {"grouped": "q4_k", "": "q3_k"}, OUT: "q3_k", DOWN: "q3_k"}),
    "q3_k_s": Mix("q3_k", 11),
    "q3_k_m": Mix("q3_k", 12, {V: {"first two": "q5_k", "": "q4_k"}, OUT: "q4_k",
                               DOWN: {"first sixteenth": "q5_k", "": "q4_k"}}),
    "q3_k_l": Mix("q3_k", 13, dict.fromkeys((V, OUT, DOWN), "q5_k")),
    "q4_0": Mix("q4_0", 2, {DOWN: {"early with importance": "q4_1"}}),
    "q4_1": Mix("q4_1", 3),
    "q4_k_s": Mix("q4_k", 14, {V: {"first four": "q5_k"}, DOWN: {"first eighth": "q5_k"}}),
    "q4_k_m": Mix("q4_k", 15, _BOOSTED),
    "q5_0": Mix("q5_0", 8, {DOWN: {"early with importance": "q5_1"}}),
    "q5_1": Mix("q5_1", 9),
    "q5_k_s": Mix("q5_k", 16),
    "q5_k_m": Mix("q5_k", 17, _BOOSTED),
    "q6_k": Mix("q6_k", 18),
    "q8_0": Mix("q8_0", 7, output="q8_0"),
    "mxfp4_moe": Mix("q8_0", 38, dict.fromkeys(("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"), "mxfp4"), "q8_0"),
    "tq1_0": Mix("tq1_0", 36, embedding="q4_k"),
    "tq2_0": Mix("tq2_0", 37, embedding="q4_k"),
    "q1_0": Mix("q1_0", 40, embedding="q4_k"),
    "q2_0": Mix("q2_0", 41, embedding="q4_k"),
    "f16": Mix("f16", 1, output="f16", eight_experts="f16"),
    "bf16": Mix("bf16", 32, output="bf16", eight_experts="bf16"),
    "f32": Mix("f32", 0, output="f32", eight_experts="f32"),
}  # fmt: skip

# Where all layers have eight experts, the matrix that joins heads is small beside them.
_EIGHT_EXPERTS_OUT = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq2_m", "iq3_xxs", "iq3_xs", "iq3_s", "iq3_m",
                      "iq4_nl", "iq4_xs", "q2_k", "q3_k_s", "q3_k_m", "q4_k_s", "q4_k_m")  # fmt: skip

# What a matrix gets whose rows are not whole blocks: llama.cpp's choices, which have blocks of 32. It has none for q1_0
# and nvfp4.
FALLBACKS = {
    "q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0",
    **dict.fromkeys(("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs"), "iq4_nl"),
    **dict.fromkeys(("q1_0", "q2_0", "tq1_0", "tq2_0", "nvfp4"), "q4_0"),
}  # fmt: skip


def read_mix(name: Any, is_pure: bool = False) -> tuple[str, Mix]:
    """A mix, or one format for all matrices, by name.

    >>> read_mix("Q4_K_M")[1].usual, read_mix("nvfp4")[1].output, read_mix("q4_0", is_pure=True)[1].output
    ('q4_k', 'nvfp4', 'q4_0')
    """
    if not isinstance(name, str):
        raise DtypeError(f'format is a name like "q4_k_m", not {type(name).__name__}')
    plain = name.lower().replace("-", "_")
    if plain in MIXES and not is_pure:
        return plain, MIXES[plain]
    usual = MIXES[plain].usual if plain in MIXES else plain
    if usual not in writable_formats():
        raise FormatError(
            f"there is no format {name!r} to quantize a model to; there are: {', '.join(known_formats())}"
        )
    return plain, Mix(usual, output=usual, eight_experts=usual)


def writable_formats() -> list[str]:
    """The formats of weights that GGUF files can hold and fewbit can write."""
    usable = [fmt for fmt in all_formats().values() if fmt.gguf is not None and not fmt.sums]
    return [fmt.name for fmt in usable if fmt.block > 1 or fmt.name in FLOATS]


def known_formats() -> list[str]:
    """What a model can be quantized to: mixes, and formats for all matrices.

    >>> [name for name in known_formats() if name.startswith("q4")]
    ['q4_0', 'q4_1', 'q4_k_s', 'q4_k_m', 'q4_k']
    """
    return [*MIXES, *(name for name in writable_formats() if name not in MIXES)]


def choose(mix: Mix, name: str, shape: tuple[int, ...], sizes: ModelSizes) -> Format:
    """The format of a tensor in a mix, whatever the length of its rows. Norms, biases and small tables stay floats.

    >>> mix, sizes = MIXES["q4_k_m"], ModelSizes(16)
    >>> [choose(mix, f"blk.{i}.ffn_down.weight", (8, 256), sizes).name for i in (0, 3, 4)]
    ['q6_k', 'q4_k', 'q6_k']
    >>> choose(mix, "output.weight", (8, 256), sizes).name, choose(mix, "output_norm.weight", (8,), sizes).name
    ('q6_k', 'f32')
    """
    if not is_quantizable(name, shape):
        return get("f32")
    if is_output(name, sizes):
        return get(mix.output)
    in_layer = _LAYER.fullmatch(name)
    full = (in_layer[2] if in_layer else name).removesuffix(".weight")
    matrix = _plain_name(full)
    if matrix in _EMBEDDINGS:
        return get(mix.embedding or mix.usual)
    if not in_layer:
        return get(mix.usual)
    if sizes.experts == 8 and mix.file_type is not None:
        if matrix in (V, K):
            return get(mix.eight_experts)
        if matrix == OUT and mix in [MIXES[other] for other in _EIGHT_EXPERTS_OUT]:
            return get("q5_k")
    choice = mix.others.get(full, mix.others.get(matrix, mix.usual))
    return get(choice if isinstance(choice, str) else _chosen(mix, choice, matrix, int(in_layer[1]), sizes))


def is_quantizable(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is a matrix that bears it to be packed."""
    return len(shape) > 1 and name.endswith(".weight") and not name.removesuffix(".weight").endswith(_KEPT)


def is_output(name: str, sizes: ModelSizes) -> bool:
    """Whether logits are made with a tensor."""
    return name == ("token_embd.weight" if sizes.is_tied else "output.weight")


def _plain_name(matrix: str) -> str:
    """The name under which a mix has a matrix: fused ones count as values, experts as what they are."""
    if matrix in ("attn_qkv", "attn_kv_b"):
        return V
    return matrix.removesuffix("_exps").removesuffix("_shexp") if matrix.startswith("ffn_") else matrix


def _chosen(mix: Mix, choices: Mapping[str, str], matrix: str, layer: int, sizes: ModelSizes) -> str:
    place = _Place(layer, sizes.layers, sizes)
    if matrix == V and layer in sizes.value_layers:
        place = _Place(sizes.value_layers.index(layer), len(sizes.value_layers), sizes)
    return next((name for condition, name in choices.items() if CONDITIONS[condition](place)), mix.usual)


def fitting(fmt: Format, width: int) -> Format:
    """A format whose blocks divide rows of `width` values: this one, else its fallback, else f16.

    >>> [fitting(get("q4_k"), width).name for width in (512, 576, 100)]
    ['q4_k', 'q5_0', 'f16']
    """
    tried = (fmt, get(FALLBACKS.get(fmt.name, "f16")))
    return next((one for one in tried if width % one.block == 0), get("f16"))


def model_sizes(config: Mapping[str, Any], names: Iterable[str], has_importance: bool = False) -> ModelSizes:
    """What formats depend on, from a model's hyperparameters and the names of its tensors.

    >>> model_sizes({"block_count": 2, "attention.head_count": 8, "attention.head_count_kv": 2}, []).heads_per_kv
    4
    """
    names = list(names)
    heads, kv_heads = (_first(config.get(f"attention.{key}")) for key in ("head_count", "head_count_kv"))
    found = (_LAYER.fullmatch(name) for name in names)
    values = {int(match[1]) for match in found if match and _plain_name(match[2].removesuffix(".weight")) == V}
    return ModelSizes(
        layers=_first(config.get("block_count")),
        is_tied="output.weight" not in names,
        heads_per_kv=heads // kv_heads if kv_heads else 1,
        experts=_first(config.get("expert_count")),
        value_layers=tuple(sorted(values)),
        has_importance=has_importance,
    )


def _first(value: Any) -> int:
    """A number, or the first of a list of them; 0 where there is none."""
    numbers = np.asarray(0 if value is None else value).reshape(-1)
    return int(numbers[0]) if len(numbers) else 0
