"""Qwen2-VL: layer norms, quick GELU."""

from __future__ import annotations

from ..checkpoint import Checkpoint
from .activation import read_activation
from .adapter import VisionAdapter
from .qwen import QWEN_TENSORS, QwenTower, qwen_config

HF = VisionAdapter(
    ("Qwen2VLForConditionalGeneration",),
    "qwen2vl_merger",
    config=qwen_config("quick_gelu", hidden="embed_dim"),
    tensors=QWEN_TENSORS
    | {
        "blocks.{i}.mlp.fc1": "v.blk.{i}.ffn_up",
        "blocks.{i}.mlp.fc2": "v.blk.{i}.ffn_down",
        "merger.ln_q": "v.post_ln",
        "merger.mlp.{i}": "mm.{i}",
    },
)


class Model(QwenTower):
    def __init__(self, file: Checkpoint) -> None:
        super().__init__(file, read_activation(file))
