"""LFM2: most layers are a short convolution between two gates, some are attention."""

from __future__ import annotations

from ..ops.graph import Rope, Value
from ..ops.recorder import Ops
from ..ops.specs import RecurrentSpec
from .adapter import DECODER, DECODER_TENSORS, Adapter
from .checkpoint import Checkpoint
from .config import Config
from .decoder import Block, Decoder, Part
from .layers import Attention, FeedForward, Linear, Norm, head_norms
from .rotary import read_rope
from .transforms import SQUEEZED
from .transforms import Config as Json


def _feed_forward_length(config: Json) -> int:
    """Two thirds of the width in config.json, times a factor, rounded up to a multiple; unless already adjusted.

    >>> _feed_forward_length({"block_ff_dim": 12288, "block_multiple_of": 256, "block_auto_adjust_ff_dim": True})
    8192
    """
    width = int(config.get("block_ff_dim") or config["intermediate_size"])
    if not config.get("block_auto_adjust_ff_dim", True):
        return width
    width = int((config.get("block_ffn_dim_multiplier") or 1) * int(2 * width / 3))
    step = int(config.get("block_multiple_of", 256))
    return -(-width // step) * step


_LAYER = "model.layers.{i}"
HF = Adapter(
    ("Lfm2ForCausalLM",),
    config=DECODER | {"feed_forward_length": _feed_forward_length, "shortconv.l_cache": "conv_L_cache"},
    tensors=DECODER_TENSORS
    | {
        "model.embedding_norm": "token_embd_norm",
        f"{_LAYER}.operator_norm": "blk.{i}.attn_norm",
        f"{_LAYER}.ffn_norm": "blk.{i}.ffn_norm",
        f"{_LAYER}.self_attn.q_layernorm": "blk.{i}.attn_q_norm",
        f"{_LAYER}.self_attn.k_layernorm": "blk.{i}.attn_k_norm",
        f"{_LAYER}.self_attn.out_proj": "blk.{i}.attn_output",
        f"{_LAYER}.conv.in_proj": "blk.{i}.shortconv.in_proj",
        f"{_LAYER}.conv.out_proj": "blk.{i}.shortconv.out_proj",
        f"{_LAYER}.conv.conv.weight": ("blk.{i}.shortconv.conv.weight", SQUEEZED),
        f"{_LAYER}.conv.conv.bias": "blk.{i}.shortconv.conv.bias",
        f"{_LAYER}.feed_forward.w1": "blk.{i}.ffn_gate",
        f"{_LAYER}.feed_forward.w2": "blk.{i}.ffn_down",
        f"{_LAYER}.feed_forward.w3": "blk.{i}.ffn_up",
    },
)


class Model(Decoder):
    def __init__(self, file: Checkpoint) -> None:
        c = Config.read(file)
        rope = read_rope(file, c.k_dim, neox=True)
        blocks = [
            Block(file, i, c, read_mixer(file, i, c, rope), self.feed_forward(file, i, c)) for i in range(c.layers)
        ]
        super().__init__(file, c, blocks, norm=Norm(file, "token_embd_norm", c.hidden))

    def feed_forward(self, file: Checkpoint, layer: int, c: Config) -> Part:
        return FeedForward(file, layer, c)


def read_mixer(file: Checkpoint, layer: int, c: Config, rope: Rope) -> ShortConv | Attention:
    if file.has_tensor(f"blk.{layer}.shortconv.conv.weight"):
        return ShortConv(file, layer, c)
    window = file.size("attention.sliding_window", default=0, least=0)
    return Attention(file, layer, c, rope, norms=head_norms(file, layer, c), window=window)


class ShortConv:
    def __init__(self, file: Checkpoint, layer: int, c: Config) -> None:
        name, n = f"blk.{layer}.shortconv", c.hidden
        taps = file.size("shortconv.l_cache", least=2, most=64)
        self.layer, self.spec = layer, RecurrentSpec(4 * n * (taps - 1))
        self.in_proj = [Linear(file, f"{name}.in_proj", 3 * n, n, (i * n, (i + 1) * n)) for i in range(3)]
        self.weight = file.array(f"{name}.conv.weight", n, taps)
        self.bias = file.vector_or_none(f"{name}.conv.bias", n)
        self.out_proj = Linear(file, f"{name}.out_proj", n, n)

    def __call__(self, ops: Ops, x: Value) -> Value:
        before, after, x = (part(ops, x) for part in self.in_proj)
        y = ops.conv(ops.gate(before, x, "none"), self.layer, self.weight, self.bias, spec=self.spec)
        return self.out_proj(ops, ops.gate(after, y, "none"))
