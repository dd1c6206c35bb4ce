"""The sizes that every model has."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import FileError
from .checkpoint import Checkpoint

MAX_LAYERS = 1 << 12


@dataclass(frozen=True, slots=True)
class Config:
    """The sizes that all models have."""

    vocab: int
    ctx: int  # tokens that the model was made for
    layers: int
    hidden: int
    feed_forward: int  # the widest; 0: the file does not say, since it has experts only
    heads: int
    kv_heads: int  # of layers with attention; a file may say 0 of others
    k_dim: int  # of a head; queries have as many
    v_dim: int
    ctx_reason: str = "the model's own context"

    @classmethod
    def read(cls, file: Checkpoint, layers_differ: bool = False) -> Config:
        """Read the sizes from a file: the largest of each where `layers_differ`."""
        hidden, heads = file.size("embedding_length"), file.size("attention.head_count", most=1 << 14)
        blocks = file.size("block_count", most=MAX_LAYERS)
        layers = blocks - file.size("nextn_predict_layers", default=0, least=0, most=blocks - 1)
        for layer in range(layers, blocks):  # they only draft: mtp.py reads the first
            file.skip(f"blk.{layer}.")
        kv_heads = _largest(file, "attention.head_count_kv", blocks, heads, layers_differ)
        if not kv_heads or heads % kv_heads:
            raise FileError(f"{file.path}: {heads} heads cannot share {kv_heads} heads of K and V evenly")
        if not file.has("attention.key_length") and hidden % heads:
            raise FileError(f"{file.path}: an embedding of {hidden} values cannot be cut into {heads} heads evenly")
        k_dim = file.size("attention.key_length", default=hidden // heads, most=1 << 14)
        return cls(
            vocab=file.vocab,
            ctx=file.size("context_length", most=1 << 30),
            layers=layers,
            hidden=hidden,
            feed_forward=_largest(file, "feed_forward_length", blocks, 0, layers_differ),
            heads=heads,
            kv_heads=kv_heads,
            k_dim=k_dim,
            v_dim=file.size("attention.value_length", default=k_dim, most=1 << 14),
        )


def _largest(file: Checkpoint, key: str, layers: int, default: int, layers_differ: bool) -> int:
    """The size in all layers that have it; 0 marks a layer without."""
    sizes = set(file.sizes(key, layers, default=default, least=0)) - {0}
    if len(sizes) > 1 and not layers_differ:
        raise FileError(f"{file.path}: {key} must be the same number for all layers, there are {sorted(sizes)}")
    return max(sizes, default=0)
