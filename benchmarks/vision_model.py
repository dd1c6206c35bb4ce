"""Writes an image encoder of Qwen3-VL-2B's shape with random weights, which llama.cpp loads too.

    python benchmarks/vision_model.py mmproj.gguf --layers 24

Speed does not depend on what the weights are, so that measurements need no download. Layers share their weights in
memory while the file is written, but not in the file.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import fewbit as fb
from fewbit.files.gguf.writer import write_gguf
from fewbit.models.vision.qwen import CLIP_MEAN, CLIP_STD

LAYERS, HIDDEN, FEED_FORWARD, HEADS, PATCH, MERGE, OUT, SIDE = 24, 1024, 4096, 16, 16, 2, 2048, 48
DEEPSTACK = (5, 11, 17)
JOINED = HIDDEN * MERGE**2


def metadata(layers: int) -> dict[str, Any]:
    vision = {
        "image_size": SIDE * PATCH, "patch_size": PATCH,
        "embedding_length": HIDDEN, "feed_forward_length": FEED_FORWARD,
        "block_count": layers, "projection_dim": OUT, "attention.head_count": HEADS,
        "attention.layer_norm_epsilon": 1e-6, "spatial_merge_size": MERGE,
        "image_mean": np.array(CLIP_MEAN, np.float32), "image_std": np.array(CLIP_STD, np.float32),
        "is_deepstack_layers": np.array([layer in DEEPSTACK for layer in range(layers)]),
    }  # fmt: skip
    return {
        "general.architecture": "clip",
        "general.type": "mmproj",
        "clip.has_vision_encoder": True,
        "clip.projector_type": "qwen3vl_merger",
        "clip.use_gelu": True,
        **{f"clip.vision.{name}": value for name, value in vision.items()},
    }


def tensors(layers: int, format: str) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    made: dict[tuple[int, int], Any] = {}
    out: dict[str, Any] = {}

    def linear(name: str, n: int, k: int) -> None:
        if (n, k) not in made:
            made[n, k] = fb.quantize(rng.standard_normal((n, k), np.float32) / np.float32(2 * np.sqrt(k)), format)
        out[f"{name}.weight"] = made[n, k]
        out[f"{name}.bias"] = np.zeros(n, np.float32)

    def norm(name: str, size: int) -> None:
        out[f"{name}.weight"], out[f"{name}.bias"] = np.ones(size, np.float32), np.zeros(size, np.float32)

    for layer in range(layers):
        norm(f"v.blk.{layer}.ln1", HIDDEN)
        norm(f"v.blk.{layer}.ln2", HIDDEN)
        linear(f"v.blk.{layer}.attn_qkv", 3 * HIDDEN, HIDDEN)
        linear(f"v.blk.{layer}.attn_out", HIDDEN, HIDDEN)
        linear(f"v.blk.{layer}.ffn_up", FEED_FORWARD, HIDDEN)
        linear(f"v.blk.{layer}.ffn_down", HIDDEN, FEED_FORWARD)
    for layer in (layer for layer in DEEPSTACK if layer < layers):
        norm(f"v.deepstack.{layer}.norm", JOINED)
        linear(f"v.deepstack.{layer}.fc1", JOINED, JOINED)
        linear(f"v.deepstack.{layer}.fc2", OUT, JOINED)
    linear("mm.0", JOINED, JOINED)
    linear("mm.2", OUT, JOINED)
    norm("v.post_ln", HIDDEN)
    patch = rng.standard_normal((2, HIDDEN, 3, PATCH, PATCH), np.float32) / np.float32(np.sqrt(6 * PATCH**2))
    out["v.patch_embd.weight"], out["v.patch_embd.weight.1"] = patch
    out["v.patch_embd.bias"] = np.zeros(HIDDEN, np.float32)
    out["v.position_embd.weight"] = rng.standard_normal((SIDE**2, HIDDEN), np.float32) / np.float32(4)
    return out


def write_model(path: Path, layers: int = LAYERS, format: str = "q8_0") -> None:
    """The encoder's file."""
    write_gguf(path, metadata(layers), tensors(layers, format))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--format", default="q8_0")
    args = parser.parse_args()
    write_model(args.path, args.layers, args.format)


if __name__ == "__main__":
    main()
