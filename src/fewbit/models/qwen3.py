"""Qwen3: heads of Q and K are normalized."""

from __future__ import annotations

from ..ops.graph import Rope
from .adapter import DECODER, OPTIONAL_WINDOWS, Adapter
from .checkpoint import Checkpoint
from .classifier import read_classifier
from .config import Config
from .decoder import Block, UniformDecoder
from .layers import Attention, FeedForward, head_norms

HF = Adapter(
    ("Qwen3ForCausalLM", "Qwen3Model", "Qwen3ForSequenceClassification"),
    config=DECODER | OPTIONAL_WINDOWS,
    classifier={"score": "cls.output"},
)


class Model(UniformDecoder):
    def __init__(self, file: Checkpoint) -> None:
        super().__init__(file)
        self.classifier = read_classifier(file, self.config.hidden, pooling="last")

    def block(self, file: Checkpoint, layer: int, c: Config, rope: Rope, window: int) -> Block:
        attn = Attention(file, layer, c, rope, norms=head_norms(file, layer, c), window=window)
        return Block(file, layer, c, attn, FeedForward(file, layer, c))
