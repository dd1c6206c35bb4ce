"""ModernBERT: norms before each part, rotary positions; of three layers two look around, with a rope of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from .adapter import DECODER, Adapter
from .bert import read_activation, refuse_classifier
from .checkpoint import Checkpoint
from .config import Config
from .layers import Attention, FeedForward, LayerNorm
from .rotary import read_local_rope, read_rope

PATTERN = "attention.sliding_window_pattern"


def slides(config: Mapping[str, Any]) -> list[bool]:
    """Which layers look around only."""
    kinds = config.get("layer_types")
    if kinds:
        return [kind == "sliding_attention" for kind in kinds]
    every = config.get("global_attn_every_n_layers", 3)
    return [layer % every > 0 for layer in range(config["num_hidden_layers"])]


HF = Adapter(
    ("ModernBertModel",),
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
)


class Model:
    has_head = False

    def __init__(self, file: Checkpoint) -> None:
        refuse_classifier(file)
        c = self.config = Config.read(file)
        rope, local = read_rope(file, c.k_dim, neox=True), read_local_rope(file, c.k_dim, neox=True)
        window = file.size("attention.sliding_window", default=0, least=0)
        local_layers = file.flags(PATTERN, c.layers) if file.has(PATTERN) else [n % 3 > 0 for n in range(c.layers)]
        self.token_embd = file.embedding("token_embd.weight", c.vocab, c.hidden)
        self.token_embd_norm = LayerNorm(file, "token_embd_norm", c.hidden)
        self.blk = [
            Block(file, layer, c, local, window // 2) if slide and window else Block(file, layer, c, rope, 0)
            for layer, slide in enumerate(local_layers)
        ]
        self.output_norm = LayerNorm(file, "output_norm", c.hidden)

    def forward(self, ops: Ops) -> Value:
        x = self.token_embd_norm(ops, ops.embed(self.token_embd))
        for block in self.blk:
            x = block.forward(ops, x)
        return self.output_norm(ops, x)


class Block:
    def __init__(self, file: Checkpoint, layer: int, c: Config, rope: Rope, around: int) -> None:
        name = f"blk.{layer}"
        is_first = not file.has_tensor(f"{name}.attn_norm.weight")  # what it reads is normed already
        self.attn_norm = None if layer == 0 and is_first else LayerNorm(file, f"{name}.attn_norm", c.hidden)
        self.attn = Attention(file, layer, c, rope, around=around)
        self.ffn_norm = LayerNorm(file, f"{name}.ffn_norm", c.hidden)
        self.ffn = FeedForward(file, layer, c, read_activation(file), fused=True)

    def forward(self, ops: Ops, x: Value) -> Value:
        x = x + self.attn(ops, x if self.attn_norm is None else self.attn_norm(ops, x))
        return x + self.ffn(ops, self.ffn_norm(ops, x))
