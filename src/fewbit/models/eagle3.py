"""EAGLE-3: a head that was trained beside a model. It guesses further tokens from hidden rows of three of its layers.

Rows of three layers become one of the usual width, which is paired with the token after it. Its one layer attends over
both side by side. The residual stream after it takes the place of the model's rows for further tokens. It may know
only some of the model's tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..arrays import Ints
from ..errors import FileError
from ..files.model import ModelFile
from ..ops.graph import Graph, Value
from ..ops.recorder import Ops, record
from ..ops.specs import AttentionSpec
from .adapter import DECODER, DECODER_TENSORS, Adapter, Tensors
from .checkpoint import Checkpoint, Prepare
from .decoder import Decoder
from .drafting import DraftGraphs, head_graph
from .layers import Linear, Norm
from .rotary import read_rope

ARCHITECTURE = "LlamaForCausalLMEagle3"
_LAYER = "model.layers.{i}."
_TENSORS: Tensors = {
    source.replace(_LAYER, "midlayer."): target.replace("{i}", "0")
    for source, target in DECODER_TENSORS.items()
    if isinstance(source, str) and isinstance(target, str) and source.startswith(_LAYER) and "{e}" not in source
}


def _taps(config: Mapping[str, Any]) -> Any:
    given = config.get("eagle_config")
    return given.get("eagle_aux_hidden_state_layer_ids") if isinstance(given, Mapping) else None


HF = Adapter(
    (ARCHITECTURE,),
    config=DECODER | {"taps": _taps, "draft_vocab_size": "draft_vocab_size"},
    tensors=_TENSORS
    | {
        "fc": "fc", "norm": "output_norm", "lm_head": "output", "embed_tokens": "token_embd", "d2t": "d2t",
        "midlayer.hidden_norm": "blk.0.hidden_norm",
    },
    dropped=("t2d",),
)  # fmt: skip


class Eagle3:
    """A head, beside the model whose rows it takes."""

    def __init__(self, file: Checkpoint, model: Decoder) -> None:
        c, self.model = model.config, model
        if (width := file.size("embedding_length")) != c.hidden:
            raise FileError(f"{file.path}: the head is for rows of {width} values, the model has {c.hidden}")
        self.hidden, self.number, self.taps = c.hidden, c.layers, read_taps(file, c.layers)
        self.heads, self.kv_heads = file.size("attention.head_count"), file.size("attention.head_count_kv")
        dim = file.size("attention.key_length", default=c.hidden // self.heads)
        self.spec, self.scale = AttentionSpec(self.kv_heads, dim, dim), 1 / math.sqrt(dim)
        self.rope = read_rope(file, dim, neox=True)
        rows, q, kv = file.size("feed_forward_length"), self.heads * dim, self.kv_heads * dim
        self.fc = Linear(file, "fc", c.hidden, 3 * c.hidden)
        self.attn_q, self.attn_k, self.attn_v = (
            Linear(file, f"blk.0.attn_{x}", n, 2 * c.hidden) for x, n in (("q", q), ("k", kv), ("v", kv))
        )
        self.attn_output = Linear(file, "blk.0.attn_output", c.hidden, q)
        self.attn_norm, self.hidden_norm, self.ffn_norm = (
            Norm(file, f"blk.0.{x}_norm", c.hidden) for x in ("attn", "hidden", "ffn")
        )
        self.ffn_gate, self.ffn_up = (Linear(file, f"blk.0.ffn_{x}", rows, c.hidden) for x in ("gate", "up"))
        self.ffn_down = Linear(file, "blk.0.ffn_down", c.hidden, rows)
        self.norm, self.token_embd = Norm(file, "output_norm", c.hidden), model.token_embd
        if file.has_tensor("token_embd.weight"):
            self.token_embd = file.embedding("token_embd.weight", c.vocab, c.hidden)
        self.vocab = file.size("draft_vocab_size", default=c.vocab, most=c.vocab)
        self.output = file.weight("output.weight", self.vocab, c.hidden)
        self.tokens = read_tokens(file, self.vocab, c.vocab)

    def graphs(self, graph: Graph) -> DraftGraphs:
        """The parts of a model and of its head."""
        rows, layer = record(self.rows, has_head=False), record(self.layer, has_head=False)
        own_head = record(lambda ops: ops.linear(self.norm(ops, ops.given(self.hidden)), self.output))
        return DraftGraphs(rows, head_graph(graph), layer, own_head, self.tokens)

    def rows(self, ops: Ops) -> Value:
        hidden, taps = self.model.rows(ops, self.taps)
        joined = ops.join(ops.join(taps[0], taps[1], 1), taps[2], 1)
        return ops.join(hidden, self.fc(ops, joined), 1)

    def layer(self, ops: Ops) -> Value:
        x, embedded = ops.given(self.hidden), ops.embed(self.token_embd)
        both = ops.join(self.attn_norm(ops, embedded), self.hidden_norm(ops, x), 1)
        q, k, v = (part(ops, both) for part in (self.attn_q, self.attn_k, self.attn_v))
        q, k = ops.rope(q, self.heads, self.rope), ops.rope(k, self.kv_heads, self.rope)
        x = x + self.attn_output(ops, ops.attend(self.number, q, k, v, spec=self.spec, scale=self.scale))
        rows = self.ffn_norm(ops, x)
        return x + self.ffn_down(ops, ops.gate(self.ffn_gate(ops, rows), self.ffn_up(ops, rows)))


def read_head(file: ModelFile, model: object, prepare: Prepare | None) -> Eagle3:
    """The head of a file, for a model whose layers follow each other plainly."""
    if not isinstance(model, Decoder) or type(model).forward is not Decoder.forward:
        raise FileError(f"{file.path}: EAGLE heads work with models that are plain decoders, this one is not")
    checkpoint = Checkpoint(file, prepare)
    head = Eagle3(checkpoint, model)
    checkpoint.refuse_unused()
    return head


def read_taps(file: Checkpoint, layers: int) -> list[int]:
    """The layers whose inputs are taken."""
    numbers = file.sizes("taps", 3, least=0) if file.has("taps") else [2, layers // 2, layers - 3]
    if sorted(set(numbers)) != numbers or numbers[-1] >= layers or numbers[0] < 0:
        raise FileError(f"{file.path}: the head takes rows of the layers {numbers}, the model has {layers} layers")
    return numbers


def read_tokens(file: Checkpoint, count: int, vocab: int) -> Ints | None:
    """The model's token for each token of the head; the file holds how far they are apart."""
    if not file.has_tensor("d2t"):
        if count != vocab:
            raise FileError(f"{file.path}: d2t is missing: the head knows {count} of {vocab} tokens")
        return None
    tokens = np.arange(count) + file.vector("d2t", count).astype(np.int64)
    if not ((tokens >= 0) & (tokens < vocab)).all():
        raise FileError(f"{file.path}: d2t names tokens that the model does not have")
    return np.asarray(tokens, np.int32)
