"""Writes a Llama of TinyLlama's shape (1.1B) with random weights as Q4_K_M, which llama.cpp loads too.

    python benchmarks/random_1b.py SmolLM2.gguf random-1b.gguf

The tokenizer is that of the first file. Speed does not depend on what the weights are, so that measurements need no
download. Layers share their weights in memory while the file is written, but not in the file.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import fewbit as fb

LAYERS, HIDDEN, FEED_FORWARD, HEADS, KV_HEADS = 22, 2048, 5632, 32, 4
HEAD_DIM = HIDDEN // HEADS


def tensors(vocab: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    made: dict[tuple[int, int, str], Any] = {}

    def matrix(n: int, k: int, format: str = "q4_k") -> Any:
        if (n, k, format) not in made:
            weights = rng.standard_normal((n, k), np.float32) / np.float32(np.sqrt(k))
            made[n, k, format] = fb.quantize(weights, format)
        return made[n, k, format]

    ones = np.ones(HIDDEN, np.float32)
    out = {
        "token_embd.weight": matrix(vocab, HIDDEN),
        "output.weight": matrix(vocab, HIDDEN, "q6_k"),
        "output_norm.weight": ones,
    }
    for layer in range(LAYERS):
        exact = layer < LAYERS // 8 or layer >= 7 * LAYERS // 8 or layer % 3 == 2
        finer = "q6_k" if exact else "q4_k"  # as Q4_K_M chooses them
        layer_tensors = {
            "attn_norm": ones,
            "attn_q": matrix(HIDDEN, HIDDEN),
            "attn_k": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_v": matrix(KV_HEADS * HEAD_DIM, HIDDEN, finer),
            "attn_output": matrix(HIDDEN, HIDDEN),
            "ffn_norm": ones,
            "ffn_gate": matrix(FEED_FORWARD, HIDDEN),
            "ffn_up": matrix(FEED_FORWARD, HIDDEN),
            "ffn_down": matrix(HIDDEN, FEED_FORWARD, finer),
        }
        out |= {f"blk.{layer}.{name}.weight": tensor for name, tensor in layer_tensors.items()}
    return out


def metadata(donor: str) -> dict[str, Any]:
    given = fb.read_gguf(donor).metadata
    return {
        "general.architecture": "llama",
        "general.name": "random-1b",
        "general.file_type": 15,  # mostly Q4_K_M
        "llama.context_length": 8192,
        "llama.block_count": LAYERS,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": HEAD_DIM,
        "llama.rope.freq_base": 10000.0,
        **{key: value for key, value in given.items() if key.startswith("tokenizer.")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("donor", help="a GGUF file with a tokenizer")
    parser.add_argument("out")
    args = parser.parse_args()
    header = metadata(args.donor)
    fb.write_gguf(args.out, header, tensors(len(header["tokenizer.ggml.tokens"])))


if __name__ == "__main__":
    main()
