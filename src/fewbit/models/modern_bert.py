"""ModernBERT: pre-norm blocks, rotary positions; two of three layers have local attention, with their own rope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from .adapter import DECODER, Adapter, window_pattern
from .bert import read_activation
from .checkpoint import Checkpoint
from .classifier import read_classifier
from .config import Config
from .layers import Attention, FeedForward, LayerNorm, read_windows
from .rotary import read_local_rope, read_rope


def slides(config: Mapping[str, Any]) -> Any:
    """Which layers have local attention: a flag for each, or the period of layers with global attention."""
    if config.get("layer_types"):
        return window_pattern(config)
    return config.get("global_attn_every_n_layers")


HF = Adapter(
    ("ModernBertModel", "ModernBertForSequenceClassification"),
    config=DECODER
    | {
        "attention.layer_norm_rms_epsilon": lambda config: None,
        "attention.layer_norm_epsilon": ("norm_eps", "layer_norm_eps"),
        "attention.sliding_window": "local_attention",
        "attention.sliding_window_pattern": slides,
        "rope.freq_base": ("rope.rope_theta", "global_rope_theta"),
        "rope.freq_base_swa": ("rope_local.rope_theta", "local_rope_theta"),
        "hidden_activation": "hidden_activation",
    },
    tensors={
        "embeddings.tok_embeddings": "token_embd",
        "embeddings.norm": "token_embd_norm",
        "layers.{i}.attn_norm": "blk.{i}.attn_norm",
        "layers.{i}.attn.Wqkv": "blk.{i}.attn_qkv",
        "layers.{i}.attn.Wo": "blk.{i}.attn_output",
        "layers.{i}.mlp_norm": "blk.{i}.ffn_norm",
        "layers.{i}.mlp.Wi": "blk.{i}.ffn_up",
        "layers.{i}.mlp.Wo": "blk.{i}.ffn_down",
        "final_norm": "output_norm",
    },
    classifier={"head.dense": "cls", "head.norm": "cls.norm", "classifier": "cls.output"},
)


class Model:
    has_head = False

    def __init__(self, file: Checkpoint) -> None:
        c = self.config = Config.read(file)
        self.classifier = read_classifier(file, c.hidden, activation="gelu", pooling="mean")
        rope, local = read_rope(file, c.k_dim, neox=True), read_local_rope(file, c.k_dim, neox=True)
        self.token_embd = file.embedding("token_embd.weight", c.vocab, c.hidden)
        self.token_embd_norm = LayerNorm(file, "token_embd_norm", c.hidden)
        self.blk = [
            Block(file, layer, c, local if window else rope, window // 2)
            for layer, window in enumerate(read_windows(file, c.layers, period=3, global_first=True))
        ]
        self.output_norm = LayerNorm(file, "output_norm", c.hidden)

    def forward(self, ops: Ops) -> Value:
        x = self.token_embd_norm(ops, ops.embed(self.token_embd))
        for block in self.blk:
            x = block.forward(ops, x)
        return self.output_norm(ops, x)


class Block:
    def __init__(self, file: Checkpoint, layer: int, c: Config, rope: Rope, radius: int) -> None:
        name = f"blk.{layer}"
        is_first = not file.has_tensor(f"{name}.attn_norm.weight")  # what it reads is normed already
        self.attn_norm = None if layer == 0 and is_first else LayerNorm(file, f"{name}.attn_norm", c.hidden)
        self.attn = Attention(file, layer, c, rope, radius=radius)
        self.ffn_norm = LayerNorm(file, f"{name}.ffn_norm", c.hidden)
        self.ffn = FeedForward(file, layer, c, read_activation(file), fused=True)

    def forward(self, ops: Ops, x: Value) -> Value:
        x = x + self.attn(ops, x if self.attn_norm is None else self.attn_norm(ops, x))
        return x + self.ffn(ops, self.ffn_norm(ops, x))
