"""The sizes that every model has."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import FileError
from .checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Config:
    """What the engine needs of a model, and the sizes that models share."""

    vocab: int
    ctx: int  # tokens that the model was made for
    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    k_dim: int  # of a head; queries have as many
    v_dim: int

    @classmethod
    def read(cls, file: Checkpoint) -> Config:
        hidden, heads = file.size("embedding_length"), file.size("attention.head_count", most=1 << 14)
        kv_heads = file.size("attention.head_count_kv", default=heads, most=1 << 14)
        if heads % kv_heads:
            raise FileError(f"{file.path}: {heads} heads cannot share {kv_heads} heads of K and V evenly")
        if not file.has("attention.key_length") and hidden % heads:
            raise FileError(f"{file.path}: an embedding of {hidden} values cannot be cut into {heads} heads evenly")
        k_dim = file.size("attention.key_length", default=hidden // heads, most=1 << 14)
        return cls(
            vocab=file.vocab,
            ctx=file.size("context_length", most=1 << 30),
            layers=file.size("block_count", most=1 << 12),
            hidden=hidden,
            feed_forward=file.size("feed_forward_length"),
            heads=heads,
            kv_heads=kv_heads,
            k_dim=k_dim,
            v_dim=file.size("attention.value_length", default=k_dim, most=1 << 14),
        )
