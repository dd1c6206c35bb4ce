"""Times of kernels on an NVIDIA GPU, and how fast its memory can be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fewbit.ops.cuda.kernels import Entry
from fewbit.ops.cuda.session import Session

READ = Entry(
    "read_all",
    "device.h",
    """
extern "C" __global__ void __launch_bounds__(512) read_all(const uint4* p, uint32_t* out, int count) {
  uint32_t sum = 0;
  const int step = gridDim.x * 512;
  int i = blockIdx.x * 512 + threadIdx.x;
  for (; i + 7 * step < count; i += 8 * step) {
    uint4 v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = fewbit::load_16(p + i + j * step);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  for (; i < count; i += step) sum += fewbit::load_16(p + i).x;
  if (sum == 12345) out[0] = sum;
}
""",
    codes="QQi",
)


def graph_seconds(gpu: Session, record: Callable[[Any], None], replays: int = 7) -> float:
    """The median of replays of a graph."""
    builder = gpu.device.create_graph_builder()
    builder.begin_building()
    record(builder.stream)
    graph = builder.end_building().complete()
    graph.upload(gpu.stream)
    options, found = gpu._core.EventOptions(timing_enabled=True), []
    for i in range(replays + 2):
        before = gpu.stream.record(options=options)
        graph.launch(gpu.stream)
        after = gpu.stream.record(options=options)
        after.sync()
        if i > 1:
            found.append((after - before) * 1e-3)
    graph.close()
    return sorted(found)[replays // 2]


def read_ceiling(gpu: Session) -> float:
    """Bytes a second of the fastest of some loops that only read."""
    size, best = 2 << 30, 0.0
    held = gpu.allocate(size)
    data, out = int(held.handle), gpu.scratch("out", 16)
    gpu.fill(data, 0x5A, size)
    for blocks in (132 * 2, 132 * 4, 132 * 8, 132 * 16, 132 * 32):
        args = (data, out, np.int32(size // 16))

        def run(stream: Any, blocks: int = blocks, args: tuple[Any, ...] = args) -> None:
            gpu.launch(READ, blocks, 512, *args, stream=stream)

        run(None)
        best = max(best, size / graph_seconds(gpu, run))
    held.close()
    return best
