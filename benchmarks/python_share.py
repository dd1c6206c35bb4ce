"""How much of a decoding step is Python: the time of the engine's steps that is not spent in native code.

    python benchmarks/python_share.py
    python benchmarks/python_share.py model.gguf --tokens 400 --temperature 0.8

A clock stands around the engine's step, and around each of the two native calls in it: the plan and the sampler. What
is between is Python: the scheduler, the cache's bookkeeping, the calls themselves, and handing the tokens on.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import fewbit as fb
from fewbit.engine.engine import Engine
from fewbit.ops.cpu import sampling

seconds: dict[str, float] = defaultdict(float)
calls: dict[str, int] = defaultdict(int)


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args, **options)
        finally:
            seconds[name] += time.perf_counter() - started
            calls[name] += 1

    return call


class Around:
    """An object with clocks around some of its functions."""

    def __init__(self, inner: Any, **clocks: str) -> None:
        self._inner = inner
        for function, name in clocks.items():
            setattr(self, function, timed(name, getattr(inner, function)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--temperature", type=float, default=0.0)
    args = parser.parse_args()
    llm = fb.LLM(args.model)
    llm.generate("Hello", max_tokens=16)
    plans = llm.loaded.executor.plans
    plans["logits"] = Around(plans["logits"], run="native")
    sampling._native = Around(sampling._native, sample="native")
    Engine.step = timed("step", Engine.step)  # type: ignore[method-assign]
    output = llm.generate("Once upon a time there was", max_tokens=args.tokens, temperature=args.temperature, seed=1)
    python = seconds["step"] - seconds["native"]
    each = 1e6 / calls["step"]
    print(f"{len(output.tokens)} tokens, {calls['step']} steps of {seconds['step'] * each:.0f} us")
    print(f"Python: {python * each:.0f} us a step, {100 * python / seconds['step']:.2f}%")


if __name__ == "__main__":
    main()
