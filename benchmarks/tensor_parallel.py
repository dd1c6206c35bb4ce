"""What ranks cost on one device: decoding with two of them, with one whose rows go through NCCL, and without, in turns.

    python benchmarks/tensor_parallel.py [model.gguf] --device cuda --json

Nothing gets faster on one device: this is what the exchange of rows costs at least. Without a file the model is a
random one of 8 layers with 2,048 columns. On the CPU times are those of the processor.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import fewbit as fb
from fewbit import devices
from fewbit.devices import cuda
from fewbit.devices.batch import Row, Sample
from fewbit.devices.forward import make_batch
from fewbit.devices.tensor_parallel import TensorParallelDevice
from fewbit.load_options import LoadOptions
from fewbit.loading import Loaded, load, place
from fewbit.models import load_model, open_model
from fewbit.ops.cuda.nccl import NcclGroup
from fewbit.ops.sampling import SamplingParams

HIDDEN, FEED_FORWARD, LAYERS, HEADS, KV_HEADS, VOCAB = 2048, 5632, 8, 16, 4, 8192
CTX = 512
GREEDY = Sample(SamplingParams(temperature=0), 0.0)


def write_random(path: Path) -> Path:
    rng, kv = np.random.default_rng(0), HIDDEN // HEADS * KV_HEADS
    sizes = {
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (kv, HIDDEN),
        "attn_v": (kv, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
    }
    sizes |= {"ffn_gate": (FEED_FORWARD, HIDDEN), "ffn_up": (FEED_FORWARD, HIDDEN), "ffn_down": (HIDDEN, FEED_FORWARD)}
    packed = {name: fb.quantize(rng.standard_normal(size, np.float32) / 45, "q4_0") for name, size in sizes.items()}
    tensors: dict[str, Any] = {f"blk.{i}.{name}.weight": w for i in range(LAYERS) for name, w in packed.items()}
    norms = [f"blk.{i}.{name}_norm" for i in range(LAYERS) for name in ("attn", "ffn")]
    tensors |= {f"{name}.weight": np.ones(HIDDEN, np.float32) for name in (*norms, "output_norm")}
    tensors["token_embd.weight"] = fb.quantize(rng.standard_normal((VOCAB, HIDDEN), np.float32), "q4_0")
    config = {
        "block_count": LAYERS, "embedding_length": HIDDEN, "feed_forward_length": FEED_FORWARD, "context_length": CTX,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    }  # fmt: skip
    fb.write_gguf(path, {"general.architecture": "llama", **{f"llama.{k}": v for k, v in config.items()}}, tensors)
    return path


def through_nccl(path: Path, options: dict[str, Any]) -> Loaded:
    """One rank, whose rows go through NCCL all the same."""
    make = cuda.CudaDevice.make_group
    cuda.CudaDevice.make_group = lambda self, ranks: NcclGroup([one.device for one in ranks])  # type: ignore
    try:
        model = load_model(open_model(path))
        own = devices.get("cuda", LoadOptions(path, **options))
        return place(model, TensorParallelDevice([own], model.graph), "f16", CTX, 8 * CTX)
    finally:
        cuda.CudaDevice.make_group = make  # type: ignore[method-assign]


class Decoder:
    """Sequences that get a token a step."""

    def __init__(self, loaded: Loaded, batch: int) -> None:
        self.loaded, self.sequences = loaded, [loaded.cache.new() for _ in range(batch)]
        loaded.forward([Row(one, [*range(8)], 1) for one in self.sequences])

    def step(self) -> None:
        rows = [Row(one, [5], 1, [GREEDY]) for one in self.sequences]
        self.loaded.executor.launch(make_batch(self.loaded.cache, rows)).fetch()
        for one in self.sequences:
            self.loaded.cache.commit(one, [5])


def measure(variants: dict[str, Loaded], batch: int, rounds: int, clock: Any) -> dict[str, float]:
    """The median seconds of a step of each variant."""
    decoders = {name: Decoder(loaded, batch) for name, loaded in variants.items()}
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 3):
        for name, decoder in decoders.items():
            start = clock()
            decoder.step()
            if number >= 3:
                seconds[name].append(clock() - start)
    return {name: median(times) for name, times in seconds.items()}


def load_variants(path: Path, device: str) -> dict[str, Loaded]:
    options: dict[str, Any] = {"device": device, "ctx": CTX, "max_batched_tokens": 128}
    several = {**options, "device": f"{device},{device}", "tensor_parallel": 2}
    if device == "cpu":
        options["threads"] = several["threads"] = 1
    loads: Sequence[tuple[str, dict[str, Any]]] = (("one", options), ("two ranks", several))
    variants = {name: load(open_model(path), LoadOptions(path, **own)) for name, own in loads}
    if device == "cuda":
        try:
            variants["NCCL, one rank"] = through_nccl(path, options)
        except fb.ExtraError as error:
            print(error)
    return variants


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    clock = time.process_time if given.device == "cpu" else time.perf_counter
    with TemporaryDirectory() as folder:
        path = given.model or write_random(Path(folder, "model.gguf"))
        variants = load_variants(path, given.device)
        found = {batch: measure(variants, batch, given.rounds, clock) for batch in (1, 8)}
    if given.json:
        print(json.dumps(found))
        return
    for batch, seconds in found.items():
        for name, one in seconds.items():
            print(f"batch {batch}, {name}: {1e3 * one:.3f} ms a step, {one / seconds['one']:.2f} of one")


if __name__ == "__main__":
    main()
