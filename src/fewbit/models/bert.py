"""BERT, and what is built like it: MiniLM, BGE, E5, GTE. An encoder: it gives hidden rows, no logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..arrays import Floats
from ..errors import FileError
from ..formats import get
from ..ops.graph import Value
from ..ops.recorder import Ops
from ..tensor import QuantTensor
from .adapter import DECODER, Adapter
from .checkpoint import Checkpoint
from .classifier import read_classifier
from .config import Config
from .layers import MLP, Attention, LayerNorm
from .transforms import Array, Transform

ACTIVATIONS = {  # as transformers names them
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}


def first_position(config: Mapping[str, Any]) -> int:
    """The first position that is used: RoBERTa's begin after that of padding."""
    is_roberta = "oberta" in str(config.get("architectures"))
    return int(config.get("pad_token_id", 1)) + 1 if is_roberta else 0


def used_positions(w: Array, config: Mapping[str, Any]) -> Array:
    return w[first_position(config) :]


def context(config: Mapping[str, Any]) -> int:
    return int(config["max_position_embeddings"]) - first_position(config)


PREFIXES = ("", "bert.", "roberta.")
POOLER = ("pooler.dense.weight", "pooler.dense.bias")  # for training

HF = Adapter(
    (
        *("BertModel", "BertForSequenceClassification", "RobertaModel", "RobertaForSequenceClassification"),
        *("XLMRobertaModel", "XLMRobertaForSequenceClassification"),
    ),
    config=DECODER | {"hidden_activation": "hidden_act", "context_length": context},
    tensors={
        "embeddings.word_embeddings": "token_embd",
        "embeddings.position_embeddings": ("position_embd", Transform(used_positions, moves_rows=True)),
        "embeddings.token_type_embeddings": "token_types",
        "embeddings.LayerNorm": "token_embd_norm",
        "encoder.layer.{i}.attention.self.query": "blk.{i}.attn_q",
        "encoder.layer.{i}.attention.self.key": "blk.{i}.attn_k",
        "encoder.layer.{i}.attention.self.value": "blk.{i}.attn_v",
        "encoder.layer.{i}.attention.output.dense": "blk.{i}.attn_output",
        "encoder.layer.{i}.attention.output.LayerNorm": "blk.{i}.attn_output_norm",
        "encoder.layer.{i}.intermediate.dense": "blk.{i}.ffn_up",
        "encoder.layer.{i}.output.dense": "blk.{i}.ffn_down",
        "encoder.layer.{i}.output.LayerNorm": "blk.{i}.layer_output_norm",
    },
    dropped=(
        "embeddings.position_ids",
        *(f"{prefix}{name}" for name in POOLER for prefix in ("", "bert.", "roberta.")),
    ),
    classifier={
        "pooler.dense": "cls",  # of BERT; RoBERTa has one of its own
        "classifier.dense": "cls",
        "classifier": "cls.output",
        "classifier.out_proj": "cls.output",
    },
)


class Model:
    has_head = False

    def __init__(self, file: Checkpoint) -> None:
        c = Config.read(file)
        self.classifier = read_classifier(file, c.hidden)
        self.embeddings = Embeddings(file, c, reads_pairs=self.classifier is not None)
        self.second_text = c.vocab if self.embeddings.has_pairs else 0
        c = self.config = replace(c, vocab=c.vocab + self.second_text)
        self.position_embd = file.embedding("position_embd.weight", c.ctx, c.hidden)
        self.blk = [Block(file, layer, c) for layer in range(c.layers)]

    def forward(self, ops: Ops) -> Value:
        x = self.embeddings(ops, ops.positions(self.position_embd))
        for block in self.blk:
            x = block.forward(ops, x)
        return x


class Embeddings:
    """Token embeddings, plus those of token type 0 and of positions where they exist, then a norm."""

    def __init__(self, file: Checkpoint, c: Config, reads_pairs: bool = False) -> None:
        self.token_embd = file.embedding("token_embd.weight", c.vocab, c.hidden)
        types = file.table("token_types.weight", c.hidden) if file.has_tensor("token_types.weight") else None
        self.token_type = None if types is None else types[0]
        self.has_pairs = reads_pairs and types is not None and len(types) > 1
        if self.has_pairs and types is not None:
            self.token_embd = with_second_type(self.token_embd, types)
        self.token_embd_norm = LayerNorm(file, "token_embd_norm", c.hidden)

    def __call__(self, ops: Ops, positions: Value | None = None) -> Value:
        x = ops.embed(self.token_embd)
        if positions is not None:
            x = x + positions
        if self.token_type is not None:
            x = ops.shift(x, self.token_type)
        return self.token_embd_norm(ops, x)


class Block:
    def __init__(self, file: Checkpoint, layer: int, c: Config) -> None:
        name = f"blk.{layer}"
        self.attn = Attention(file, layer, c, None, radius=0)
        self.attn_output_norm = LayerNorm(file, f"{name}.attn_output_norm", c.hidden)
        self.ffn = MLP(file, layer, c, read_activation(file))
        self.layer_output_norm = LayerNorm(file, f"{name}.layer_output_norm", c.hidden)

    def forward(self, ops: Ops, x: Value) -> Value:
        x = self.attn_output_norm(ops, x + self.attn(ops, x))
        return self.layer_output_norm(ops, x + self.ffn(ops, x))


def with_second_type(token_embd: QuantTensor, types: Floats) -> QuantTensor:
    """An embedding table whose second half holds the tokens of a second text, which are of type 1."""
    rows = token_embd.dequantize()
    both = np.concatenate([rows, rows + (types[1] - types[0])]).astype(np.float32)
    return QuantTensor.from_bytes(both.reshape(-1).view(np.uint8), both.shape, get("f32"))


def read_activation(file: Checkpoint, usual: str = "gelu") -> str:
    """The activation function of the feed-forward layers."""
    kind = file.word("hidden_activation", default=usual)
    if kind not in ACTIVATIONS:
        raise FileError(f"{file.path}: hidden_activation {kind!r} is not known; there are: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[kind]
