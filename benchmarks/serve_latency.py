"""What the server adds to a short request: one token on a connection that is kept, beside the same in this process.

    python benchmarks/serve_latency.py MODEL [--requests 300] [--json]

Both run on the same engine, in turns, so that other work on the machine slows both: the server runs in a thread of this
process, its client in another process. The bar: the median of the server within 2 ms of that of `LLM.agenerate`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection

from fewbit import LLM
from fewbit.server.app import make_app
from fewbit.server.listening import listen
from fewbit.server.pool import Pool
from fewbit.server.serving import Server, make_config
from fewbit.server.settings import Settings

MAX_ADDED = 0.002  # seconds
PROMPT = "The sea is"
OPTIONS = {"max_tokens": 1, "temperature": 0}
BATCH = 10  # requests of a kind before the other's turn


def client(port: int) -> None:
    """Seconds of each of some requests, for each line of the input."""
    connection = HTTPConnection("127.0.0.1", port)
    body = json.dumps({"prompt": PROMPT, **OPTIONS})
    for _ in sys.stdin:
        seconds = []
        for _ in range(BATCH):
            begun = time.perf_counter()
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
            assert response.status == 200, response.status
            seconds.append(time.perf_counter() - begun)
        print(json.dumps(seconds), flush=True)


def measure(llm: LLM, requests: int) -> tuple[list[float], list[float]]:
    """Seconds of each request, straight and through the server."""
    settings = Settings(port=0)
    app = make_app(settings, Pool.of(llm), close_pool=False)
    ready = threading.Event()
    with listen(settings) as at:
        server = Server(make_config(app), app.state.fewbit, ready.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [at]})
        thread.start()
        ready.wait()
        try:
            return in_turns(llm, at.getsockname()[1], requests)
        finally:
            server.should_exit = True
            thread.join()


def in_turns(llm: LLM, port: int, requests: int) -> tuple[list[float], list[float]]:
    straight: list[float] = []
    served: list[float] = []
    command = [sys.executable, __file__, "--client", str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        for turn in range(1 + -(-requests // BATCH)):
            other.stdin.write("\n")
            other.stdin.flush()
            through = json.loads(other.stdout.readline())
            alone = [one_straight(llm) for _ in range(BATCH)]
            if turn:  # the first warms up
                served, straight = served + through, straight + alone
        other.stdin.close()
    return straight, served


def one_straight(llm: LLM) -> float:
    begun = time.perf_counter()
    llm.generate(PROMPT, **OPTIONS)  # type: ignore[call-overload]
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with LLM(args.model, threads=args.threads) as llm:
        straight, served = measure(llm, args.requests)
    medians = {"straight_seconds": statistics.median(straight), "served_seconds": statistics.median(served)}
    added = medians["served_seconds"] - medians["straight_seconds"]
    if args.json:
        print(json.dumps({**medians, "added_seconds": added, "requests": len(served)}, indent=1))
        return
    print(f"in this process     {medians['straight_seconds'] * 1e3:.2f} ms (median of {len(straight)})")
    print(f"through the server  {medians['served_seconds'] * 1e3:.2f} ms")
    print(f"added               {added * 1e3:.2f} ms (bar: {MAX_ADDED * 1e3:.0f} ms)")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        client(int(sys.argv[2]))
    else:
        main()
