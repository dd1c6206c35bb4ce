"""A model of Llama 3.1 8B's shape, Q4_K_M, with random weights, through `LLM` on a GPU.

    python benchmarks/cuda_model.py [--layers 32] [--only ceiling,short,int16,depth,host] [--json FILE]

Decoding at batch 1, 8 and 32, prompts of 512 and 4,096 tokens, decoding after 32,640 tokens with q8_0 K and V at batch
1 and 8. Shares are of the read ceiling, measured in the same run, over weights and K and V. The GPU says when each step
begins and ends; `idle` is the part of the time between the first and the last in which it had none. `host` is the time
of the calling thread for a step that is not captured: all of it, and its launches alone.
Medians of several rounds; speed does not depend on what the weights are.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from cuda_timing import read_ceiling

import fewbit as fb
from fewbit.formats import get
from fewbit.ops import cuda
from fewbit.ops.cuda.layout import tile_layout
from fewbit.ops.cuda.values import Launcher
from fewbit.tensor import QuantTensor

ROWS = 64  # of random weights, again and again
HIDDEN, FEED_FORWARD, HEADS, KV_HEADS, DIM, VOCAB = 4096, 14336, 32, 8, 128, 128256


def write_model(path: Path, layers: int) -> None:
    rng = np.random.default_rng(0)
    made: dict[tuple[int, int, str], Any] = {}

    def matrix(n: int, k: int, format: str = "q4_k") -> QuantTensor:
        if (n, k, format) not in made:
            repeated = fb.quantize(rng.standard_normal((ROWS, k), np.float32) / np.float32(np.sqrt(k)), format)
            rows = np.tile(repeated.data, -(-n // ROWS))[: n * repeated.nbytes // ROWS]
            made[n, k, format] = QuantTensor.from_bytes(rows, (n, k), repeated.format)
        return made[n, k, format]

    ones = np.ones(HIDDEN, np.float32)
    tensors: dict[str, Any] = {
        "token_embd.weight": matrix(VOCAB, HIDDEN),
        "output.weight": matrix(VOCAB, HIDDEN, "q6_k"),
        "output_norm.weight": ones,
    }
    for layer in range(layers):
        parts = {name: matrix(*shape) for name, shape in matrices(layer, layers).items()}
        parts |= {"attn_norm": ones, "ffn_norm": ones}
        tensors |= {f"blk.{layer}.{name}.weight": tensor for name, tensor in parts.items()}
    fb.write_gguf(path, metadata(layers), tensors)


def matrices(layer: int, layers: int) -> dict[str, tuple[int, int, str]]:
    """Sizes and formats of a layer's matrices, as Q4_K_M chooses them."""
    exact = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    finer, values = "q6_k" if exact else "q4_k", KV_HEADS * DIM
    return {
        "attn_q": (HEADS * DIM, HIDDEN, "q4_k"), "attn_k": (values, HIDDEN, "q4_k"), "attn_v": (values, HIDDEN, finer),
        "attn_output": (HIDDEN, HEADS * DIM, "q4_k"), "ffn_gate": (FEED_FORWARD, HIDDEN, "q4_k"),
        "ffn_up": (FEED_FORWARD, HIDDEN, "q4_k"), "ffn_down": (HIDDEN, FEED_FORWARD, finer),
    }  # fmt: skip


def bytes_of_step(layers: int, tokens: int, kv: str) -> int:
    """What a step must read: weights as they lie on the GPU, K and V of all tokens before it."""
    every = [shape for layer in range(layers) for shape in matrices(layer, layers).values()]
    weights = 0
    for n, k, format in [*every, (VOCAB, HIDDEN, "q6_k")]:
        tiles = tile_layout(get(format))
        assert tiles
        weights += sum(tiles.sizes(n, k))
    return weights + tokens * layers * 2 * KV_HEADS * get(kv).row_bytes(DIM)


def metadata(layers: int) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "<end>", *(f"<0x{i:02X}>" for i in range(256))]
    tokens += [f"w{i}" for i in range(VOCAB - len(tokens))]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (VOCAB - 259)]
    return {
        "general.architecture": "llama", "general.name": "random-8b", "general.file_type": 15,
        "llama.context_length": 131072, "llama.block_count": layers, "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FEED_FORWARD, "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": DIM, "llama.rope.freq_base": 500000.0, "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": [0.0] * VOCAB, "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": VOCAB - 1,
    }  # fmt: skip


class Bench:
    def __init__(self, path: Path, rounds: int, layers: int = 32) -> None:
        self.path, self.rounds, self.layers, self.rng = path, rounds, layers, np.random.default_rng(1)
        self.found: dict[str, Any] = {}

    def open(self, **options: Any) -> fb.LLM:
        begun = time.perf_counter()
        llm = fb.LLM(self.path, device="cuda", **options)
        llm.loaded.executor.prepare([(1, 1), (8, 8), (32, 32), (512, 1), (4096, 1)])  # type: ignore[attr-defined]
        self.found.setdefault("load_seconds", round(time.perf_counter() - begun, 2))
        return llm

    def prompt(self, length: int) -> list[int]:
        return self.rng.integers(300, VOCAB, length).tolist()

    def rate(self, name: str, llm: fb.LLM, batch: int, depth: int, tokens: int, kv: str = "f16") -> None:
        """Tokens a second of decoding, after prompts of a length, all different."""
        prompts = [self.prompt(depth) for _ in range(batch)]
        options: dict[str, Any] = {"temperature": 0.0}
        llm.generate(prompts, max_tokens=24, **options)  # prompts are in the cache now, and graphs are captured
        rates, idle = [], []
        for _ in range(self.rounds):
            with Steps(llm) as steps:
                outputs = llm.generate(prompts, max_tokens=8 + tokens, **options)
            assert all(len(one.tokens) == 8 + tokens for one in outputs)
            seconds, share = steps.times(skip=8)
            rates.append(batch * (steps.count - 8) / seconds)
            idle.append(share)
        self.keep(name, median(rates))
        self.found[f"idle_{name}"] = round(median(idle), 4)
        if "read_bytes_per_second" in self.found:
            read = bytes_of_step(self.layers, batch * (depth + 8 + tokens // 2), kv) * median(rates) / batch
            self.found[f"share_{name}"] = share = round(read / self.found["read_bytes_per_second"], 3)
            print(f"  {share:.1%} of the read ceiling", flush=True)

    def short(self) -> None:
        with self.open(ctx=8192, kv="f16") as llm:
            for batch in (1, 8, 32):
                self.rate(f"decode_batch_{batch}", llm, batch, 128, 128)
                self.parts(llm, batch)
            for length in (512, 4096):
                times = []
                for _ in range(self.rounds + 1):
                    prompt = self.prompt(length)
                    begun = time.perf_counter()
                    llm.generate(prompt, max_tokens=1, temperature=0.0)
                    times.append(time.perf_counter() - begun)
                self.keep(f"prefill_{length}", length / median(times[1:]))

    def parts(self, llm: fb.LLM, batch: int) -> None:
        """Times of the captured step alone, and of each kind of operation in it."""
        executor: Any = llm.loaded.executor
        device, plan = executor.device, executor.plans["logits"]
        bucket = next(one for key, one in executor.buckets.items() if key.size == batch)
        self.found[f"graph_ms_{batch}"] = ms = round(1e3 * seconds(device, bucket.graphs[True].launch), 4)
        inputs = bucket.layout.inputs(int(executor._inputs.handle), executor.sampler.tokens)
        times = {}
        for label in dict.fromkeys(plan.labels):
            labelled = [one for one, its in zip(plan.launches, plan.labels, strict=True) if its == label]

            def launch(labelled: list[Any] = labelled) -> None:
                run = Launcher(device, device.stream, bucket.held)
                for one in labelled:
                    one(run, inputs)

            times[label] = round(1e6 * seconds(device, device.capture(launch).launch) / len(labelled), 2)
        self.found[f"parts_us_{batch}"] = times
        idle = self.found[f"idle_decode_batch_{batch}"]
        print(f"  graph {ms:.3f} ms, idle {idle:.1%}, us: {times}", flush=True)

    def int16(self) -> None:
        """One token in 16 bits instead of 8."""
        with self.open(ctx=2048, kv="f16", activations="int16") as llm:
            self.rate("decode_batch_1_int16", llm, 1, 128, 128)

    def ceiling(self) -> None:
        """Bytes a second of a loop that only reads."""
        self.found["read_bytes_per_second"] = read_ceiling(cuda.shared_session())
        print(f"read ceiling {self.found['read_bytes_per_second'] / 1e12:.3f} TB/s", flush=True)

    def depth(self) -> None:
        with self.open(ctx=32768, kv="q8_0", cache_bytes=24 << 30) as llm:
            for batch in (1, 8):
                self.rate(f"depth_32k_batch_{batch}", llm, batch, 32640 - 128, 64, "q8_0")

    def host(self) -> None:
        with self.open(ctx=8192, kv="f16") as llm:
            executor: Any = llm.loaded.executor
            executor.device.capture = lambda launches: None  # every step is launched kernel by kernel
            for name, prompts, tokens in (
                ("decode_1", [self.prompt(128)], 24),
                ("decode_8", [self.prompt(128) for _ in range(8)], 24),
                ("prompt_512", [self.prompt(512)], 1),
                ("prompt_any", [self.prompt(100)], 1),
            ):
                with HostTimes(executor) as times:
                    for turn in range(1 if tokens > 1 else 12):
                        lengths = [100 + 7 * turn] if name == "prompt_any" else map(len, prompts)
                        llm.generate([self.prompt(length) for length in lengths], max_tokens=tokens, temperature=0.0)
                skip = 8 if tokens > 1 else 2
                for part, found in times.found.items():
                    self.found[f"host_ms_{name}_{part}"] = ms = round(1e3 * median(found[skip:]), 3)
                    print(f"host {name:12} {part:8} {ms:8.3f} ms", flush=True)

    def keep(self, name: str, rate: float) -> None:
        self.found[name] = round(rate, 1)
        print(f"{name:24} {rate:10.1f} tok/s", flush=True)


class Steps:
    """When the steps of an engine begin and end, by the clock of the GPU."""

    def __init__(self, llm: fb.LLM) -> None:
        self.executor: Any = llm.loaded.executor
        self.marks: list[tuple[Any, Any]] = []

    def __enter__(self) -> Steps:
        stream, launch = self.executor.device.stream, self.executor.launch
        timing = self.executor.device._core.EventOptions(timing_enabled=True)

        def timed(batch: Any, *given: Any) -> Any:
            before = stream.record(options=timing)
            handle = launch(batch, *given)
            self.marks.append((before, stream.record(options=timing)))
            return handle

        self.executor.launch = timed
        return self

    def __exit__(self, *_: object) -> None:
        del self.executor.launch
        self.executor.device.sync()

    @property
    def count(self) -> int:
        return len(self.marks)

    def times(self, skip: int) -> tuple[float, float]:
        """Seconds from the end of the first steps to that of the last, and the part of them that no step ran."""
        marks = self.marks[skip - 1 :]
        total = marks[-1][1] - marks[0][1]
        return 1e-3 * total, sum(b[0] - a[1] for a, b in pairwise(marks)) / total


class HostTimes:
    """Seconds that the calling thread spends in each step, and in its launches."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor
        self.found: dict[str, list[float]] = {"step": [], "launches": []}

    def __enter__(self) -> HostTimes:
        for part, name in (("step", "launch"), ("launches", "_launch")):
            setattr(self.executor, name, self._timed(part, getattr(self.executor, name)))
        return self

    def _timed(self, part: str, function: Any) -> Any:
        def timed(*args: Any) -> Any:
            begun = time.perf_counter()
            result = function(*args)
            self.found[part].append(time.perf_counter() - begun)
            return result

        return timed

    def __exit__(self, *_: object) -> None:
        del self.executor.launch, self.executor._launch


def seconds(device: Any, launch: Any, times: int = 20) -> float:
    """Of one launch, of many behind each other."""
    launch()
    device.mark().sync()
    begun = time.perf_counter()
    for _ in range(times):
        launch()
    device.mark().sync()
    return (time.perf_counter() - begun) / times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--only", default="ceiling,short,int16,depth,host")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        path = Path(folder, "random-8b.gguf")
        write_model(path, args.layers)
        bench = Bench(path, args.rounds, args.layers)
        for name in args.only.split(","):
            getattr(bench, name)()
    if args.json:
        args.json.write_text(json.dumps(bench.found, indent=1))


if __name__ == "__main__":
    main()
