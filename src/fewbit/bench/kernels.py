"""Times of `linear` beside the machine's limits: what `fewbit bench kernels` prints."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np

from ..arrays import Bytes, Floats, bytes_for
from ..formats import Format
from ..ops import cpu
from ..tensor import QuantTensor

FORMATS = ("q4_0", "q4_1", "q8_0", "q4_k", "q5_k", "q6_k")
MEMORY_BYTES = 1 << 30  # of weights that rotate, so that no cache holds them
ROUND_SECONDS = 0.3
PEAKS = {"f32": "f32", "q8": "int8", "q16": "int8", "bf16": "bf16"}  # inputs -> what is multiplied


@dataclass(frozen=True)
class KernelCase:
    format: Format
    n: int
    k: int
    batch: int
    threads: int
    repack: bool = False  # weights as `fewbit.repack` gives them
    activations: str | None = None  # as `fewbit.linear` takes it


@dataclass(frozen=True)
class Timing:
    """One case; shares are medians over rounds in which kernel and limit alternate."""

    format: str
    n: int
    k: int
    batch: int
    threads: int
    isa: str
    kernel: str
    inputs: str  # how it takes them: q8, q16, bf16 or f32
    ms: float
    weights_gb_per_s: float
    read_gb_per_s: float
    share_of_read: float
    gflop_per_s: float
    peak: str  # what the kernel multiplies: int8, bf16 or f32
    share_of_peak: float


def run(case: KernelCase, rounds: int = 5, memory_bytes: int | None = None) -> Timing:
    """Time one case.

    >>> from fewbit.formats import get
    >>> run(KernelCase(get("q8_0"), 32, 256, 1, 1), rounds=1, memory_bytes=1 << 20).format
    'q8_0'
    """
    matrices, memory = rotating(case, memory_bytes or MEMORY_BYTES)
    x = np.random.default_rng(1).standard_normal((case.batch, case.k), np.float32)
    out = np.empty((case.batch, case.n), np.float32)
    weights = endless(matrices)
    per_call = _seconds(case, x, weights, out, 1)
    calls = max(1, min(len(matrices), int(ROUND_SECONDS / per_call)))
    what = case.format, case.k, case.batch, matrices[0].layout, case.activations
    inputs = cpu.inputs_of(*what)
    peak = PEAKS[inputs]
    kernel, reads, peaks = [], [], []
    for _ in range(rounds):
        reads.append(memory.size / cpu.read_seconds(memory, case.threads))
        peaks.append(cpu.multiply_rate(peak, case.threads, 0.02))
        kernel.append(_seconds(case, x, weights, out, calls))
    size, flops = matrices[0].nbytes, 2.0 * case.n * case.k * case.batch
    return Timing(
        format=case.format.name, n=case.n, k=case.k, batch=case.batch, threads=case.threads, isa=cpu.isa(),
        kernel=cpu.kernel(*what), inputs=inputs, ms=1e3 * median(kernel), weights_gb_per_s=size / median(kernel) / 1e9,
        read_gb_per_s=median(reads) / 1e9,
        share_of_read=median(size / t / r for t, r in zip(kernel, reads, strict=True)),
        gflop_per_s=flops / median(kernel) / 1e9,
        peak=peak,
        share_of_peak=median(flops / 2 / t / p for t, p in zip(kernel, peaks, strict=True)),
    )  # fmt: skip


def rotating(case: KernelCase, memory_bytes: int) -> tuple[list[QuantTensor], Bytes]:
    """As many copies of one packed matrix as fill the memory, and that memory."""
    first = sample(case.format, case.n, case.k)
    if case.repack:
        first = cpu.repack(first)
    one = first.stored
    copies = max(1, -(-memory_bytes // max(one.size, 1)))
    memory = bytes_for(copies * one.size)
    parts = memory.reshape(copies, -1)
    parts[:] = one
    return [QuantTensor(part, first.shape, case.format, first.layout) for part in parts], memory


def sample(fmt: Format, n: int, k: int) -> QuantTensor:
    """A Gaussian matrix, packed."""
    rng = np.random.default_rng(0)
    rows = min(n, 64)  # repeated: encoding is slow, and time does not depend on the numbers
    data = cpu.encode(fmt, rng.standard_normal((rows, k), np.float32) * np.float32(0.02))
    packed = np.tile(data, (-(-n // max(rows, 1)), 1))[:n]
    return QuantTensor(packed.reshape(-1), (n, k), fmt)


def endless(matrices: list[QuantTensor]) -> Iterator[QuantTensor]:
    while True:
        yield from matrices


def _seconds(case: KernelCase, x: Floats, weights: Iterator[QuantTensor], out: Floats, calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        cpu.linear(x, next(weights), out=out, threads=case.threads, activations=case.activations)
    return (time.perf_counter() - started) / calls
