"""Attacks on a server of this machine, one after another, while good clients stream: nobody else may notice.

    python benchmarks/serve_attack.py MODEL [--encoder MODEL] [--streams 8] [--json]

The server is started here, and the attacks go to it alone, from 127.0.0.2, each for some seconds, and from a process of
their own. The table tells what the attackers got, the longest gap between two tokens of a good stream, and the slowest
answer of /health. The bars: gaps below 2 s, /health below 0.1 s, memory within 10% of what it was, an end within the
limit. On a machine with other work the times are upper bounds; the first row, without an attack, tells how busy it is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Tell me about the sea."}]
ATTACKER = ("127.0.0.2", 0)
PHASE_SECONDS = 12.0  # that an attack gets at most
WARM_UP_SECONDS = 120.0
DRAIN_SECONDS = 5
CACHE_BYTES = 128 << 20  # the KV cache fills up to its size with whatever is written: this much in the warm-up
MAX_GAP, MAX_HEALTH, MAX_GROWTH = 2.0, 0.1, 0.1

Got = Counter[str]


@dataclass
class Watch:
    """What good clients see, since the last attack began."""

    gap: float = 0.0
    health: float = 0.0
    tokens: int = 0
    errors: Got = field(default_factory=Counter)


@dataclass
class Target:
    port: int
    encoder: str  # its name, or that of the language model
    watch: Watch = field(default_factory=Watch)


def request(path: str, body: Any = None, *, headers: str = "") -> bytes:
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


async def ask(target: Target, data: bytes, seconds: float = 10.0, *, address: tuple[str, int] | None = ATTACKER) -> str:
    """The status of an answer; "closed" without one, "left" if nothing came in time and the client went."""
    writer = None
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection("127.0.0.1", target.port, local_addr=address)
            with suppress(ConnectionError):  # the answer may be there though not all was read
                writer.write(data)
                await writer.drain()
            line = await reader.readline()
        return line.split()[1].decode() if line else "closed"
    except TimeoutError:
        return "left"
    except (OSError, IndexError):
        return "closed"
    finally:
        if writer is not None:
            writer.transport.abort()


async def many(target: Target, data: bytes, count: int, seconds: float = 10.0) -> Got:
    return Counter(await asyncio.gather(*(ask(target, data, seconds) for _ in range(count))))


async def load_encoder(target: Target) -> Got:
    return await many(target, request("/api/embed", {"model": target.encoder, "input": "sea " * 2000}), 1)


async def fill_cache(target: Target) -> Got:
    """Prompts of more tokens than the KV cache has room for: its memory counts from the first use of each page."""
    got: Got = Counter()
    for number in range(CACHE_BYTES >> 23):
        body = {"model": "good", "prompt": f"sea {number} " * 200, "max_tokens": 1}
        got += await many(target, request("/v1/completions", body), 1, 60.0)
    return got


async def large_embeddings(target: Target) -> Got:
    return await many(target, request("/api/embed", {"model": target.encoder, "input": "sea " * 3_500_000}), 8, 3.0)


async def one_long_word(target: Target) -> Got:
    return await many(target, request("/api/embed", {"model": target.encoder, "input": "x" * 14_000_000}), 8, 3.0)


async def large_tokenize(target: Target) -> Got:
    return await many(target, request("/tokenize", {"prompt": "sea " * 250_000}), 8, 3.0)


async def large_counts(target: Target) -> Got:
    body = {"model": "good", "messages": [{"role": "user", "content": "sea " * 3_500_000}]}
    return await many(target, request("/v1/messages/count_tokens", body), 8, 3.0)


async def many_messages(target: Target) -> Got:
    return await many(target, request(CHAT, {"messages": [{"role": "user", "content": "x"}] * 200_000}), 4)


async def long_names(target: Target) -> Got:
    return await many(target, request(CHAT, {"messages": HELLO, "x" * 1_000_000: 1}), 8)


async def idle_connections(target: Target) -> Got:
    async def idle() -> str:
        return await ask(target, b"", PHASE_SECONDS - 4)

    return Counter(await asyncio.gather(*(idle() for _ in range(1500))))


async def slow_bodies(target: Target) -> Got:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n{{".encode()
    return await many(target, head, 100)


async def slow_headers(target: Target) -> Got:
    return await many(target, f"POST {CHAT} HTTP/1.1\r\nX-Slow: ".encode(), 100)


async def two_lengths(target: Target) -> Got:
    return await many(target, request(CHAT, {"messages": HELLO}, headers="Transfer-Encoding: chunked\r\n"), 20)


async def bad_origins(target: Target) -> Got:
    found = await many(target, request("/stats", headers="Origin: http://[::1\r\n"), 20)
    return found + await many(target, request("/stats", headers="Sec-Fetch-Site: cross-site\r\n"), 20)


async def a_full_queue(target: Target) -> Got:
    body = {"messages": HELLO, "max_tokens": 64, "n": 8}
    return await many(target, request(CHAT, body), 100, 4.0)


ATTACKS: list[Callable[[Target], Coroutine[Any, Any, Got]]] = [
    large_embeddings, one_long_word, large_tokenize, large_counts, many_messages, long_names, idle_connections,
    slow_bodies, slow_headers, two_lengths, bad_origins, a_full_queue,
]  # fmt: skip


async def stream_for_ever(target: Target) -> None:
    """A good client: one answer after another, and how long it waited for each part."""
    data = request(CHAT, {"messages": HELLO, "max_tokens": 200, "stream": True})
    while True:
        last = time.monotonic()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
        except OSError:
            target.watch.errors["no connection"] += 1
            await asyncio.sleep(0.1)
            continue
        try:
            writer.write(data)
            status = (await reader.readline()).split()[1].decode()
            if status != "200":
                target.watch.errors[status] += 1
                await asyncio.sleep(0.1)
                continue
            while line := await reader.readline():
                if line.startswith(b"data: [DONE]"):
                    break
                if line.startswith(b"data: "):
                    now = time.monotonic()
                    target.watch.gap, last = max(target.watch.gap, now - last), now
                    target.watch.tokens += 1
        except (OSError, IndexError):
            target.watch.errors["broken"] += 1
        finally:
            writer.transport.abort()


async def watch_health(target: Target) -> None:
    """The same connection again and again, as a monitor keeps it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    while True:
        begun = time.monotonic()
        writer.write(request("/health"))
        await reader.readuntil(b"}")
        target.watch.health = max(target.watch.health, time.monotonic() - begun)
        await asyncio.sleep(0.1)


async def attack_all(target: Target, streams: int, pid: int) -> dict[str, Any]:
    good = [asyncio.create_task(stream_for_ever(target)) for _ in range(streams)]
    good.append(asyncio.create_task(watch_health(target)))
    loop, attackers = asyncio.get_running_loop(), ProcessPoolExecutor(1, get_context("spawn"))
    warm: Got = Counter()
    for first in (load_encoder, fill_cache, a_full_queue):
        warm += await loop.run_in_executor(attackers, run_attack, first, target.port, target.encoder, WARM_UP_SECONDS)
    await asyncio.sleep(3.0)
    before, rows = memory_bytes(pid), []
    quiet, target.watch = target.watch, Watch()
    await asyncio.sleep(3.0)
    rows.append(row("nothing", Counter(), target.watch, pid))
    print(line_of(rows[-1]), file=sys.stderr, flush=True)
    for attack in ATTACKS:
        target.watch = Watch()
        got = await loop.run_in_executor(attackers, run_attack, attack, target.port, target.encoder)
        await asyncio.sleep(0.5)
        rows.append(row(attack.__name__.replace("_", " "), got, target.watch, pid))
        print(line_of(rows[-1]), file=sys.stderr, flush=True)
    await asyncio.sleep(3.0)
    after = memory_bytes(pid)
    attackers.shutdown()
    for task in good:
        task.cancel()
    await asyncio.gather(*good, return_exceptions=True)
    return {"attacks": rows, "warm_up": row("warm-up", warm, quiet, pid), "rss_before": before, "rss_after": after}


def run_attack(
    attack: Callable[[Target], Coroutine[Any, Any, Got]], port: int, encoder: str, seconds: float = PHASE_SECONDS
) -> Got:
    async def bounded() -> Got:
        try:
            async with asyncio.timeout(seconds):
                return await attack(Target(port, encoder))
        except TimeoutError:
            return Counter({"stopped": 1})

    return asyncio.run(bounded())


def row(name: str, got: Got, watch: Watch, pid: int) -> dict[str, Any]:
    return {
        "attack": name, "got": dict(got), "gap_seconds": round(watch.gap, 3), "health_seconds": round(watch.health, 4),
        "good_tokens": watch.tokens, "good_errors": dict(watch.errors),
        "rss_bytes": memory_bytes(pid),
    }  # fmt: skip


def line_of(one: dict[str, Any]) -> str:
    got = ", ".join(f"{count} x {status}" for status, count in sorted(one["got"].items()))
    errors = f"  good clients: {one['good_errors']}" if one["good_errors"] else ""
    times = f"gap {one['gap_seconds']:6.2f} s  health {one['health_seconds']:6.3f} s"
    return f"{one['attack']:18} {times}  {one['rss_bytes'] >> 20:5} MiB  {got}{errors}"


def memory_bytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) << 10


class Server:
    """`fewbit serve` on a port of its own; its log is counted."""

    def __init__(self, model: str, encoder: str | None) -> None:
        models = [f"good={model}", *([f"encoder={encoder}"] if encoder else [])]
        options = ["--port", "0", "--drain-seconds", str(DRAIN_SECONDS), "--cache-bytes", str(CACHE_BYTES)]
        command = [sys.executable, "-m", "fewbit", "serve", *models, *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.log_bytes, self.tracebacks, self.port = 0, 0, 0
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        if not self._ready.wait(300) or not self.port:
            raise SystemExit("the server did not start")

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log_bytes += len(line)
            self.tracebacks += line.startswith("Traceback")
            if found := re.search(r"at http://\S+:(\d+);", line):
                self.port = int(found[1])
                self._ready.set()
        self._ready.set()

    def end(self) -> float:
        """Seconds from SIGTERM to the end."""
        begun = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._reader.join()
        return time.monotonic() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--encoder", help="an encoder, for large embeddings")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    server = Server(args.model, args.encoder)
    try:
        target = Target(server.port, "encoder" if args.encoder else "good")
        found = asyncio.run(attack_all(target, args.streams, server.process.pid))
    finally:
        seconds = server.end()
    found |= {"end_seconds": round(seconds, 2), "log_bytes": server.log_bytes, "tracebacks": server.tracebacks}
    if args.json:
        print(json.dumps(found, indent=1))
        return
    rows, growth = found["attacks"], found["rss_after"] / found["rss_before"] - 1
    gap, health = (max(one[name] for one in rows) for name in ("gap_seconds", "health_seconds"))
    print(f"longest gap    {gap:.2f} s (bar: {MAX_GAP} s)")
    print(f"slowest health {health:.3f} s (bar: {MAX_HEALTH} s)")
    print(f"memory         {found['rss_before'] >> 20} MiB before, {found['rss_after'] >> 20} MiB after: {growth:+.1%} "
          f"(bar: {MAX_GROWTH:.0%})")  # fmt: skip
    print(f"log            {server.log_bytes >> 10} KiB, {server.tracebacks} tracebacks")
    print(f"end            {seconds:.1f} s after SIGTERM (limit: {DRAIN_SECONDS} s, and the end of a step)")


if __name__ == "__main__":
    main()
