"""Perplexity of a model here and in llama.cpp, over the same windows of the same text.

    python benchmarks/peer_perplexity.py model.gguf book.txt --binary build/bin/llama-perplexity
    python benchmarks/peer_perplexity.py model.gguf book.txt --binary llama-perplexity --activations int16 --json

Both round the inputs of products in their own ways, so they never agree to the last digit. With few windows the
difference is mostly that noise: it shrinks with more text, and for weights in f16.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import fewbit as fb


def main() -> None:
    args = arguments()
    options = {"ctx": args.ctx, "threads": args.threads, "activations": args.activations}
    (ours,) = fb.evaluate(args.model, Path(args.text), progress=True, **options)
    theirs = peer(args)
    facts = {"fewbit": ours.perplexity, "llama.cpp": theirs, "ratio": ours.perplexity / theirs, "tokens": ours.tokens}
    if args.json:
        print(json.dumps(facts))
    else:
        print("  ".join(f"{name} {value:.5g}" for name, value in facts.items()))


def peer(args: argparse.Namespace) -> float:
    """What llama-perplexity prints at its end."""
    options = ["-m", args.model, "-f", args.text, "-c", str(args.ctx), "-b", str(args.ctx), "-t", str(args.threads)]
    done = subprocess.run([args.binary, *options], capture_output=True, text=True, check=False)
    found = re.search(r"PPL = ([\d.]+)", done.stdout + done.stderr)
    if found is None:
        sys.exit(f"{args.binary} printed no perplexity: {(done.stderr or done.stdout)[-300:]}")
    return float(found[1])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("text", help="a text file of at least two windows")
    parser.add_argument("--binary", required=True, help="llama-perplexity")
    parser.add_argument("--ctx", type=int, default=512, help="tokens of a window")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--activations", choices=("int8", "int16", "exact"))
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
