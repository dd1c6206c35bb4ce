"""The server over Ray Serve beside the plain one, and both beside an empty application, measured in turns.

    python benchmarks/replicas.py --model smollm2.gguf --threads 1

prints the time to the first byte of each at the median, and tokens a second of the plain server and of one replica with
as many threads. All run at the same time and are idle but in their turns.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from statistics import median
from typing import Any

import click
import ray
import uvicorn
from ray import serve
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

from fewbit.cluster.app import build

PORTS = {"empty": 18_301, "plain": 18_302, "serve": 18_303}


async def nothing(request: Any) -> StreamingResponse:
    await request.body()

    async def parts() -> Any:
        yield b"data: {}\n\n"

    return StreamingResponse(parts())


def empty_app() -> Starlette:
    return Starlette(routes=[Route("/", nothing, methods=["POST"]), Route("/health", nothing)])


@serve.deployment(ray_actor_options={"num_cpus": 0}, max_ongoing_requests=1000)
@serve.ingress()
class Empty:
    def __serve_build_asgi_app__(self) -> Starlette:
        return empty_app()


class Peer:
    """What is asked: a port, a path and the body of a request."""

    def __init__(self, port: int, path: str) -> None:
        self.port, self.path = port, path

    def first_byte(self, body: dict[str, Any]) -> float:
        connection = self.connect()
        begun = time.perf_counter()
        answer = self.ask(connection, body)
        answer.read(1)
        seconds = time.perf_counter() - begun
        answer.read()
        return seconds

    def tokens_per_second(self, clients: int, max_tokens: int) -> float:
        def client(number: int) -> int:
            answer = self.ask(self.connect(), body_of(f"{number}: Once upon a time", max_tokens))
            data = [json.loads(line[6:]) for line in answer.read().splitlines() if line.startswith(b"data: {")]
            tokens: int = data[-1]["usage"]["completion_tokens"]
            return tokens

        begun = time.perf_counter()
        with ThreadPoolExecutor(clients) as threads:
            tokens = sum(threads.map(client, range(clients)))
        return tokens / (time.perf_counter() - begun)

    def connect(self) -> http.client.HTTPConnection:
        """A connection of its own for each request: peers close those that are kept after some time."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.connect()
        return connection

    def ask(self, connection: http.client.HTTPConnection, body: dict[str, Any]) -> http.client.HTTPResponse:
        connection.request("POST", self.path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        return answer


def body_of(prompt: str, max_tokens: int) -> dict[str, Any]:
    return {
        "prompt": prompt, "max_tokens": max_tokens, "min_tokens": max_tokens, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip


def wait_for(port: int) -> None:
    for _ in range(600):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            connection.getresponse()
            return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError(f"nothing answers on port {port}")


def start_all(model: str, threads: int, ctx: int, stack: ExitStack) -> None:
    """The empty application and the plain server; both applications on Serve."""
    loading = {"threads": threads, "ctx": ctx}
    config = uvicorn.Config(empty_app(), port=PORTS["empty"], log_level="error")
    server = uvicorn.Server(config)
    threading.Thread(target=server.run, daemon=True).start()
    command = [sys.executable, "-m", "fewbit", "serve", f"tiny={model}", "--port", str(PORTS["plain"])]
    options = [f"--{name}={value}" for name, value in loading.items()]
    plain = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)
    stack.callback(plain.terminate)
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    ray.init("local", num_cpus=threads, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
    stack.callback(ray.shutdown)
    serve.start(http_options={"host": "127.0.0.1", "port": PORTS["serve"]})
    stack.callback(serve.shutdown)
    serve.run(Empty.bind(), name="empty", route_prefix="/empty")
    args = {"models": {"tiny": model}, "replicas": 1, "cpus": threads, "loading": loading}
    serve.run(build(args), name="fewbit", route_prefix="/")
    for port in PORTS.values():
        wait_for(port)


@click.command()
@click.option("--model", default="smollm2", help="Path or name of a model.")
@click.option("--threads", default=1, help="Of each engine.")
@click.option("--ctx", default=1024)
@click.option("--rounds", default=5, help="Turns of each.")
@click.option("--requests", default=40, help="Of a turn, for times to the first byte.")
@click.option("--clients", default=16, help="At a time, for tokens a second.")
@click.option("--tokens", default=48, help="Of each answer, for tokens a second.")
@click.option("--json", "as_json", is_flag=True)
def main(
    model: str, threads: int, ctx: int, rounds: int, requests: int, clients: int, tokens: int, as_json: bool
) -> None:
    times: dict[str, list[float]] = defaultdict(list)
    rates: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        start_all(model, threads, ctx, stack)
        path = "/v1/completions"
        peers = {
            "empty": Peer(PORTS["empty"], "/"), "empty on Serve": Peer(PORTS["serve"], "/empty/"),
            "plain server": Peer(PORTS["plain"], path), "replicas": Peer(PORTS["serve"], path),
        }  # fmt: skip
        for turn in range(rounds + 1):  # the first one warms up
            for name, peer in peers.items():
                found = [peer.first_byte(body_of("Once", 1)) for _ in range(requests)]
                times[name] += found if turn else []
            for name in ("plain server", "replicas"):
                rate = peers[name].tokens_per_second(clients, tokens)
                rates[name] += [rate] if turn else []
    ms = {name: 1e3 * median(found) for name, found in times.items()}
    ratios = [a / b for a, b in zip(rates["replicas"], rates["plain server"], strict=True)]
    result = {
        "first_byte_ms": ms,
        "added_ms": ms["replicas"] - ms["empty on Serve"],
        "added_by_plain_ms": ms["plain server"] - ms["empty"],
        "tokens_per_second": {name: median(found) for name, found in rates.items()},
        "throughput_ratio": median(ratios),
    }
    print(json.dumps(result, indent=None if as_json else 2))


if __name__ == "__main__":
    main()
