"""Many streaming clients on a server for some minutes: no token is lost or mixed up, no page is leaked.

    python benchmarks/serve_soak.py MODEL [--clients 64] [--seconds 120] [--leaving 0.2] [--seed 0] [--json]

Clients ask for greedy answers of random lengths to one of some prompts; some go in the middle of an answer. The server
runs with --batch-invariant, so each answer must be the beginning of the answer that its prompt gets alone. At the end
no request may be active and no page in use. RSS is compared from the first quarter on, when the cache has filled up.
The longest pause of the server's event loop is by its own clock, beside that of a process that only sleeps: a machine
with other work pauses both. `health_seconds` is the slowest answer of /health.
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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
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
CHAT = "/v1/chat/completions"
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
    tokens: int = 0
    wrong: list[str] = field(default_factory=list)
    rss: list[tuple[float, int]] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--leaving", type=float, default=0.2)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    process, url = serve(args)
    idle = subprocess.Popen([sys.executable, "-c", IDLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        found, stats = asyncio.run(soak(args, process.pid, url))
    finally:
        idle.kill()
        process.terminate()
        process.wait(60)
    report(args, found, {**stats, "machine_pause": last_number(idle)}, process.returncode)


def serve(args: argparse.Namespace) -> tuple[subprocess.Popen[bytes], str]:
    command = [sys.executable, "-m", "fewbit", "serve", args.model, "--port", "0", "--batch-invariant"]
    command += ["--ctx", str(args.ctx), *(["--threads", str(args.threads)] if args.threads else [])]
    log = Path(gettempdir(), f"serve_soak-{os.getpid()}.log")
    with log.open("wb") as to:
        process = subprocess.Popen(command, stderr=to)
    while process.poll() is None:
        if found := re.search(r"at (http://\S+);", log.read_text()):
            return process, found[1]
        time.sleep(0.1)
    sys.exit(log.read_text())


async def soak(args: argparse.Namespace, pid: int, url: str) -> tuple[Found, dict[str, float]]:
    found, rng = Found(), random.Random(args.seed)
    alone = [await answer(url, prompt, args.max_tokens) for prompt in PROMPTS]
    end = time.monotonic() + args.seconds
    watching = asyncio.create_task(watch(found, pid, url))
    await asyncio.gather(
        *(one_client(url, found, args, alone, end, random.Random(rng.random())) for _ in range(args.clients))
    )
    watching.cancel()
    return found, await settled(url)


async def one_client(
    url: str, found: Found, args: argparse.Namespace, alone: list[str], end: float, rng: random.Random
) -> None:
    while time.monotonic() < end:
        number = rng.randrange(len(PROMPTS))
        leaves = rng.random() < args.leaving
        tokens = rng.randint(1, args.max_tokens)
        text = await answer(url, PROMPTS[number], tokens, rng.randint(1, tokens) if leaves else None)
        found.tokens += tokens
        if not alone[number].startswith(text.removesuffix("\ufffd")):  # half a character may be cut off at the end
            found.wrong.append(f"{PROMPTS[number][:20]!r}: {text[:60]!r} is not the start of {alone[number][:60]!r}")
        found.left += leaves
        found.complete += not leaves


async def answer(url: str, prompt: str, tokens: int, leave_after: int | None = None) -> str:
    """One answer on a connection of its own; some clients go after so many parts."""
    body = {
        "messages": [{"role": "user", "content": prompt}], "stream": True, "temperature": 0, "max_tokens": tokens,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    text, parts, usage, reason = "", 0, None, None
    async with connection(url, "POST", CHAT, body) as lines:
        async for line in lines:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line.removeprefix(b"data: "))
            if "error" in chunk:
                raise RuntimeError(chunk["error"]["message"])
            usage = chunk["usage"] or usage
            for choice in chunk["choices"]:
                text += choice["delta"].get("content", "")
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
    began = time.monotonic()
    while True:
        found.rss.append((time.monotonic() - began, rss_bytes(pid)))
        start = time.monotonic()
        await get(url, "/health")
        found.pauses.append(time.monotonic() - start)
        await asyncio.sleep(1)


async def settled(url: str) -> dict[str, float]:
    """What the server says when all clients are gone."""
    model: dict[str, float] = {}
    for _ in range(100):
        found = await get(url, "/stats")
        model = {**found["models"][0], "requests": found["requests"]}
        model["max_pause_seconds"] = found["max_pause_seconds"]
        if not (model["running"] or model["waiting"] or model["pages_used"] or model["requests"]):
            break
        await asyncio.sleep(0.1)
    return model


def last_number(process: subprocess.Popen[bytes]) -> float:
    assert process.stdout is not None
    return float(process.stdout.read().split()[-1])


def rss_bytes(pid: int) -> int:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) << 10


def report(args: argparse.Namespace, found: Found, stats: dict[str, float], status: int) -> None:
    later = [size for when, size in found.rss if when > args.seconds / 4] or [size for _, size in found.rss]
    growth = later[-1] / later[0] - 1
    facts = {
        "clients": args.clients, "seconds": args.seconds, "complete": found.complete, "left": found.left,
        "wrong": len(found.wrong), "pages_used": stats["pages_used"], "running": stats["running"],
        "waiting": stats["waiting"], "rss_growth": growth, "rss_bytes": later[-1],
        "loop_pause_seconds": stats["max_pause_seconds"], "machine_pause_seconds": stats["machine_pause"],
        "health_seconds": max(found.pauses), "status": status,
    }  # fmt: skip
    print(json.dumps(facts, indent=2) if args.json else "\n".join(f"{name}: {value}" for name, value in facts.items()))
    for line in found.wrong[:5]:
        print(line)
    leaked = stats["pages_used"] or stats["running"] or stats["waiting"] or stats["requests"]
    if found.wrong or leaked or status:
        sys.exit("the soak failed")


if __name__ == "__main__":
    main()
