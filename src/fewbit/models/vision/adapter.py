"""Names of encoders in checkpoints of transformers, for the names that GGUF files have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..adapter import Source, value_of
from ..recipes import Recipe, Tensors, place_all, tensor_table
from .activation import llama_cpp_flags

_PREFIXES = ("model.", "vision_tower.", "vision_model.", "vision_encoder.", "visual.")
_VISION = ("vision_tower.", "vision_model.", "vision_encoder.", "visual.", "connector.", "multi_modal_projector.",
           "embed_vision.")  # fmt: skip


def preprocessor(key: str, default: Any = None) -> Callable[[Mapping[str, Any]], Any]:
    """A value in preprocessor_config.json."""

    def find(config: Mapping[str, Any]) -> Any:
        value = value_of(config["preprocessor"], key)
        return default if value is None else value

    return find


def normalization(key: str, default: list[float], plain: float) -> Callable[[Mapping[str, Any]], Any]:
    """The mean or the deviation of channels; `plain` if the processor does not normalize."""

    def find(config: Mapping[str, Any]) -> Any:
        return [plain] * 3 if preprocessor("do_normalize")(config) is False else preprocessor(key, default)(config)

    return find


def key_or(key: str, default: Any) -> Callable[[Mapping[str, Any]], Any]:
    return lambda config: config.get(key, default)


HALF = [0.5, 0.5, 0.5]


def vision_config(mean: list[float] = HALF, std: list[float] = HALF, **defaults: Any) -> dict[str, Source]:
    """Where hyperparameters are in config.json's part for the encoder, and what they are if it leaves them out."""
    names = {
        "image_size": "image_size",
        "patch_size": "patch_size",
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "block_count": "num_hidden_layers",
        "attention.head_count": "num_attention_heads",
    }
    return {
        **{f"vision.{name}": key_or(key, defaults.get(key)) for name, key in names.items()},
        "vision.attention.layer_norm_epsilon": key_or("layer_norm_eps", 1e-6),
        "vision.projection_dim": lambda config: config["text"].get("hidden_size"),
        "vision.activation": key_or("hidden_act", defaults.get("hidden_act", "gelu_pytorch_tanh")),
        "vision.image_mean": normalization("image_mean", mean, 0.0),
        "vision.image_std": normalization("image_std", std, 1.0),
        "vision.resample": preprocessor("resample"),
    }


@dataclass(frozen=True)
class VisionAdapter:
    """The names in a family's checkpoints; those of the text model are left out."""

    architectures: tuple[str, ...]
    projector: str
    config: Mapping[str, Source]
    tensors: Tensors
    dropped: tuple[str, ...] = ()  # beginnings of names that are not used
    made: Callable[[Mapping[str, Any]], dict[str, Any]] = field(default=lambda config: {})
    rename: Callable[[str, Mapping[str, Any]], str] = field(default=lambda name, config: name)

    def hyperparameters(self, config: Mapping[str, Any]) -> dict[str, Any]:
        found = {key: value_of(config, source) for key, source in self.config.items()}
        named = {"has_vision_encoder": True, "projector_type": self.projector}
        named |= llama_cpp_flags(str(found["vision.activation"]))
        return named | {key: value for key, value in found.items() if value is not None}

    def recipes(self, names: Iterable[str], config: Mapping[str, Any]) -> dict[str, Recipe]:
        plain = {name: self.rename(_without_prefixes(name), config) for name in names if _is_vision(name)}
        kept = {name: short for name, short in plain.items() if not short.startswith(self.dropped or ("\0",))}
        return place_all(kept, tensor_table(self.tensors))


def _is_vision(name: str) -> bool:
    return name.removeprefix("model.").startswith(_VISION)


def _without_prefixes(name: str) -> str:
    """
    >>> _without_prefixes("model.vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight")
    'encoder.layers.0.mlp.fc1.weight'
    """
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name
