"""Many streaming clients on a server for some minutes: no token is lost or mixed up, no page is leaked.

    python benchmarks/serve_soak.py MODEL... [--clients 64] [--seconds 120] [--leaving 0.2] [--seed 0] [--json]

Clients request greedy answers of random lengths to one of a few prompts, and some disconnect in the middle of one.
The server runs with --batch-invariant, so each answer must be the beginning of the answer that its prompt gets alone.
With several models each request picks one, and the server holds one at a time (--max-models 1): they are swapped.
When all clients are done, no request may be active and no page in use. Then the clients start again, and SIGTERM comes
while they stream: each stream must end with its last event, and the process with status 0. RSS is the highest of the
second quarter beside the highest of the last. The longest pause of the server's event loop is by its own clock, beside
that of a process that only sleeps: a machine with other work pauses both. `health_seconds` is the slowest /health.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from tempfile import gettempdir
from typing import Any
from urllib.parse import urlsplit

PROMPTS = [
    "Tell me about the sea.",
    "Why is the sky blue?",
    "Write a poem.",
    "List ten animals.",
    "What is a prime number? Explain it to a child, with examples, and then to a grown-up.",
    "Once upon a time there was a king. " * 8,
    "Translate: good morning.",
    "Count to one hundred.",
]
COMPLETIONS = "/v1/completions"  # a model may have no chat template
ENDS = {"stop", "length", "error event", "503"}  # 503: it waited for its model
Answers = dict[tuple[str, str], str]  # by model and prompt
Server = subprocess.Popen[bytes]
IDLE = """
import sys, time
longest = 0.0
while not sys.stdin.closed:
    begun = time.monotonic()
    time.sleep(0.01)
    late = time.monotonic() - begun - 0.01
    if late > longest:
        longest = late
        print(longest, flush=True)
"""


@dataclass
class Found:
    complete: int = 0
    left: int = 0
    swaps: int = 0
    ended: Counter[str] = field(default_factory=Counter)  # how streams ended after SIGTERM
    wrong: list[str] = field(default_factory=list)
    rss: list[tuple[float, int]] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="+")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--leaving", type=float, default=0.2)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--drain-seconds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    process, url = serve(args)
    idle = subprocess.Popen([sys.executable, "-c", IDLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        found, stats = asyncio.run(soak(args, process, url))
        process.wait(args.drain_seconds + 30)
    finally:
        idle.kill()
        process.kill()
        process.wait()
    report(args, found, {**stats, "machine_pause": last_number(idle)}, process.returncode)


def serve(args: argparse.Namespace) -> tuple[Server, str]:
    models = [f"m{number}={path}" for number, path in enumerate(args.model)]
    command = [
        sys.executable,
        "-m",
        "fewbit",
        "serve",
        *models,
        "--port",
        "0",
        "--batch-invariant",
        "--max-models",
        "1",
    ]
    command += ["--ctx", str(args.ctx), *(["--threads", str(args.threads)] if args.threads else [])]
    command += ["--drain-seconds", str(args.drain_seconds)]
    log = log_path()
    with log.open("wb") as to:
        process = subprocess.Popen(command, stderr=to)
    while process.poll() is None:
        if found := re.search(r"at (http://\S+);", log.read_text()):
            return process, found[1]
        time.sleep(0.1)
    sys.exit(log.read_text())


def log_path() -> Path:
    return Path(gettempdir(), f"serve_soak-{os.getpid()}.log")


async def soak(args: argparse.Namespace, process: Server, url: str) -> tuple[Found, dict[str, float]]:
    found, rng = Found(), random.Random(args.seed)
    alone = {
        (f"m{number}", prompt): await answer(url, f"m{number}", prompt, args.max_tokens)
        for number in range(len(args.model)) for prompt in PROMPTS
    }  # fmt: skip
    watching = asyncio.create_task(watch(found, process.pid, url))
    end = time.monotonic() + args.seconds
    await asyncio.gather(
        *(one_client(url, found, args, alone, end, random.Random(rng.random())) for _ in range(args.clients))
    )
    if not watching.cancel():
        watching.result()
    stats = await settled(url)
    streams = [asyncio.create_task(last_stream(url, found, alone, rng)) for _ in range(args.clients)]
    await asyncio.sleep(5)  # most of them have their first tokens then
    process.terminate()
    await asyncio.gather(*streams)
    return found, stats


async def one_client(
    url: str, found: Found, args: argparse.Namespace, alone: Answers, end: float, rng: random.Random
) -> None:
    while time.monotonic() < end:
        asked = rng.choice([*alone])
        leaves = rng.random() < args.leaving
        tokens = rng.randint(1, args.max_tokens)
        try:
            text = await answer(url, *asked, tokens, rng.randint(1, tokens) if leaves else None)
        except (RuntimeError, OSError) as error:
            found.wrong.append(f"{asked}: {error}")
            continue
        check(found, alone, asked, text)
        found.left += leaves
        found.complete += not leaves


def check(found: Found, alone: Answers, asked: tuple[str, str], text: str) -> None:
    if not alone[asked].startswith(text.removesuffix("\ufffd")):  # half a character may be cut off at the end
        found.wrong.append(f"{asked}: {text[:60]!r} is not the start of {alone[asked][:60]!r}")


async def last_stream(url: str, found: Found, alone: Answers, rng: random.Random) -> None:
    """A stream that is longer than the server lives: how it ends is counted."""
    asked = rng.choice([*alone])
    text = last = ""
    try:
        async with connection(url, "POST", COMPLETIONS, request_body(*asked, 1500)) as lines:
            async for line in lines:
                if line.startswith(b"data: {"):
                    chunk = json.loads(line.removeprefix(b"data: "))
                    for choice in chunk.get("choices", ()):
                        last = choice["finish_reason"] or last
                        text += choice["text"]
                    last = "error event" if "error" in chunk else last
    except RuntimeError as error:
        last = re.sub(r".*HTTP/1.. (\d+).*", r"\1", str(error).strip())
    except OSError as error:
        last = type(error).__name__
    found.ended[last or "without a last event"] += 1


def request_body(model: str, prompt: str, tokens: int) -> dict[str, Any]:
    return {
        "model": model, "prompt": prompt, "stream": True, "temperature": 0,
        "max_tokens": tokens, "stream_options": {"include_usage": True},
    }  # fmt: skip


async def answer(url: str, model: str, prompt: str, tokens: int, leave_after: int | None = None) -> str:
    """One answer on a connection of its own; some clients disconnect after so many parts."""
    text, parts, usage, reason = "", 0, None, None
    async with connection(url, "POST", COMPLETIONS, request_body(model, prompt, tokens)) as lines:
        async for line in lines:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line.removeprefix(b"data: "))
            if "error" in chunk:
                raise RuntimeError(chunk["error"]["message"])
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                text += choice["text"]
                reason = choice["finish_reason"] or reason
            parts += 1
            if leave_after is not None and parts > leave_after:
                return text
    if usage is None or (reason != "stop" and usage["completion_tokens"] != tokens):
        raise RuntimeError(f"the answer has no end: {reason}, {usage}, {tokens} tokens were asked for")
    return text


async def get(url: str, path: str) -> dict[str, Any]:
    async with connection(url, "GET", path) as lines:
        return json.loads(b"".join([line async for line in lines]))  # type: ignore[no-any-return]


@asynccontextmanager
async def connection(url: str, method: str, path: str, body: object = None) -> AsyncIterator[asyncio.StreamReader]:
    """The lines of an answer. With HTTP/1.0 it ends where the connection does."""
    where, data = urlsplit(url), b"" if body is None else json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        writer.write(
            f"{method} {path} HTTP/1.0\r\nHost: {where.netloc}\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        )
        writer.write(data)
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"{path}: {status.decode()}")
        while (await reader.readline()).strip():
            pass
        yield reader
    finally:
        writer.close()


async def watch(found: Found, pid: int, url: str) -> None:
    began, last = time.monotonic(), set[str]()
    while True:
        found.rss.append((time.monotonic() - began, rss_bytes(pid)))
        start = time.monotonic()
        await get(url, "/health")
        found.pauses.append(time.monotonic() - start)
        loaded = {one["model"] for one in (await get(url, "/stats"))["models"] if one["loaded"]}
        found.swaps += bool(loaded - last)
        last = loaded or last
        await asyncio.sleep(1)


async def settled(url: str) -> dict[str, float]:
    """What the server says when all clients are gone."""
    for _ in range(100):
        found = await get(url, "/stats")
        stats = {name: sum(model[name] for model in found["models"]) for name in ("running", "waiting", "pages_used")}
        stats |= {"requests": found["requests"]}
        if not any(stats.values()):
            break
        await asyncio.sleep(0.1)
    return {**stats, "max_pause_seconds": found["max_pause_seconds"]}


def last_number(process: Server) -> float:
    assert process.stdout is not None
    return float(process.stdout.read().split()[-1])


def rss_bytes(pid: int) -> int:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) << 10


def highest(found: Found, begin: float, end: float) -> int:
    return max([size for when, size in found.rss if begin <= when < end] or [size for _, size in found.rss])


def report(args: argparse.Namespace, found: Found, stats: dict[str, float], status: int) -> None:
    early, late = highest(found, args.seconds / 4, args.seconds / 2), highest(found, args.seconds * 3 / 4, inf)
    facts = {
        "clients": args.clients, "seconds": args.seconds, "complete": found.complete, "left": found.left,
        "wrong": len(found.wrong), "pages_used": stats["pages_used"], "running": stats["running"],
        "waiting": stats["waiting"], "rss_growth": late / early - 1, "rss_bytes": late, "swaps": found.swaps,
        "loop_pause_seconds": stats["max_pause_seconds"], "machine_pause_seconds": stats["machine_pause"],
        "health_seconds": max(found.pauses), "streams_after_sigterm": dict(found.ended), "status": status,
        "tracebacks": log_path().read_text().count("Traceback"),
    }  # fmt: skip
    print(json.dumps(facts, indent=2) if args.json else "\n".join(f"{name}: {value}" for name, value in facts.items()))
    for line in found.wrong[:5]:
        print(line)
    leaked = stats["pages_used"] or stats["running"] or stats["waiting"] or stats["requests"]
    if found.wrong or leaked or status or facts["tracebacks"] or set(found.ended) - ENDS:
        sys.exit("the soak failed")


if __name__ == "__main__":
    main()
