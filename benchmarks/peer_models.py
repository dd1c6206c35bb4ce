"""Runs whole models beside llama.cpp's llama-bench: the same file, the same machine, in turns.

    python benchmarks/peer_models.py model.gguf --llama-bench DIR/llama-bench
    python benchmarks/peer_models.py *.gguf --prompt 512 --gen 64 --rounds 5 --json
    python benchmarks/peer_models.py model.gguf --prompt 0 --depth 4096 --kv q8_0
    python benchmarks/peer_models.py model.gguf --cpu-library DIR/libggml-cpu.so
    python benchmarks/peer_models.py model.gguf --only "own layouts, flash attention 1" --rounds 9
    python benchmarks/peer_models.py model.gguf --cpu-time --gen 256 --only "own layouts"

llama.cpp is measured in each of its configurations: with and without flash attention, with the layouts that it makes of
the weights when it loads them (for matrix tiles, or repacked) and without; with `--cpu-library` also with another build
of its CPU code, for instance one without matrix tiles. A round measures each of them and fewbit once. The ratio is
fewbit's speed over that of the configuration whose median is best, and its median over the rounds is printed: above 1,
fewbit is faster. The machine must be idle. Where it is not, `--cpu-time` takes the processor time of one thread
instead: of `--gen` tokens and of five times as many, the difference.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

PLAIN = ("-ot", ".*=CPU")  # weights stay as they are in the file


@dataclass(frozen=True)
class Peer:
    """A configuration of llama.cpp."""

    name: str
    options: tuple[str, ...]
    library: Path | None = None  # of its CPU code, instead of its own


@dataclass(frozen=True)
class Speeds:
    prefill: float | None
    decode: float | None


def configurations(other: Path | None, quantized_kv: bool) -> list[Peer]:
    """All of them; a quantized V needs flash attention."""
    out = []
    for library in (None, other) if other else (None,):
        for layout, options in (("own layouts", ()), ("as in the file", PLAIN)):
            for attention in ("1",) if quantized_kv else ("0", "1"):
                name = f"{layout}, flash attention {attention}" + (", other CPU library" if library else "")
                out.append(Peer(name, (*options, "-fa", attention), library))
    return out


def processor_seconds(command: list[str], environment: dict[str, str]) -> float:
    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = used()
    subprocess.run(command, env=environment, capture_output=True, check=True)
    return used() - before


def processor_speeds(command: Callable[[int], list[str]], gen: int, times: int, environment: dict[str, str]) -> Speeds:
    """Tokens a second of processor time, where a command generates so many `times` times."""
    few, many = (processor_seconds(command(count), environment) for count in (gen, 5 * gen))
    return Speeds(None, 4 * gen * times / (many - few))


def peer_speeds(peer: Peer, model: Path, args: argparse.Namespace, folder: str) -> Speeds:
    def command(gen: int) -> list[str]:
        line = [args.llama_bench, "-m", str(model), "-t", str(args.threads), "-r", "1", "-o", "json", *peer.options]
        line += ["-p", str(args.prompt), "-n", str(gen), "-d", str(args.depth)]
        return [*line, "-ctk", args.kv, "-ctv", args.kv]

    environment = dict(os.environ)
    if peer.library:  # found under the name that llama-bench asks for
        Path(folder, "libggml-cpu.so.0").unlink(missing_ok=True)
        Path(folder, "libggml-cpu.so.0").symlink_to(peer.library.resolve())
        environment["LD_LIBRARY_PATH"] = folder
    if args.cpu_time:
        return processor_speeds(command, args.gen, 1, environment)
    done = subprocess.run(command(args.gen), env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"llama-bench failed ({done.returncode}): {peer.name}: {done.stderr[-200:]}", file=sys.stderr)
        return Speeds(None, None)
    rows = json.loads(done.stdout)
    prefill = [row["avg_ts"] for row in rows if row["n_prompt"]]
    decode = [row["avg_ts"] for row in rows if row["n_gen"]]
    return Speeds(prefill[0] if prefill else None, decode[0] if decode else None)


def own_speeds(model: Path, args: argparse.Namespace) -> Speeds:
    def command(gen: int) -> list[str]:
        line = [sys.executable, "-m", "fewbit", "bench", str(model), "--json", "--batch", "1", "--rounds", "1"]
        line += ["--prompt", str(args.prompt or 32), "--gen", str(gen), "--depth", str(args.depth)]
        return [*line, "--threads", str(args.threads), "--kv", args.kv]

    if args.cpu_time:
        return processor_speeds(command, args.gen, 2, dict(os.environ))  # once to warm up
    (row,) = json.loads(subprocess.run(command(args.gen), capture_output=True, text=True, check=True).stdout)
    return Speeds(row["prefill_tokens_per_second"] if args.prompt else None, row["decode_tokens_per_second"])


def compare(model: Path, args: argparse.Namespace, folder: str) -> list[dict[str, Any]]:
    every = configurations(args.cpu_library, args.kv not in ("f16", "f32"))
    peers = [peer for peer in every if args.only in peer.name]
    theirs: dict[str, list[Speeds]] = {peer.name: [] for peer in peers}
    ours: list[Speeds] = []
    for _ in range(args.rounds):
        for peer in peers:
            theirs[peer.name].append(peer_speeds(peer, model, args, folder))
        ours.append(own_speeds(model, args))
    rows = []
    for what in ("prefill", "decode"):
        own = [getattr(speeds, what) for speeds in ours]
        found = {name: [getattr(s, what) for s in all_] for name, all_ in theirs.items()}
        found = {name: values for name, values in found.items() if None not in values}
        if None in own or not found:
            continue
        best = max(found, key=lambda name: median(found[name]))
        ratios = [a / b for a, b in zip(own, found[best], strict=True)]
        rows.append(
            {
                "model": model.name, "what": what, "depth": args.depth, "kv": args.kv, "fewbit": median(own),
                "llama_cpp": median(found[best]), "configuration": best, "ratio": median(ratios), "ratios": ratios,
                "all": {name: median(values) for name, values in found.items()},
            }
        )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--llama-bench", default=os.environ.get("LLAMA_BENCH", "llama-bench"))
    parser.add_argument("--cpu-library", type=Path, help="another libggml-cpu.so to measure too")
    parser.add_argument("--only", default="", help="only configurations of llama.cpp whose names hold this")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--gen", type=int, default=64)
    parser.add_argument("--depth", type=int, default=0)
    parser.add_argument("--kv", default="f16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu-time", action="store_true", help="processor time of decoding, in one thread")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.cpu_time:
        args.prompt, args.threads = 0, 1
    every = []
    with tempfile.TemporaryDirectory() as folder:
        for model in args.models:
            rows = compare(model, args, folder)
            every += rows
            for row in [] if args.json else rows:
                spread = f"{min(row['ratios']):.2f} to {max(row['ratios']):.2f}"
                speeds = f"{row['fewbit']:8.1f} beside {row['llama_cpp']:8.1f} tokens/s"
                print(f"{row['model']:32} {row['what']:8} {speeds}  {row['ratio']:5.2f} x ({spread})", flush=True)
                print(f"{'':32} best of llama.cpp: {row['configuration']}", flush=True)
    if args.json:
        print(json.dumps(every, indent=2))


if __name__ == "__main__":
    main()
