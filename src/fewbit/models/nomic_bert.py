"""Nomic BERT: BERT with rotary positions and a gated feed-forward layer."""

from __future__ import annotations

from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from .adapter import DECODER, Adapter
from .bert import Embeddings
from .checkpoint import Checkpoint
from .config import Config
from .layers import Attention, FeedForward, LayerNorm
from .rotary import read_rope

HF = Adapter(
    ("NomicBertModel",),
    config=DECODER | {"rope.freq_base": ("rope.rope_theta", "rotary_emb_base")},
    tensors={
        "embeddings.word_embeddings": "token_embd",
        "embeddings.token_type_embeddings": "token_types",
        "emb_ln": "token_embd_norm",
        "encoder.layers.{i}.attn.Wqkv": "blk.{i}.attn_qkv",
        "encoder.layers.{i}.attn.out_proj": "blk.{i}.attn_output",
        "encoder.layers.{i}.norm1": "blk.{i}.attn_output_norm",
        "encoder.layers.{i}.mlp.fc11": "blk.{i}.ffn_up",
        "encoder.layers.{i}.mlp.fc12": "blk.{i}.ffn_gate",
        "encoder.layers.{i}.mlp.fc2": "blk.{i}.ffn_down",
        "encoder.layers.{i}.norm2": "blk.{i}.layer_output_norm",
    },
)


class Model:
    has_head = False

    def __init__(self, file: Checkpoint) -> None:
        c = self.config = Config.read(file)
        rope = read_rope(file, c.k_dim, neox=True)
        self.embeddings = Embeddings(file, c)
        self.blk = [Block(file, layer, c, rope) for layer in range(c.layers)]

    def forward(self, ops: Ops) -> Value:
        x = self.embeddings(ops)
        for block in self.blk:
            x = block.forward(ops, x)
        return x


class Block:
    def __init__(self, file: Checkpoint, layer: int, c: Config, rope: Rope) -> None:
        name = f"blk.{layer}"
        self.attn = Attention(file, layer, c, rope, radius=0)
        self.attn_output_norm = LayerNorm(file, f"{name}.attn_output_norm", c.hidden)
        self.ffn = FeedForward(file, layer, c, "silu")
        self.layer_output_norm = LayerNorm(file, f"{name}.layer_output_norm", c.hidden)

    def forward(self, ops: Ops, x: Value) -> Value:
        x = self.attn_output_norm(ops, x + self.attn(ops, x))
        return self.layer_output_norm(ops, x + self.ffn(ops, x))
