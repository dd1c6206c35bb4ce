"""The layer that predicts a further token (MTP), which GGUF calls nextn.

The model's own last layer gives a hidden row for each token, from which the next token t follows. The MTP layer takes
that row, after the final norm, and t, and predicts the token after t. Its own hidden row can take the place of the
model's, to predict one more.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ops.graph import Value
from ..ops.recorder import Ops
from .checkpoint import Checkpoint
from .decoder import Decoder, Part
from .layers import Linear, Norm


def read_mtp(file: Checkpoint, model: Decoder, block: Callable[[int], Part]) -> MtpLayer | None:
    """The MTP layer of a model, if it is wanted and there is one; `block` makes a layer of the model by its number."""
    layer = model.config.layers
    return MtpLayer(file, model, block(layer)) if file.mtp and file.has_tensor(_name(layer, "eh_proj")) else None


class MtpLayer:
    """A block over hidden rows joined with embeddings. The embedding table and the head may be those of the model."""

    def __init__(self, file: Checkpoint, model: Decoder, block: Part) -> None:
        c, self.block = model.config, block
        name = f"blk.{c.layers}.nextn"
        self.hidden = c.hidden
        self.enorm, self.hnorm = (Norm(file, f"{name}.{x}norm", c.hidden) for x in ("e", "h"))
        self.eh_proj = Linear(file, f"{name}.eh_proj", c.hidden, 2 * c.hidden)
        self.token_embd, self.norm, self.output = model.token_embd, model.output_norm, model.output
        if file.has_tensor(table := _name(c.layers, "embed_tokens")):
            self.token_embd = file.embedding(table, c.vocab, c.hidden)
        if file.has_tensor(_name(c.layers, "shared_head_norm")):
            self.norm = Norm(file, f"{name}.shared_head_norm", c.hidden)
        if file.has_tensor(head := _name(c.layers, "shared_head_head")):
            self.output = file.weight(head, c.vocab, c.hidden)

    def forward(self, ops: Ops) -> Value:
        hidden, embedded = ops.given(self.hidden), ops.embed(self.token_embd)  # what is given comes first
        both = ops.join(self.enorm(ops, embedded), self.hnorm(ops, hidden), 1)
        return ops.linear(self.norm(ops, self.block(ops, self.eh_proj(ops, both))), self.output)


def _name(layer: int, part: str) -> str:
    return f"blk.{layer}.nextn.{part}.weight"
