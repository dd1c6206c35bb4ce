"""OLMo 2 and 3: norms after each part, and of all of Q and of K; in OLMo 3 three of four layers have a window."""

from __future__ import annotations

from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from .adapter import SANDWICH_TENSORS, Adapter
from .checkpoint import Checkpoint
from .config import Config
from .layers import Attention, FeedForward, Norm, read_output, read_windows
from .rotary import read_local_rope, read_rope

HF = Adapter(("Olmo2ForCausalLM",), tensors=SANDWICH_TENSORS)


class Model:
    def __init__(self, file: Checkpoint) -> None:
        c = self.config = Config.read(file)
        base = file.number("rope.freq_base", default=10000.0, least=1.0)
        rope, local = read_rope(file, c.k_dim, neox=True), read_local_rope(file, c.k_dim, base, neox=True)
        self.token_embd = file.embedding("token_embd.weight", c.vocab, c.hidden)
        self.blk = [
            Block(file, layer, c, local if window else rope, window)
            for layer, window in enumerate(read_windows(file, c.layers, every=4))
        ]
        self.output_norm = Norm(file, "output_norm", c.hidden)
        self.output = read_output(file, c)

    def forward(self, ops: Ops) -> Value:
        x = ops.embed(self.token_embd)
        for block in self.blk:
            x = block.forward(ops, x)
        return ops.linear(self.output_norm(ops, x), self.output)


class Block:
    def __init__(self, file: Checkpoint, layer: int, c: Config, rope: Rope, window: int) -> None:
        name = f"blk.{layer}"
        q_norm = Norm(file, f"{name}.attn_q_norm", c.heads * c.k_dim)
        k_norm = Norm(file, f"{name}.attn_k_norm", c.kv_heads * c.k_dim)
        self.attn = Attention(file, layer, c, rope, norms=(q_norm, k_norm), window=window)
        self.post_attention_norm = Norm(file, f"{name}.post_attention_norm", c.hidden)
        self.ffn = FeedForward(file, layer, c)
        self.post_ffw_norm = Norm(file, f"{name}.post_ffw_norm", c.hidden)

    def forward(self, ops: Ops, x: Value) -> Value:
        x = x + self.post_attention_norm(ops, self.attn(ops, x))
        return x + self.post_ffw_norm(ops, self.ffn(ops, x))
