"""A mixture on a GPU whose experts are on the CPU, in part or all, beside whole layers there: steps in turns.

    python benchmarks/cpu_experts.py [model.gguf] --json

Without a file the model is a random one of 8 layers, each with 32 experts of 1,024 x 768, of which a token takes 4.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tensor_parallel import CTX, measure

import fewbit as fb
from fewbit.load_options import LoadOptions
from fewbit.loading import load
from fewbit.models import open_model

HIDDEN, LAYERS, HEADS, KV_HEADS, DIM, EXPERTS, USED, ROWS, VOCAB = 1024, 8, 16, 4, 64, 32, 4, 768, 8192


def write_random(path: Path) -> Path:
    rng = np.random.default_rng(0)

    def packed(*shape: int) -> Any:
        return fb.quantize(rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1])), "q4_0")

    sizes = {"attn_q": (HEADS * DIM, HIDDEN), "attn_k": (KV_HEADS * DIM, HIDDEN), "attn_v": (KV_HEADS * DIM, HIDDEN)}
    sizes["attn_output"] = HIDDEN, HEADS * DIM
    block: dict[str, Any] = {name: packed(*size) for name, size in sizes.items()}
    block |= {f"ffn_{name}_exps": packed(EXPERTS, ROWS, HIDDEN) for name in ("gate", "up")}
    block |= {"ffn_down_exps": packed(EXPERTS, HIDDEN, ROWS), "ffn_gate_inp": rng.standard_normal((EXPERTS, HIDDEN))}
    block |= {f"{name}_norm": np.ones(HIDDEN) for name in ("attn", "ffn")}
    block |= {f"attn_{name}_norm": np.ones(DIM) for name in ("q", "k")}
    own = {name: w.astype(np.float32) if isinstance(w, np.ndarray) else w for name, w in block.items()}
    tensors: dict[str, Any] = {f"blk.{i}.{name}.weight": w for i in range(LAYERS) for name, w in own.items()}
    tensors |= {"token_embd.weight": packed(VOCAB, HIDDEN), "output_norm.weight": np.ones(HIDDEN, np.float32)}
    config = {
        "block_count": LAYERS, "embedding_length": HIDDEN, "feed_forward_length": ROWS, "context_length": CTX,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.key_length": DIM, "attention.value_length": DIM, "expert_count": EXPERTS, "expert_used_count": USED,
        "expert_feed_forward_length": ROWS, "rope.freq_base": 10000.0,
    }  # fmt: skip
    metadata = {"general.architecture": "qwen3moe", **{f"qwen3moe.{key}": value for key, value in config.items()}}
    fb.write_gguf(path, metadata, tensors)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    usual: dict[str, Any] = {"device": "cuda", "ctx": CTX, "max_batched_tokens": 128}
    on_cpu: dict[str, Any] = {**usual, "threads": given.threads}
    with TemporaryDirectory() as folder:
        path = given.model or write_random(Path(folder, "model.gguf"))
        layers = load(open_model(path), LoadOptions(path, ctx=64)).cache.layout.groups[0].layers
        half = len(layers) // 2
        choices = {
            "one": usual,  # all on the GPU
            "half of the experts on the CPU": {**on_cpu, "cpu_experts": half},
            "all experts on the CPU": {**on_cpu, "cpu_experts": len(layers)},
            "half of the layers on the CPU": {**on_cpu, "gpu_layers": len(layers) - half},
        }
        variants = {name: load(open_model(path), LoadOptions(path, **own)) for name, own in choices.items()}
        found = {batch: measure(variants, batch, given.rounds, time.perf_counter) for batch in (1, 8)}
    if given.json:
        print(json.dumps(found))
        return
    for batch, seconds in found.items():
        for name, one in seconds.items():
            print(f"batch {batch}, {name}: {1e3 * one:.3f} ms a step")


if __name__ == "__main__":
    main()
