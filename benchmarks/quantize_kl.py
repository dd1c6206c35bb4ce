"""KL divergence of quantized models, of fewbit and of llama-quantize, from the model that they were made of.

    python benchmarks/quantize_kl.py model-f16.gguf --text held-out.txt --imatrix imatrix.gguf --binary llama-quantize
    python benchmarks/quantize_kl.py model-f16.gguf --text a.txt --imatrix im.gguf --formats q4_k_m --ways peer,ours

The importance matrix comes from `fewbit calibrate --hessian`, over another text: the Hessians lie beside it. The files
of a format differ only in their codes, so their sizes are the same. Each row is printed when it is measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import fewbit as fb
from fewbit.files.hessian import hessian_path

FORMATS = "q2_k,q3_k_m,q4_k_m,q5_k_m,q6_k,iq4_xs,iq3_s,iq2_xs"
WAYS = ("peer", "ours", "peer+importance", "ours+importance", "ours+feedback")


def main() -> None:
    args = arguments()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fallbacks
        saved = Path(folder) / "logits.gguf"
        options = {"ctx": args.ctx, "skip": args.skip, "activations": args.activations, "threads": args.threads}
        fb.evaluate(args.model, Path(args.text), save=saved, top=4096, **options)
        for name in args.formats.split(","):
            row = {}
            for way in args.ways.split(","):
                out = Path(folder) / "out.gguf"
                if not write(way, name, out, args):
                    continue
                (found,) = fb.evaluate(out, logits=saved, activations=args.activations, threads=args.threads)
                row[way] = {"kl": found.divergence.mean, "error": found.divergence.error, "bytes": out.stat().st_size}
                out.unlink()
            show(name, row, args.json)


def write(way: str, name: str, out: Path, args: argparse.Namespace) -> bool:
    """Write a model in a format; False where llama-quantize refuses, some formats without an importance matrix."""
    if way.startswith("peer"):
        options = ["--imatrix", args.imatrix] if "importance" in way else []
        command = [args.binary, *options, args.model, str(out), name, str(args.threads)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode and "importance" not in way:
            return False
        if done.returncode:
            sys.exit(f"{args.binary}: {done.stderr[-300:]}")
        return True
    importance = args.imatrix if way != "ours" else None
    feedback = hessian_path(args.imatrix) if "feedback" in way else None
    fb.quantize_model(
        args.model, out, name, importance=importance, error_feedback=feedback, threads=args.threads, force=True
    )
    return True


def show(name: str, row: dict[str, dict[str, float]], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"format": name, **row}), flush=True)
        return
    cells = []
    for way, figures in row.items():
        peer = row.get("peer" if way == "ours" else "peer+importance", row.get("peer"))
        ratio = f" ({figures['kl'] / peer['kl']:.2f} x)" if peer and not way.startswith("peer") else ""
        cells.append(f"{way} {figures['kl']:.5f}{ratio}")
    sizes = {figures["bytes"] for figures in row.values()}
    print(f"{name:8} {min(sizes) / 1e6:7.1f} MB  {'  '.join(cells)}", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file in f16 or f32")
    parser.add_argument("--text", required=True, help="text that was not used for calibration")
    parser.add_argument("--imatrix", required=True, help="importance matrix, with Hessians beside it for feedback")
    parser.add_argument("--binary", default="llama-quantize")
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--ctx", type=int, default=256, help="tokens of a window")
    parser.add_argument("--skip", type=int, default=32, help="tokens at the start of a window that are not scored")
    parser.add_argument("--activations", choices=("int8", "int16", "exact"), default="int16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", help="where files are written for a while")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
