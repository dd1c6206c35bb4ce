"""BERT, and what is built like it: MiniLM, BGE, E5, GTE. An encoder: it gives hidden rows, no logits."""

from __future__ import annotations

from ..errors import FileError
from ..ops.graph import Value
from ..ops.recorder import Ops
from .adapter import DECODER, Adapter
from .checkpoint import Checkpoint
from .config import Config
from .layers import MLP, Attention, LayerNorm

ACTIVATIONS = {  # as transformers names them
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}
POOLER = ("pooler.dense.weight", "pooler.dense.bias")  # for training

HF = Adapter(
    ("BertModel",),
    config=DECODER | {"hidden_activation": "hidden_act"},
    tensors={
        "embeddings.word_embeddings": "token_embd",
        "embeddings.position_embeddings": "position_embd",
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
    dropped=("embeddings.position_ids", *POOLER, *(f"bert.{name}" for name in POOLER)),
)


class Model:
    has_head = False

    def __init__(self, file: Checkpoint) -> None:
        refuse_classifier(file)
        c = self.config = Config.read(file)
        self.embeddings = Embeddings(file, c)
        self.position_embd = file.embedding("position_embd.weight", c.ctx, c.hidden)
        self.blk = [Block(file, layer, c) for layer in range(c.layers)]

    def forward(self, ops: Ops) -> Value:
        x = self.embeddings(ops, ops.positions(self.position_embd))
        for block in self.blk:
            x = block.forward(ops, x)
        return x


class Embeddings:
    """Token embeddings, plus those of token type 0 and of positions where they exist, then a norm."""

    def __init__(self, file: Checkpoint, c: Config) -> None:
        self.token_embd = file.embedding("token_embd.weight", c.vocab, c.hidden)
        has_types = file.has_tensor("token_types.weight")
        self.token_type = file.row("token_types.weight", c.hidden) if has_types else None
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


def refuse_classifier(file: Checkpoint) -> None:
    """Refuse classifiers and rerankers: encoders with a scoring head."""
    if any(file.has_tensor(f"{name}.weight") for name in ("cls", "cls.output")):
        raise FileError(f"{file.path}: classifiers and rerankers are not supported; a model for embeddings is")


def read_activation(file: Checkpoint, usual: str = "gelu") -> str:
    """The activation function of the feed-forward layers."""
    kind = file.word("hidden_activation", default=usual)
    if kind not in ACTIVATIONS:
        raise FileError(f"{file.path}: hidden_activation {kind!r} is not known; there are: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[kind]
