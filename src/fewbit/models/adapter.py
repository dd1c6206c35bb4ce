"""Maps checkpoints of transformers to GGUF: the names of hyperparameters and tensors.

A model file that can be read from safetensors has `HF = Adapter(...)`: which `architectures` of config.json it is for,
where GGUF's hyperparameters are found there, and what its tensors are called. `DECODER` and `DECODER_TENSORS` hold what
nearly all decoders share; a family adds to them, or replaces.

A hyperparameter is a key of config.json ("rope.rope_theta" for one inside another), several of which the first that is
there counts, or a function of config.json. One that is not there, or null, is left out.

A tensor's name may hold {i} for the layer and {e} for the expert; ".weight" or ".bias" at the end is carried along. It
becomes a name, a name with a transform, or a list of those. Several names in a tuple become one tensor. Where {e} is
gone, experts are stacked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .config import MAX_LAYERS
from .recipes import Recipe, Target, Tensors, numbered, place_all, targets_of, tensor_table
from .transforms import PLUS_ONE, Array, Config, head_dim, interleaved_rope, rope_factors

Source = str | tuple[str, ...] | Callable[[Config], Any]

RANK = 4  # GGUF's pooling type of rerankers


def _yarn(key: str) -> Callable[[Config], Any]:
    return lambda config: config["rope"].get(key) if config["rope"].get("rope_type") == "yarn" else None


def _attn_factor(config: Config) -> float | None:
    """YaRN's attention factor relative to its default, for models that specify the whole factor."""
    given = _yarn("attention_factor")(config)
    return None if given is None else given / (1 + 0.1 * math.log(max(1.0, config["rope"]["factor"])))


def is_sequence_classifier(config: Config) -> bool:
    names = config.get("architectures")
    return isinstance(names, list) and bool(names) and str(names[0]).endswith("ForSequenceClassification")


def _labels(config: Config) -> list[str] | None:
    """The names of a classifier's labels, in their order."""
    names = config.get("id2label")
    if not is_sequence_classifier(config) or not isinstance(names, Mapping):
        return None
    return [str(name) for _, name in sorted(names.items(), key=lambda pair: int(pair[0]))]


def _classifier_pooling(config: Config) -> int | None:
    kinds = {"mean": 1, "cls": 2}
    return kinds.get(str(config.get("classifier_pooling"))) if is_sequence_classifier(config) else None


def layer_numbers(config: Config) -> range:
    """The numbers of all layers, up to the limit."""
    return range(min(config["num_hidden_layers"], MAX_LAYERS))


def window_pattern(config: Config) -> Any:
    """Which layers have a sliding window: a flag for each, or the period of layers without one.

    >>> window_pattern({"layer_types": ["sliding_attention", "full_attention"], "sliding_window_pattern": 6})
    [True, False]
    """
    kinds = config.get("layer_types")
    if kinds:
        return [kind == "sliding_attention" for kind in kinds]
    return config.get("sliding_window_pattern") or config.get("_sliding_window_pattern")


def optional_window(config: Config) -> Any:
    """The window, for models that must also set `use_sliding_window`."""
    return config.get("sliding_window") if config.get("use_sliding_window") else None


def last_layers(config: Config) -> Any:
    """`window_pattern` for models whose first layers have no window."""
    if optional_window(config) is None or config.get("layer_types"):
        return window_pattern(config)
    return [layer >= config.get("max_window_layers", 28) for layer in layer_numbers(config)]


def rope_sections(config: Config) -> Any:
    """How many pairs are rotated by time, row and column, in four numbers as GGUF has them."""
    found = config["rope"].get("mrope_section")
    return None if found is None else [*found, 0, 0, 0, 0][:4]


def _scaling_type(config: Config) -> str | None:
    kinds = {"linear": "linear", "yarn": "yarn", "longrope": "longrope", "su": "longrope"}
    return kinds.get(config["rope"].get("rope_type"))


def _scaling_factor(config: Config) -> Any:
    return config["rope"].get("factor") if _scaling_type(config) in ("linear", "yarn") else None


def _original_context(config: Config) -> Any:
    return config["rope"].get("original_max_position_embeddings") if _scaling_type(config) in _STRETCHED else None


_STRETCHED = ("yarn", "longrope")

DECODER: dict[str, Source] = {
    "vocab_size": "vocab_size",
    "block_count": ("num_hidden_layers", "n_layer"),
    "context_length": ("max_position_embeddings", "n_ctx", "n_positions"),
    "embedding_length": ("hidden_size", "n_embd"),
    "feed_forward_length": ("intermediate_size", "n_inner"),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    "rope.freq_base": "rope.rope_theta",
    "rope.freq_base_swa": "rope_local.rope_theta",
    "rope.scaling.type": _scaling_type,
    "rope.scaling.factor": _scaling_factor,
    "rope.scaling.original_context_length": _original_context,
    "rope.scaling.attn_factor": _attn_factor,
    "rope.scaling.yarn_beta_fast": _yarn("beta_fast"),
    "rope.scaling.yarn_beta_slow": _yarn("beta_slow"),
    "attention.causal": lambda config: False if config.get("is_causal") is False else None,
    "pooling_type": lambda config: RANK if is_sequence_classifier(config) else config.get("pooling_type"),
    "classifier.output_labels": _labels,
    "classifier.pooling_type": _classifier_pooling,
    "classifier.multi_label": lambda config: config.get("problem_type") == "multi_label_classification" or None,
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_count": ("num_local_experts", "num_experts", "n_routed_experts"),
    "expert_used_count": ("num_experts_per_tok", "num_experts_per_token", "top_k_experts"),
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
}

WINDOWS: dict[str, Source] = {
    "attention.sliding_window": "sliding_window",
    "attention.sliding_window_pattern": window_pattern,
}
OPTIONAL_WINDOWS: dict[str, Source] = {
    "attention.sliding_window": optional_window,
    "attention.sliding_window_pattern": last_layers,
}

DECODER_TENSORS: Tensors = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.{i}.input_layernorm": "blk.{i}.attn_norm",
    "model.layers.{i}.post_attention_layernorm": "blk.{i}.ffn_norm",
    "model.layers.{i}.self_attn.q_proj": "blk.{i}.attn_q",
    "model.layers.{i}.self_attn.k_proj": "blk.{i}.attn_k",
    "model.layers.{i}.self_attn.v_proj": "blk.{i}.attn_v",
    "model.layers.{i}.self_attn.o_proj": "blk.{i}.attn_output",
    "model.layers.{i}.self_attn.q_norm": "blk.{i}.attn_q_norm",
    "model.layers.{i}.self_attn.k_norm": "blk.{i}.attn_k_norm",
    "model.layers.{i}.mlp.gate_proj": "blk.{i}.ffn_gate",
    "model.layers.{i}.mlp.up_proj": "blk.{i}.ffn_up",
    "model.layers.{i}.mlp.down_proj": "blk.{i}.ffn_down",
    "model.layers.{i}.mlp.gate": "blk.{i}.ffn_gate_inp",
    "model.layers.{i}.mlp.experts.{e}.gate_proj": "blk.{i}.ffn_gate_exps",
    "model.layers.{i}.mlp.experts.{e}.up_proj": "blk.{i}.ffn_up_exps",
    "model.layers.{i}.mlp.experts.{e}.down_proj": "blk.{i}.ffn_down_exps",
}

# For llama.cpp's interleaved rope.
INTERLEAVED_TENSORS: Tensors = DECODER_TENSORS | {
    "model.layers.{i}.self_attn.q_proj": ("blk.{i}.attn_q", interleaved_rope("num_attention_heads")),
    "model.layers.{i}.self_attn.k_proj": ("blk.{i}.attn_k", interleaved_rope("num_key_value_heads")),
}

# With norms before and after each part, or only after it.
SANDWICH_TENSORS: Tensors = DECODER_TENSORS | {
    "model.layers.{i}.post_attention_layernorm": "blk.{i}.post_attention_norm",
    "model.layers.{i}.pre_feedforward_layernorm": "blk.{i}.ffn_norm",
    "model.layers.{i}.post_feedforward_layernorm": "blk.{i}.post_ffw_norm",
}

# Experts that all tokens use, and biases that only help to choose the others.
SHARED_EXPERTS: Tensors = {
    "model.layers.{i}.mlp.shared_experts.gate_proj": "blk.{i}.ffn_gate_shexp",
    "model.layers.{i}.mlp.shared_experts.up_proj": "blk.{i}.ffn_up_shexp",
    "model.layers.{i}.mlp.shared_experts.down_proj": "blk.{i}.ffn_down_shexp",
    "model.layers.{i}.mlp.gate.e_score_correction_bias": "blk.{i}.exp_probs_b.bias",
}


# The layer that predicts a further token, after all others: see mtp.py.
MTP_TENSORS: Tensors = {
    f"model.layers.{{i}}.{name}": f"blk.{{i}}.nextn.{name.replace('.', '_')}"
    for name in ("eh_proj", "enorm", "hnorm", "embed_tokens", "shared_head.norm", "shared_head.head")
}


def mtp_layers(config: Config) -> int:
    """How many layers predict further tokens."""
    keys = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
    return next((int(config[key]) for key in keys if config.get(key) is not None), 0)


MTP: dict[str, Source] = {
    "block_count": lambda config: config["num_hidden_layers"] + mtp_layers(config),
    "nextn_predict_layers": lambda config: mtp_layers(config) or None,
}


def norms_plus_one(tensors: Tensors) -> Tensors:
    """The table for models whose norms multiply by 1 + weight.

    >>> norms_plus_one({"model.norm": "output_norm"})["model.norm"][0]
    'output_norm'
    """
    return {
        source: (target, PLUS_ONE) if isinstance(target, str) and target.endswith("norm") else target
        for source, target in tensors.items()
    }


# Of models that see or hear too, and tables that are computed anyway.
_OTHER_PARTS = ("vision_tower.", "vision_model.", "visual.", "multi_modal_projector.", "connector.",
                "embed_vision.",                 "audio_tower.", "embed_audio.", "mtp.")  # fmt: skip
_COMPUTED = (".rotary_emb.inv_freq", ".masked_bias")


@dataclass(frozen=True)
class Adapter:
    """The names in a family's checkpoints. `made` computes tensors from values in config.json."""

    architectures: tuple[str, ...]
    config: Mapping[str, Source] = field(default_factory=lambda: DECODER)
    tensors: Mapping[str | tuple[str, ...], Target | list[Target]] = field(default_factory=lambda: DECODER_TENSORS)
    made: Callable[[Config], dict[str, Array]] = rope_factors
    dropped: tuple[str, ...] = ()  # names of tensors that are not used
    classifier: Mapping[str, str] = field(default_factory=dict)  # the head of classifiers and rerankers
    more_layers: bool = False  # whether there may be layers that predict further tokens
    fits: Callable[[Config], bool] = lambda config: True  # for architectures whose checkpoints have one name

    def hyperparameters(self, config: Config) -> dict[str, Any]:
        """GGUF's hyperparameters, by name without the architecture.

        >>> Adapter((), {"block_count": ("n_layer", "num_hidden_layers")}).hyperparameters({"num_hidden_layers": 2})
        {'block_count': 2}
        """
        found = {key: value_of(config, source) for key, source in self.config.items()}
        return {key: value for key, value in found.items() if value is not None}

    def recipes(self, names: Iterable[str], config: Config) -> dict[str, Recipe]:
        """The recipe for each GGUF tensor. Unknown names are kept, so that loading refuses them.

        >>> made = Adapter(()).recipes(["model.layers.3.self_attn.q_proj.weight"], {})
        >>> made["blk.3.attn_q.weight"].sources
        (('model.layers.3.self_attn.q_proj.weight',),)
        """
        is_classifier = is_sequence_classifier(config)
        own: Mapping[Any, Any] = self.classifier if is_classifier else {}
        table = tensor_table({**self.tensors, **own})
        kept: dict[str, str] = {}
        layers = config["num_hidden_layers"] + mtp_layers(config) if self.more_layers else 1 << 30
        tied = config.get("tie_word_embeddings") is True
        for name in names:
            plain = _without_prefix(name)
            if self.more_layers and plain.startswith("mtp."):
                plain = _mtp_name(plain, config["num_hidden_layers"])
            pattern, numbers = numbered(plain)
            if (
                plain.startswith(_OTHER_PARTS)
                or plain.endswith(_COMPUTED)
                or (pattern in self.dropped and not (is_classifier and targets_of(pattern, table)[0]))
            ):
                continue
            if (tied and plain == "lm_head.weight") or (numbers and numbers[0] >= layers):
                continue
            kept[name] = plain
        return place_all(kept, table)


def _without_prefix(name: str) -> str:
    """The name as if the model knew text only.

    >>> _without_prefix("model.language_model.layers.0.mlp.gate"), _without_prefix("language_model.lm_head.weight")
    ('model.layers.0.mlp.gate', 'lm_head.weight')
    """
    if name.startswith("model.language_model."):
        return "model." + name.removeprefix("model.language_model.")
    if name.startswith("model.text_model."):
        return "model." + name.removeprefix("model.text_model.")
    if name.startswith("language_model."):
        return name.removeprefix("language_model.")
    rest = name.removeprefix("model.")
    return rest if rest.startswith(_OTHER_PARTS) else name


def _mtp_name(name: str, layers: int) -> str:
    """Qwen's name of a part of the MTP layer as other families have it: in the layer after the last one.

    >>> _mtp_name("mtp.fc.weight", 24), _mtp_name("mtp.layers.0.mlp.up_proj.weight", 24)
    ('model.layers.24.eh_proj.weight', 'model.layers.24.mlp.up_proj.weight')
    """
    parts = {
        "fc": "eh_proj",
        "pre_fc_norm_embedding": "enorm",
        "pre_fc_norm_hidden": "hnorm",
        "norm": "shared_head.norm",
    }
    match name.split("."):
        case ["mtp", "layers", number, *rest] if number.isascii() and number.isdecimal() and len(number) < 6:
            return ".".join(["model.layers", str(layers + int(number)), *rest])
        case ["mtp", part, suffix] if part in parts:
            return f"model.layers.{layers}.{parts[part]}.{suffix}"
    return name


def value_of(config: Config, source: Source) -> Any:
    if callable(source):
        value = source(config)
    else:
        keys = (source,) if isinstance(source, str) else source
        value = next((found for key in keys if (found := _inside(config, key)) is not None), None)
    is_text = isinstance(value, list) and value and all(isinstance(one, str) for one in value)
    return np.asarray(value) if isinstance(value, list | tuple) and not is_text else value


def _inside(config: Any, key: str) -> Any:
    for name in key.split("."):
        config = config.get(name) if isinstance(config, Mapping) else None
    return config


__all__ = [
    "DECODER", "DECODER_TENSORS", "INTERLEAVED_TENSORS", "MTP", "MTP_TENSORS", "OPTIONAL_WINDOWS",
    "SANDWICH_TENSORS", "SHARED_EXPERTS", "WINDOWS", "Adapter", "Recipe", "Target", "Tensors", "head_dim",
    "layer_numbers", "norms_plus_one", "optional_window", "rope_sections",
    "value_of", "window_pattern",
]  # fmt: skip
