"""OLMo 2 and 3: norms after each part, and of all of Q and of K; in OLMo 3 three of four layers have a window."""

from __future__ import annotations

from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from .adapter import DECODER, SANDWICH_TENSORS, WINDOWS, Adapter
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Decoder
from .layers import Attention, FeedForward, Norm, read_windows
from .rotary import read_local_rope, read_rope

HF = Adapter(("Olmo2ForCausalLM", "Olmo3ForCausalLM"), config=DECODER | WINDOWS, tensors=SANDWICH_TENSORS)


class Model(Decoder):
    def __init__(self, file: Checkpoint) -> None:
        c = Config.read(file)
        base = file.number("rope.freq_base", default=10000.0, least=1.0)
        rope, local = read_rope(file, c.k_dim, neox=True), read_local_rope(file, c.k_dim, base, neox=True)
        windows = read_windows(file, c.layers, period=4)
        blocks = [NormsAfter(file, i, c, local if window else rope, window) for i, window in enumerate(windows)]
        super().__init__(file, c, blocks)


class NormsAfter:
    def __init__(self, file: Checkpoint, layer: int, c: Config, rope: Rope, window: int) -> None:
        name = f"blk.{layer}"
        q_norm = Norm(file, f"{name}.attn_q_norm", c.heads * c.k_dim)
        k_norm = Norm(file, f"{name}.attn_k_norm", c.kv_heads * c.k_dim)
        self.attn = Attention(file, layer, c, rope, norms=(q_norm, k_norm), window=window)
        self.post_attention_norm = Norm(file, f"{name}.post_attention_norm", c.hidden)
        self.ffn = FeedForward(file, layer, c)
        self.post_ffw_norm = Norm(file, f"{name}.post_ffw_norm", c.hidden)

    def __call__(self, ops: Ops, x: Value) -> Value:
        x = x + self.post_attention_norm(ops, self.attn(ops, x))
        return x + self.post_ffw_norm(ops, self.ffn(ops, x))
