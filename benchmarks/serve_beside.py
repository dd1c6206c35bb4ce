"""Measures `fewbit serve` with many streaming clients beside llama.cpp, which decodes as many sequences in batches.

    pip install llama-cpp-python
    python benchmarks/random_1b.py SmolLM2.gguf random-1b.gguf
    python benchmarks/serve_beside.py random-1b.gguf --requests 8,32 --rounds 5 --json
    python benchmarks/serve_beside.py random-1b.gguf --requests 32 --flash-attention on

fewbit is asked over HTTP, each client on a connection of its own; clients, server and engine share the cores. llama.cpp
has no server in its way: `llama_decode` gets the prompts, four at a time, then one token of every sequence at a time,
as in llama-batched-bench. It is measured with and without flash attention, and the one whose median is better counts.
Both take random prompts that are new in each round, choose the likeliest token and may not end early; each round
measures all of them once. A speed is tokens in and out over the time until the last answer is complete. The ratio is
the median over the rounds of fewbit's speed over llama.cpp's: above 1, fewbit is faster. The machine must be idle:
llama.cpp's threads wait for each other after every operation. How much of the cores they got is told.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import gettempdir
from typing import Any
from urllib.parse import urlsplit

import llama_cpp as llama
import numpy as np

PAUSE = 0.5  # threads of the other may spin for a while when their work is done
PROMPTS_AT_ONCE = 4
LEAST_SHARE = 0.9
Prompts = list[list[int]]


class Server:
    """`fewbit serve` in a process of its own."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.log = Path(gettempdir(), f"serve_beside-{os.getpid()}.log")
        most = max(args.requests)
        command = [sys.executable, "-m", "fewbit", "serve", args.model, "--port", "0", "--threads", str(args.threads)]
        command += ["--ctx", str(args.prompt + args.gen), "--max-seqs", str(most), "--max-queue", str(most)]
        with self.log.open("wb") as to:
            self.process = subprocess.Popen([*command, *args.serve], stderr=to)
        self.url = self._wait()

    def _wait(self) -> str:
        while self.process.poll() is None:
            if found := re.search(r"at (http://\S+);", self.log.read_text()):
                return found[1]
            time.sleep(0.1)
        sys.exit(self.log.read_text())

    def seconds(self, prompts: Prompts, gen: int) -> float:
        return asyncio.run(self._seconds(prompts, gen))

    async def _seconds(self, prompts: Prompts, gen: int) -> float:
        bodies = [body(prompt, gen) for prompt in prompts]
        begun = time.perf_counter()
        answers = await asyncio.gather(*(self._answer(one) for one in bodies))
        seconds = time.perf_counter() - begun
        for prompt, answer in zip(prompts, answers, strict=True):
            check(answer, len(prompt), gen)
        return seconds

    async def _answer(self, data: bytes) -> bytes:
        """With HTTP/1.0 an answer ends where the connection does."""
        where = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        head = f"POST /v1/completions HTTP/1.0\r\nHost: {where.netloc}\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        parts = []
        while part := await reader.read(1 << 16):
            parts.append(part)
        writer.close()
        return b"".join(parts)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def body(prompt: list[int], gen: int) -> bytes:
    options = {"temperature": 0, "max_tokens": gen, "min_tokens": gen, "stream": True}
    return json.dumps({"prompt": prompt, "stream_options": {"include_usage": True}, **options}).encode()


def check(answer: bytes, tokens_in: int, tokens_out: int) -> None:
    parts = [line.removeprefix(b"data: ") for line in answer.splitlines() if line.startswith(b"data: {")]
    usage = json.loads(parts[-1]).get("usage") if parts else None
    if not usage or (usage["prompt_tokens"], usage["completion_tokens"]) != (tokens_in, tokens_out):
        sys.exit(f"not {tokens_in} tokens in and {tokens_out} out: {answer[-500:].decode(errors='replace')}")
    if usage["prompt_tokens_details"]["cached_tokens"]:
        sys.exit("a prompt was in the prefix cache already")


class Peer:
    """A context of llama.cpp."""

    def __init__(self, model: Any, args: argparse.Namespace, flash_attention: bool) -> None:
        most = max(args.requests)
        options = llama.llama_context_default_params()
        options.n_ctx = most * -(-(args.prompt + args.gen) // 256) * 256
        options.n_seq_max = most
        options.n_batch = max(PROMPTS_AT_ONCE * args.prompt, most)
        options.n_ubatch = 512
        options.n_threads = options.n_threads_batch = args.threads
        options.flash_attn_type = int(flash_attention)
        self.context = llama.llama_init_from_model(model, options)
        self.batch = llama.llama_batch_init(options.n_batch, 0, 1)
        self.threads, self.shares = args.threads, list[float]()
        self.vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))

    def seconds(self, prompts: Prompts, gen: int) -> float:
        llama.llama_memory_clear(llama.llama_get_memory(self.context), True)
        begun, cpu_begun = time.perf_counter(), time.process_time()
        last: list[int] = []
        for first in range(0, len(prompts), PROMPTS_AT_ONCE):
            some = list(enumerate(prompts))[first : first + PROMPTS_AT_ONCE]
            last += self._decode([(token, at, seq, at == len(p) - 1) for seq, p in some for at, token in enumerate(p)])
        for step in range(gen - 1):
            last = self._decode([(token, len(prompts[seq]) + step, seq, True) for seq, token in enumerate(last)])
        assert len(last) == len(prompts)
        seconds = time.perf_counter() - begun
        self.shares.append((time.process_time() - cpu_begun) / seconds / self.threads)
        return seconds

    def _decode(self, tokens: list[tuple[int, int, int, bool]]) -> list[int]:
        """The likeliest next tokens, where they are asked for."""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, (token, at, seq, wanted) in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, at, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, seq
        if status := llama.llama_decode(self.context, batch):
            sys.exit(f"llama_decode failed with {status}")
        return [self._likeliest(i) for i, (*_, wanted) in enumerate(tokens) if wanted]

    def _likeliest(self, index: int) -> int:
        logits = llama.llama_get_logits_ith(self.context, index)
        return int(np.argmax(np.ctypeslib.as_array(logits, (self.vocab,))))


def measure(sides: dict[str, Callable[[Prompts, int], float]], args: argparse.Namespace) -> list[dict[str, Any]]:
    """A record for each number of requests; the prompts of a round are the same for all."""
    rng = np.random.default_rng(args.seed)
    for seconds in sides.values():  # to warm up
        seconds(rng.integers(4, 32000, (1, args.prompt)).tolist(), 2)
    results = []
    for requests in args.requests:
        speeds: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(args.rounds):
            prompts = rng.integers(4, 32000, (requests, args.prompt)).tolist()
            for name, seconds in sides.items():
                time.sleep(PAUSE)
                speeds[name].append(requests * (args.prompt + args.gen) / seconds(prompts, args.gen))
                print(f"{requests} requests, {name}: {speeds[name][-1]:.1f} tokens/s", file=sys.stderr, flush=True)
        best = max((name for name in sides if name != "fewbit"), key=lambda name: median(speeds[name]))
        ratios = [a / b for a, b in zip(speeds["fewbit"], speeds[best], strict=True)]
        results.append({"requests": requests, "best": best, "speeds": speeds, "ratio": ratios})
        if not args.json:
            shown = "; ".join(f"{name} {median(numbers):.1f}" for name, numbers in speeds.items())
            print(f"{requests} requests, tokens/s: {shown}; {median(ratios):.2f} times {best}", flush=True)
    return results


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--requests", type=lambda text: [int(n) for n in text.split(",")], default=[8, 32])
    parser.add_argument("--prompt", type=int, default=128, help="tokens in")
    parser.add_argument("--gen", type=int, default=64, help="tokens out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--flash-attention", choices=["on", "off"], help="one of llama.cpp's (default: both)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--serve", nargs="*", default=[], help="more options of `fewbit serve`, the last one here")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    args = options()
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(args.model.encode(), llama.llama_model_default_params())
    if not model:
        sys.exit(f"llama.cpp does not load {args.model}")
    server = Server(args)
    given = [args.flash_attention] if args.flash_attention else ["on", "off"]
    peers = {f"llama.cpp, flash attention {fa}": Peer(model, args, fa == "on") for fa in given}
    sides = {"fewbit": server.seconds, **{name: peer.seconds for name, peer in peers.items()}}
    try:
        results = measure(sides, args)
    finally:
        server.close()
    least = min(share for peer in peers.values() for share in peer.shares)
    if least < LEAST_SHARE:
        print(f"the machine was busy: llama.cpp got {100 * least:.0f} % of its cores in a round", file=sys.stderr)
    if args.json:
        setup = {"llama_cpp": llama.llama_print_system_info().decode(), "threads": args.threads}
        shares = {name: peer.shares for name, peer in peers.items()}
        print(json.dumps({**setup, "shares_of_cores": shares, "results": results}, indent=2))


if __name__ == "__main__":
    main()
