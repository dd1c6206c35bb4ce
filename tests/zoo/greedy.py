"""Writes the greedy text of llama.cpp for each model of the zoo, and compares its logits with the golden ones.

python -m tests.zoo.greedy --converter LLAMA_CPP_FOLDER [NAME ...]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import torch

from .make import ZOO, convert, run
from .make import load as load_checkpoint
from .records import RECORDS, Record

NUM_PROMPT = 12
NUM_GREEDY = 16
MAX_ERROR = 1e-3  # of the logits; where llama.cpp computes something else its text is no golden data
F32 = 0  # GGML_TYPE_F32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--converter", type=Path, required=True, help="folder of llama.cpp's convert_hf_to_gguf.py")
    parser.add_argument("names", nargs="*", help="models to run; all if none is named")
    args = parser.parse_args()
    for record in RECORDS:
        if not args.names or record.name in args.names:
            compare(record, args.converter)


BY_TRANSFORMERS = ("gemma3n",)  # llama.cpp's K and V are shared by fixed layers of a larger model


@torch.no_grad()
def by_transformers(record: Record) -> None:
    """The greedy text of transformers."""
    tokens = np.load(ZOO / record.name / "golden.npz")["tokens"].tolist()[:NUM_PROMPT]
    model, text, gaps = load_checkpoint(record, ZOO / record.name / "hf"), [*tokens], []
    for _ in range(NUM_GREEDY):
        scores = run(model, record, text)["logits"][-1]
        second, first = np.sort(scores)[-2:]
        text.append(int(scores.argmax()))
        gaps.append(round(float(first - second), 5))
    values = {"prompt": tokens, "tokens": text[NUM_PROMPT:], "gaps": gaps}
    (ZOO / record.name / "greedy.json").write_text(json.dumps(values) + "\n")


def compare(record: Record, converter: Path) -> None:
    """Runs the same weights in F32: with 16-bit weights llama.cpp would round activations to 16 bits too."""
    folder = ZOO / record.name
    if record.name in BY_TRANSFORMERS:
        by_transformers(record)
        return
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "model.gguf"
        convert(plain_checkpoint(record, Path(temporary)), path, converter, record, "f32")
        golden = np.load(folder / "golden.npz")
        tokens = golden["tokens"].tolist()
        if record.pooling:
            print(f"{record.name}: embedding error {error(embed(path, tokens), golden['embedding']):.1e}", flush=True)
            return
        model = load(path)
        difference = error(logits(model, tokens), golden["logits"])
        print(f"{record.name}: logits error {difference:.1e}", flush=True)
        (folder / "greedy.json").unlink(missing_ok=True)
        if difference < MAX_ERROR:
            (folder / "greedy.json").write_text(json.dumps(greedy(model, tokens[:NUM_PROMPT])) + "\n")


def plain_checkpoint(record: Record, temporary: Path) -> Path:
    """The checkpoint, its MXFP4 experts decoded: with them llama.cpp would round activations to 8 bits."""
    source = ZOO / record.name / "hf"
    if not record.mxfp4:
        return source
    shutil.copytree(source, temporary / "hf")
    model = load_checkpoint(record, source)
    model.save_pretrained(temporary / "hf")
    return temporary / "hf"


def load(path: Path, **options: Any) -> llama_cpp.Llama:
    exact = {"type_k": F32, "type_v": F32, "flash_attn": False, "swa_full": True}
    return llama_cpp.Llama(str(path), n_ctx=128, logits_all=True, verbose=False, n_threads=1, **exact, **options)


def logits(model: llama_cpp.Llama, tokens: list[int]) -> np.ndarray:
    model.reset()
    model.eval(tokens)
    return model.scores[: len(tokens)].copy()


def greedy(model: llama_cpp.Llama, prompt: list[int]) -> dict[str, list[Any]]:
    """The tokens of highest logit, one after the other, and how far the second is behind."""
    tokens: list[int] = []
    gaps: list[float] = []
    scores = logits(model, prompt)[-1]
    for _ in range(NUM_GREEDY):
        second, first = np.sort(scores)[-2:]
        tokens.append(int(scores.argmax()))
        gaps.append(round(float(first - second), 5))
        model.eval(tokens[-1:])
        scores = model.scores[model.n_tokens - 1]
    return {"prompt": prompt, "tokens": tokens, "gaps": gaps}


def embed(path: Path, tokens: list[int]) -> np.ndarray:
    """The pooled embedding of given tokens, by the pooling that the file names."""
    model = load(path, embedding=True)
    batch = llama_cpp.llama_batch_get_one((llama_cpp.llama_token * len(tokens))(*tokens), len(tokens))
    context = model.ctx
    if llama_cpp.llama_encode(context, batch) != 0:
        raise RuntimeError("llama.cpp could not encode")
    size = llama_cpp.llama_model_n_embd(model.model)
    values = ctypes.cast(llama_cpp.llama_get_embeddings_seq(context, 0), ctypes.POINTER(ctypes.c_float))
    pooled = np.ctypeslib.as_array(values, (size,))
    return pooled / np.linalg.norm(pooled)


def error(ours: np.ndarray, golden: np.ndarray) -> float:
    return float(np.abs(ours - golden).max() / np.abs(golden).max())


if __name__ == "__main__":
    main()
