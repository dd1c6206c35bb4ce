"""What `batch_invariant` costs: decoding at several batch sizes, and a prompt, with it and without it in turns.

python benchmarks/batch_invariant.py
python benchmarks/batch_invariant.py model.gguf --batch 1,8,32 --rounds 7 --json
"""

from __future__ import annotations

import argparse
import json
from statistics import median

import numpy as np

from fewbit import devices
from fewbit.bench.model import ModelCase, decode_speed, place_for, prefill_speed
from fewbit.files.hub import find
from fewbit.load_options import LoadOptions
from fewbit.loading import load_weights
from fewbit.models import open_model
from fewbit.ops import cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=cpu.default_threads())
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    model = load_weights(open_model(find(args.model)), devices.get("cpu"))
    cases = [ModelCase(args.prompt, 8, 64, int(batch), args.threads, "f16") for batch in args.batch.split(",")]
    options = [LoadOptions(threads=args.threads, batch_invariant=on) for on in (False, True)]
    both = [place_for(model, cases, devices.get("cpu", one)) for one in options]
    memory, rng = np.ones(1 << 20, np.uint8), np.random.default_rng(0)
    ratios: dict[str, list[float]] = {}
    for _ in range(args.rounds):
        for case in cases:
            usual, invariant = (decode_speed(loaded, case, 1, rng, memory)[0] for loaded in both)
            ratios.setdefault(f"decode, batch {case.batch}", []).append(invariant / usual)
        usual, invariant = (prefill_speed(loaded, args.prompt, 1, rng) for loaded in both)
        ratios.setdefault(f"prompt of {args.prompt}", []).append(invariant / usual)
    if args.json:
        records = [{"model": args.model, "what": what, "share": x} for what, xs in ratios.items() for x in xs]
        print(json.dumps(records))
        return
    for what, values in ratios.items():
        print(f"{what}: {median(values):.2f} ({min(values):.2f}-{max(values):.2f}) of the usual tokens/s")


if __name__ == "__main__":
    main()
