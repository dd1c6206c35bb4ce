"""What this machine can do at most: the limits that kernels are measured beside."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import numpy as np

from ..arrays import Bytes
from ..ops import cpu

MEMORY_BYTES = 1 << 30
CACHE_BYTES = 1 << 20  # for each thread: in the second-level cache


@dataclass(frozen=True)
class Limits:
    """Rates with a number of threads, on the instruction set in use."""

    isa: str
    threads: int
    memory_gb_per_s: float  # plain loads
    memory_prefetch_gb_per_s: float  # with software prefetch
    cache_gb_per_s: float
    int8_gmac_per_s: float  # multiply-adds
    bf16_gmac_per_s: float  # 0: not used on this instruction set
    f32_gmac_per_s: float


def measure_limits(memory_bytes: int | None = None, rounds: int = 3, seconds: float = 0.1) -> list[Limits]:
    """The limits for 1 thread up to as many as `linear` uses.

    >>> [row.threads for row in measure_limits(1 << 22, rounds=1, seconds=0.001)][0]
    1
    """
    memory = np.ones(memory_bytes or MEMORY_BYTES, np.uint8)
    return [_limits(memory, threads, rounds, seconds) for threads in range(1, cpu.default_threads() + 1)]


def _limits(memory: Bytes, threads: int, rounds: int, seconds: float) -> Limits:
    cached = memory[: CACHE_BYTES * threads]

    def gb_per_s(data: Bytes, prefetch: bool, times: int) -> float:
        return median(data.size / cpu.read_seconds(data, threads, prefetch) / 1e9 for _ in range(times))

    return Limits(
        isa=cpu.isa(),
        threads=threads,
        memory_gb_per_s=gb_per_s(memory, False, rounds),
        memory_prefetch_gb_per_s=gb_per_s(memory, True, rounds),
        cache_gb_per_s=gb_per_s(cached, False, 100 * rounds),
        int8_gmac_per_s=cpu.multiply_rate("int8", threads, seconds) / 1e9,
        bf16_gmac_per_s=cpu.multiply_rate("bf16", threads, seconds) / 1e9,
        f32_gmac_per_s=cpu.multiply_rate("f32", threads, seconds) / 1e9,
    )
