"""Models of the zoo under other config.json files: the same weights, but other windows, ropes or scales of layers."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COLUMN_STEP = 16  # variants.npz holds so many columns less
WINDOW = {"sliding_window": 8}


@dataclass(frozen=True)
class Variant:
    """What is changed in config.json; None removes a key.

    `patterns` are numbers that say the same as the list of layers does, as `attention.sliding_window_pattern` of GGUF.
    """

    name: str
    title: str
    config: dict[str, Any] = field(default_factory=dict)
    patterns: tuple[int, ...] = ()
    is_other: bool = True  # whether it gives something else than the model itself

    @property
    def key(self) -> str:
        return f"{self.name} {self.title}"

    def copied(self, zoo: Path, folder: Path) -> Path:
        """The checkpoint with its own config.json, in a folder."""
        copy = shutil.copytree(zoo / self.name / "hf", folder / "hf")
        config = json.loads((copy / "config.json").read_text()) | self.config
        kept = {key: value for key, value in config.items() if value is not None}
        (copy / "config.json").write_text(json.dumps(kept))
        return copy


def layers(pattern: str) -> dict[str, list[str]]:
    """Kinds of layers: w for one with a window, g for a global one."""
    return {"layer_types": ["sliding_attention" if kind == "w" else "full_attention" for kind in pattern]}


NO_LAYERS: dict[str, Any] = {"layer_types": None}

VARIANTS = [
    Variant("gemma2", "global first", layers("gw")),
    Variant("gemma2", "all windows", layers("ww"), (0, 3)),
    Variant("gemma2", "scale", {"query_pre_attn_scalar": 4}),
    Variant("gemma3", "list", layers("gwwgwg")),
    Variant("gemma3", "every second", NO_LAYERS | {"sliding_window_pattern": 2}, (2,)),
    Variant("gemma3", "no window", NO_LAYERS | {"sliding_window_pattern": 1}, (1,)),
    Variant("gemma3", "scale", {"query_pre_attn_scalar": 4}),
    Variant("gemma-embedding", "list", layers("gwwgwg")),
    Variant("gemma-embedding", "every third", NO_LAYERS | {"sliding_window_pattern": 3}, (3,)),
    Variant("gpt-oss-bf16", "global first", layers("gw")),
    Variant("gpt-oss-bf16", "all windows", layers("ww"), (0,)),
    Variant("olmo3", "every second", layers("wgwg"), (2,)),
    Variant("olmo3", "list", layers("gwwg")),
    Variant("modern-bert", "every second", NO_LAYERS | {"global_attn_every_n_layers": 2}, (2,)),
    Variant("modern-bert", "usual", NO_LAYERS | {"global_attn_every_n_layers": None}, (3,), is_other=False),
    Variant("modern-bert", "list", layers("wgww")),
    Variant("llama", "window that is ignored", WINDOW, is_other=False),
    Variant("llama", "mistral", WINDOW | {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}, (0,)),
    Variant("mixtral", "window", WINDOW, (0,)),
    Variant("mistral3", "window", WINDOW, (0,)),
    Variant("starcoder2", "window", WINDOW, (0,)),
    Variant("qwen2", "window that is not used", WINDOW | NO_LAYERS, is_other=False),
    Variant("qwen2", "last layer", WINDOW | NO_LAYERS | {"use_sliding_window": True, "max_window_layers": 1}),
    Variant("qwen3", "list", WINDOW | layers("wg") | {"use_sliding_window": True}, (2,)),
    Variant("qwen3moe", "window", WINDOW | {"use_sliding_window": True}, (0,)),
    Variant("smollm3", "rope", NO_LAYERS | {"no_rope_layers": [0, 1, 1, 0]}),
    Variant("smollm3", "every second", NO_LAYERS | {"no_rope_layers": None, "no_rope_layer_interval": 2}),
    Variant("smollm3", "window", WINDOW | NO_LAYERS | {"use_sliding_window": True}),
    Variant("llama4", "chunks", {"attention_chunk_size": 8, "floor_scale": 4, "attn_scale": 0.5}),
    Variant("llama4", "list", {"attention_chunk_size": 5, "no_rope_layers": [0, 1, 1, 0], "layer_types": None}),
    Variant("llama4", "no norms", {"use_qk_norm": False}),
    Variant("llama4", "no temperature", {"floor_scale": 4, "attn_temperature_tuning": False}, is_other=False),
    Variant("llama-yarn", "attention factor", {
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16,
            "attention_factor": 0.7,
        },
    }),
]  # fmt: skip
