"""Tiny models of the zoo with a random layer that predicts a further token (MTP)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import fewbit as fb

ZOO = Path(__file__).parent / "zoo"
FAMILIES = ("qwen35", "qwen35moe", "glm4moe", "deepseek2")


def with_mtp(folder: Path, name: str, own_tables: bool = True, likely: int = 0) -> Path:
    """A GGUF file: a model of the zoo, and after its layers a copy of the last one with other values.

    Args:
        folder: Where the file is written.
        name: Name of the model.
        own_tables: Whether the MTP layer has an embedding table, a norm and a head of its own.
        likely: Write few tokens, about so many: then guesses are often right.
    """
    file, random = fb.read_gguf(ZOO / name / "model.gguf"), np.random.default_rng(5)
    layers, hidden = (file.metadata[f"{name}.{key}"] for key in ("block_count", "embedding_length"))
    tensors = dict(file.tensors)
    for key, tensor in file.tensors.items():
        if key.startswith(f"blk.{layers - 1}."):
            values = tensor.dequantize()
            noise = random.normal(size=values.shape) * values.std()
            tensors[f"blk.{layers}." + key.split(".", 2)[2]] = np.float32(values if values.ndim < 2 else noise)
    new = f"blk.{layers}.nextn."
    tensors[f"{new}eh_proj.weight"] = np.float32(random.normal(size=(hidden, 2 * hidden)) / hidden**0.5)
    norms = ("enorm", "hnorm", "shared_head_norm") if own_tables else ("enorm", "hnorm")
    tensors |= {f"{new}{x}.weight": np.float32(random.uniform(0.5, 1.5, hidden)) for x in norms}
    if own_tables:
        vocab = file.tensors["token_embd.weight"].shape[0]
        for part in ("embed_tokens", "shared_head_head"):
            tensors[f"{new}{part}.weight"] = np.float32(random.normal(size=(vocab, hidden)) / 3)
    if likely:
        head = tensors.get("output.weight", tensors["token_embd.weight"]).dequantize().copy()
        head[40 : 40 + likely] *= 8
        tensors["output.weight"] = head
    path = folder / f"{name}.gguf"
    counts = {f"{name}.block_count": layers + 1, f"{name}.nextn_predict_layers": 1}
    fb.write_gguf(path, dict(file.metadata) | counts, tensors)
    return path
