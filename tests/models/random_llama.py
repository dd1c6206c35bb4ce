"""Small Llama models with random weights, as GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import fewbit as fb

METADATA = {
    "general.architecture": "llama",
    "llama.context_length": 512,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
}


def llama(
    hidden: int = 64,
    feed_forward: int = 96,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    dim: int | None = None,
    vocab: int = 61,
    format: str = "q8_0",
    tied: bool = False,
    biases: bool = False,
    seed: int = 0,
    **metadata: Any,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata and tensors."""
    rng = np.random.default_rng(seed)
    size = dim or hidden // heads
    known = {
        **METADATA,
        "llama.block_count": layers,
        "llama.embedding_length": hidden,
        "llama.feed_forward_length": feed_forward,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        **({"llama.attention.key_length": dim, "llama.attention.value_length": dim} if dim else {}),
        **{f"llama.{key.replace('__', '.')}": value for key, value in metadata.items()},
    }
    tensors: dict[str, Any] = {}

    def matrix(name: str, rows: int, columns: int) -> None:
        values = rng.standard_normal((rows, columns), np.float32) / np.float32(np.sqrt(columns))
        tensors[f"{name}.weight"] = fb.quantize(values, format)
        if biases and "blk" in name:
            tensors[f"{name}.bias"] = rng.standard_normal(rows).astype(np.float32)

    def norm(name: str) -> None:
        tensors[f"{name}.weight"] = (1 + 0.1 * rng.standard_normal(hidden)).astype(np.float32)

    tensors["token_embd.weight"] = fb.quantize(rng.standard_normal((vocab, hidden), np.float32), format)
    for i in range(layers):
        block = f"blk.{i}"
        norm(f"{block}.attn_norm")
        matrix(f"{block}.attn_q", heads * size, hidden)
        matrix(f"{block}.attn_k", kv_heads * size, hidden)
        matrix(f"{block}.attn_v", kv_heads * size, hidden)
        matrix(f"{block}.attn_output", hidden, heads * size)
        norm(f"{block}.ffn_norm")
        matrix(f"{block}.ffn_gate", feed_forward, hidden)
        matrix(f"{block}.ffn_up", feed_forward, hidden)
        matrix(f"{block}.ffn_down", hidden, feed_forward)
    norm("output_norm")
    if not tied:
        matrix("output", vocab, hidden)
    return known, tensors


def write_llama(path: Path, **options: Any) -> Path:
    """The same in a file."""
    fb.write_gguf(path, *llama(**options))
    return path
