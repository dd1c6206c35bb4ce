"""What LoRA adapters cost: decoding at a batch of 8 with 8 different adapters, one for all, and none, in turns.

    python benchmarks/adapters.py model.gguf --device cuda --rank 16 --json

Adapters are random, of all matrices of the layers. On the CPU times are those of the processor.
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import median
from typing import Any

import numpy as np

from fewbit import devices
from fewbit.bench.model import ModelCase, place_for
from fewbit.devices.batch import AdapterMix, LoadedAdapter, Row, Sample
from fewbit.devices.forward import make_batch
from fewbit.files.hub import find
from fewbit.load_options import LoadOptions
from fewbit.loading import Loaded, load_weights
from fewbit.models import LoadedModel, open_model
from fewbit.models.lora import OUTPUT, find_products
from fewbit.ops.low_rank import LowRank, ProductKey
from fewbit.ops.sampling import SamplingParams

BATCH, DEPTH = 8, 64
GREEDY = SamplingParams(temperature=0)


def make_adapter(loaded: Loaded, model: LoadedModel, number: int, rank: int, kind: Any) -> LoadedAdapter:
    rng = np.random.default_rng(number)
    terms: dict[ProductKey, LowRank] = {}
    for product in find_products(model.graph, model.places):
        if product.key[0] == "linear" and product.name != OUTPUT:
            n, k = product.shape
            a, b = (0.01 * rng.standard_normal(shape, np.float32) for shape in ((rank, k), (n, rank)))
            terms[product.key] = LowRank(a.astype(kind), b.astype(kind), 1.0, n, k)
    return LoadedAdapter(str(number), str(number), loaded.executor.place_adapter(terms))


class Decoder:
    """A batch of sequences that get a token a step."""

    def __init__(self, loaded: Loaded, mixes: list[AdapterMix | None]) -> None:
        self.loaded, self.mixes = loaded, mixes
        self.sequences = [loaded.cache.new() for _ in mixes]
        pairs = zip(self.sequences, mixes, strict=True)
        loaded.forward([Row(sequence, [*range(8)], 1, adapter=mix) for sequence, mix in pairs])

    def step(self) -> None:
        sample = Sample(GREEDY, 0.0)
        rows = [Row(one, [5], 1, [sample], adapter=mix) for one, mix in zip(self.sequences, self.mixes, strict=True)]
        self.loaded.executor.launch(make_batch(self.loaded.cache, rows)).fetch()
        for one in self.sequences:
            self.loaded.cache.commit(one, [5])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--kind", choices=("f16", "f32"), default="f16")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    is_cpu = args.device == "cpu"
    device = devices.get(args.device, LoadOptions(device=args.device, threads=args.threads))
    model = load_weights(open_model(find(args.model)), device)
    loaded = place_for(model, [ModelCase(0, 512, DEPTH, 4 * BATCH, args.threads or 1, "f16")], device)
    kind = np.float16 if args.kind == "f16" else np.float32
    adapters = [make_adapter(loaded, model, number, args.rank, kind) for number in range(BATCH)]
    different = [AdapterMix(((adapter, 1.0),)) for adapter in adapters]
    cases = {
        "none": Decoder(loaded, [None] * BATCH),
        "different": Decoder(loaded, [*different]),
        "same": Decoder(loaded, [different[0]] * BATCH),
        "one of them": Decoder(loaded, [different[0], *[None] * (BATCH - 1)]),
    }
    clock = time.process_time if is_cpu else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for one in cases.values():
        for _ in range(3):
            one.step()
    for _ in range(args.rounds):
        for name, one in cases.items():
            start = clock()
            for _ in range(args.steps):
                one.step()
            seconds[name].append((clock() - start) / args.steps)
    ratios = {name: [a / b for a, b in zip(times, seconds["none"], strict=True)] for name, times in seconds.items()}
    if args.json:
        found = [(name, median(seconds[name]), median(values)) for name, values in ratios.items()]
        print(json.dumps([{"adapters": name, "seconds": each, "ratio": ratio} for name, each, ratio in found]))
        return
    for name, values in ratios.items():
        spread = f"{median(values):.3f} of none ({min(values):.3f}-{max(values):.3f})"
        print(f"{name:12} {1e3 * median(seconds[name]):8.2f} ms a step, {spread}")


if __name__ == "__main__":
    main()
