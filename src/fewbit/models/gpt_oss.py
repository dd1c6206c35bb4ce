"""gpt-oss: experts in MXFP4 or floats, attention sinks, and every other layer with a window."""

from __future__ import annotations

from ..ops.graph import Rope
from .adapter import DECODER, DECODER_TENSORS, WINDOWS, Adapter
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block, Decoder
from .experts import Experts
from .layers import Attention, read_windows
from .rotary import read_rope
from .transforms import MXFP4, TRANSPOSED, every, mxfp4_rows, transposed_every

EXPERTS = "model.layers.{i}.mlp.experts."
HF = Adapter(
    ("GptOssForCausalLM",),
    config=DECODER | WINDOWS | {"expert_feed_forward_length": "intermediate_size"},
    tensors=DECODER_TENSORS
    | {
        "model.layers.{i}.post_attention_layernorm": "blk.{i}.post_attention_norm",
        "model.layers.{i}.self_attn.sinks": "blk.{i}.attn_sinks.weight",
        "model.layers.{i}.mlp.router": "blk.{i}.ffn_gate_inp",
        (EXPERTS + "gate_up_proj_blocks", EXPERTS + "gate_up_proj_scales"): [
            ("blk.{i}.ffn_gate_exps.weight", mxfp4_rows(0, 2)),
            ("blk.{i}.ffn_up_exps.weight", mxfp4_rows(1, 2)),
        ],
        (EXPERTS + "down_proj_blocks", EXPERTS + "down_proj_scales"): ("blk.{i}.ffn_down_exps.weight", MXFP4),
        EXPERTS + "gate_up_proj": [
            ("blk.{i}.ffn_gate_exps.weight", transposed_every(0, 2)),
            ("blk.{i}.ffn_up_exps.weight", transposed_every(1, 2)),
        ],
        EXPERTS + "down_proj": ("blk.{i}.ffn_down_exps.weight", TRANSPOSED),
        EXPERTS + "gate_up_proj_bias": [
            ("blk.{i}.ffn_gate_exps.bias", every(0, 2, axis=1)),
            ("blk.{i}.ffn_up_exps.bias", every(1, 2, axis=1)),
        ],
        EXPERTS + "down_proj_bias": "blk.{i}.ffn_down_exps.bias",
    },
)


class Model(Decoder):
    def __init__(self, file: Checkpoint) -> None:
        c = Config.read(file)
        rope = read_rope(file, c.k_dim, neox=True, truncate=False)
        windows = read_windows(file, c.layers, period=2)
        super().__init__(file, c, [block(file, layer, c, rope, window) for layer, window in enumerate(windows)])


def block(file: Checkpoint, layer: int, c: Config, rope: Rope, window: int) -> Block:
    sinks = file.vector(f"blk.{layer}.attn_sinks.weight", c.heads)
    attn = Attention(file, layer, c, rope, window=window, sinks=sinks)
    ffn = Experts(file, layer, c, score="softmax_top", kind="swiglu_oai")
    return Block(file, layer, c, attn, ffn, ffn_norm="post_attention_norm")
