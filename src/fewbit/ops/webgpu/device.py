"""An open adapter: memory, compiled kernels, submissions. Models and `fb.linear` of a process share it."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import Any

import numpy as np
import numpy.typing as npt

from ...arrays import Bytes, Ints
from ...errors import ArgumentError, DeviceError, FewbitError, OutOfMemory
from ..memory import readable
from .adapters import AdapterInfo, find, one_line, package
from .wgsl import COUNTS, F16, SUBGROUPS, Kernel

MAX_BINDINGS = 10  # storage buffers of the kernel that has most
ALIGN = 256  # bytes: where bindings may begin, on all adapters
# Workgroups: a number of COUNTS divided by an integer and rounded up, perhaps times another; or "one" and a number.
Size = tuple[str, int] | tuple[str, int, int]


@dataclass(eq=False)
class Memory:
    """A storage buffer."""

    handle: Any
    nbytes: int
    name: str
    gpu: Gpu

    def __post_init__(self) -> None:
        self.gpu.allocated_bytes += self.nbytes

    def free(self) -> None:
        self.handle.destroy()
        self.nbytes, self.gpu.allocated_bytes = 0, self.gpu.allocated_bytes - self.nbytes

    def __del__(self) -> None:
        self.gpu.allocated_bytes -= self.nbytes


@dataclass(frozen=True)
class Dispatch:
    """A kernel with its buffers, its parameters and its grid, whose sizes a step knows."""

    kernel: Kernel
    buffers: tuple[Memory, ...]
    values: Mapping[str, float]
    grid: tuple[Size, Size, Size]
    label: str = ""


@dataclass(frozen=True)
class Prepared:
    """A dispatch as it is sent: pipeline, bindings, grid."""

    pipeline: Any
    group: Any
    grid: tuple[Size, Size, Size]


@dataclass
class Counters:
    """What was done since the device was opened."""

    submissions: int = 0
    dispatches: int = 0
    round_trips: int = 0
    compiled: int = 0


class Gpu:
    """A device of WebGPU. All that touches its queue holds `lock`."""

    keeps_bytes = True  # whether buffers hold what is sent to them

    def __init__(self, info: AdapterInfo, adapter: Any) -> None:
        self.info, self.lock, self.counters = info, RLock(), Counters()
        wanted = [name for name in ("shader-f16", "subgroup", "timestamp-query") if name in info.features]
        storage = "max-storage-buffers-per-shader-stage"
        limits = {
            storage: min(adapter.limits[storage], MAX_BINDINGS),
            "max-storage-buffer-binding-size": info.binding_bytes,
            "max-buffer-size": info.buffer_bytes,
            "max-compute-workgroup-storage-size": adapter.limits["max-compute-workgroup-storage-size"],
        }
        with reported("WebGPU cannot open the adapter"):
            self._device = adapter.request_device_sync(required_features=wanted, required_limits=limits)
        self.queue = self._device.queue
        self.extensions = frozenset(
            ([F16] if "shader-f16" in wanted else []) + ([SUBGROUPS] if "subgroup" in wanted else [])
        )
        self.has_subgroups, self.has_f16 = SUBGROUPS in self.extensions, F16 in self.extensions
        self.is_lost = False
        self.binding_bytes = info.binding_bytes  # a test may lower it
        self.allocated_bytes = 0
        self._spare: Memory | None = None
        self.tables: dict[str, Memory] = {}  # of decoders, by the name of the format
        self._usage = package().BufferUsage
        self._pipelines: dict[str, tuple[Any, Any]] = {}

    # Memory

    def allocate(self, nbytes: int, name: str = "") -> Memory:
        """A storage buffer of whole words."""
        size = self._checked_size(nbytes)
        usage = self._usage.STORAGE | self._usage.COPY_SRC | self._usage.COPY_DST
        with self.lock, reported(f"no memory for {readable(size)} on {self.info.name}", self):
            return Memory(self._device.create_buffer(size=size, usage=usage), size, name, self)

    def _checked_size(self, nbytes: int) -> int:
        size = max(-(-nbytes // 4) * 4, 16)
        if size > self.info.buffer_bytes:
            limit = readable(self.info.buffer_bytes)
            raise OutOfMemory(f"{self.info.name} has buffers of at most {limit}; {readable(size)} are needed")
        return size

    def upload(self, data: npt.NDArray[Any], memory: Memory, offset: int = 0) -> None:
        """Bytes to a buffer, in whole words; what is missing in the last one becomes zero."""
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if flat.size % 4:
            flat = np.pad(flat, (0, -flat.size % 4))
        if flat.size:
            with self.lock, reported("sending to the GPU failed", self):
                self.queue.write_buffer(memory.handle, offset, flat)

    def array(self, values: npt.NDArray[Any], name: str = "") -> Memory:
        """A buffer that holds an array."""
        memory = self.allocate(values.nbytes, name)
        self.upload(values, memory)
        return memory

    def staging(self, nbytes: int) -> Any:
        """Memory that the host reads."""
        usage = self._usage.MAP_READ | self._usage.COPY_DST
        with self.lock, reported("no memory to read results", self):
            return self._device.create_buffer(size=max(nbytes, 16), usage=usage)

    def download(self, memory: Memory, nbytes: int, offset: int = 0) -> Bytes:
        """Bytes of a buffer: a submission and a round trip of their own."""
        first, end = offset // 4 * 4, -(-(offset + nbytes) // 4) * 4
        staging = self.staging(end - first)
        try:
            self.submit([], {}, [(memory, first, staging, 0, end - first)])
            return self.read(staging, end - first)[offset - first :][:nbytes]
        finally:
            staging.destroy()

    def read(self, staging: Any, nbytes: int) -> Bytes:
        """Wait for what was submitted, and take the first bytes of staging memory."""
        with self.lock, reported("reading from the GPU failed", self):
            self.counters.round_trips += 1
            staging.map_sync("READ", 0, max(nbytes, 16))
            try:
                return np.frombuffer(staging.read_mapped(0, nbytes), np.uint8).copy()
            finally:
                staging.unmap()

    # Kernels

    def pipeline(self, kernel: Kernel) -> tuple[Any, Any]:
        """A compiled kernel and the layout of its bindings; each is compiled once."""
        found = self._pipelines.get(kernel.digest)
        if found is None:
            with self.lock, reported(f"the kernel {kernel.name} does not compile", self):
                found = self._pipelines[kernel.digest] = self._compile(kernel)
                self.counters.compiled += 1
        return found

    def _compile(self, kernel: Kernel) -> tuple[Any, Any]:
        missing = set(kernel.enables) - self.extensions
        if missing:
            raise DeviceError(f"{self.info.name} lacks {', '.join(sorted(missing))}, which {kernel.name} needs")
        device = self._device
        kinds = ["uniform", *("read-only-storage" if b.access == "read" else "storage" for b in kernel.bindings)]
        entries = [
            {"binding": n, "visibility": package().ShaderStage.COMPUTE, "buffer": {"type": kind}}
            for n, kind in enumerate(kinds)
        ]
        layout = device.create_bind_group_layout(entries=entries)
        pipeline = device.create_compute_pipeline(
            layout=device.create_pipeline_layout(bind_group_layouts=[layout]),
            compute={"module": device.create_shader_module(code=kernel.native_source), "entry_point": "main"},
            label=kernel.name,
        )
        return pipeline, layout

    def prepare(self, dispatches: Sequence[Dispatch]) -> list[Prepared]:
        """Compiled kernels with their bindings. Parameters of all go to one uniform buffer."""
        packed = b"".join(pack_parameters(one.kernel, one.values).ljust(ALIGN, b"\0") for one in dispatches)
        usage = self._usage.UNIFORM | self._usage.COPY_DST
        with self.lock, reported("a kernel cannot be prepared", self):
            uniforms = self._device.create_buffer(size=max(len(packed), ALIGN), usage=usage)
            if packed:
                self.queue.write_buffer(uniforms, 0, packed)
            return [self._bind(one, uniforms, ALIGN * n) for n, one in enumerate(dispatches)]

    def _bind(self, one: Dispatch, uniforms: Any, at: int) -> Prepared:
        pipeline, layout = self.pipeline(one.kernel)
        size = -(-4 * len(one.kernel.parameters) // 16) * 16
        entries = [{"binding": 0, "resource": {"buffer": uniforms, "offset": at, "size": max(size, 16)}}]
        for n, memory in enumerate(one.buffers, 1):
            self._check_binding(memory)
            entries.append({"binding": n, "resource": {"buffer": memory.handle, "offset": 0, "size": memory.nbytes}})
        return Prepared(pipeline, self._device.create_bind_group(layout=layout, entries=entries), one.grid)

    def _check_binding(self, memory: Memory) -> None:
        if memory.nbytes > self.info.binding_bytes:
            limit = readable(self.info.binding_bytes)
            raise OutOfMemory(
                f"{self.info.name} lets a kernel see {limit} of a buffer; {memory.name or 'one'} has "
                f"{readable(memory.nbytes)}: take a smaller ctx, cache_bytes or max_batched_tokens"
            )

    def submit(
        self,
        dispatches: Sequence[Prepared],
        counts: Mapping[str, int],
        copies: Sequence[tuple[Memory, int, Any, int, int]] = (),
    ) -> None:
        """Run kernels one after another, then copies (buffer, offset, staging, offset, bytes), as one submission."""
        with self.lock, reported("a step on the GPU failed", self):
            encoder = self._device.create_command_encoder()
            if dispatches:
                work = encoder.begin_compute_pass()
                for one in dispatches:
                    x, y, z = (count_of(size, counts) for size in one.grid)
                    if not x or not y or not z:
                        continue
                    work.set_pipeline(one.pipeline)
                    work.set_bind_group(0, one.group)
                    work.dispatch_workgroups(x, y, z)
                    self.counters.dispatches += 1
                work.end()
            for source, offset, target, place, nbytes in copies:
                encoder.copy_buffer_to_buffer(source.handle, offset, target, place, nbytes)
            self.queue.submit([encoder.finish()])
            self.counters.submissions += 1

    def move(self, moves: Sequence[tuple[Memory, int, Memory, int, int]]) -> None:
        """Copy parts of buffers, (buffer, from, buffer, to, bytes), in this order."""
        size = max(nbytes for *_, nbytes in moves)
        with self.lock, reported("copying on the GPU failed", self):
            if self._spare is None or self._spare.nbytes < size:
                self._spare = self.allocate(size, "copies")
            encoder = self._device.create_command_encoder()
            for source, first, target, place, nbytes in moves:
                encoder.copy_buffer_to_buffer(source.handle, first, self._spare.handle, 0, nbytes)
                encoder.copy_buffer_to_buffer(self._spare.handle, 0, target.handle, place, nbytes)
            self.queue.submit([encoder.finish()])

    def run(self, dispatches: Sequence[Dispatch], counts: Mapping[str, int] | None = None) -> None:
        """Prepare and submit kernels that run once."""
        self.submit(self.prepare(dispatches), counts or {})

    def lose(self) -> None:
        """Destroy the device, as drivers do after a reset."""
        self.is_lost = True
        with _opening:
            for key in [key for key, gpu in _opened.items() if gpu is self]:
                del _opened[key]
        self._device.destroy()


def count_of(size: Size, counts: Mapping[str, int]) -> int:
    """
    >>> count_of(("tokens", 8), {"tokens": 9}), count_of(("one", 3), {}), count_of(("tokens", 1, 4), {"tokens": 9})
    (2, 3, 36)
    """
    name, number, *times = size
    return int(number) if name == "one" else -(-counts[name] // int(number)) * int(times[0] if times else 1)


def pack_parameters(kernel: Kernel, values: Mapping[str, float]) -> bytes:
    """The uniform struct of a kernel."""
    codes = {"u32": "I", "i32": "i", "f32": "f"}
    names = [name for name, _ in kernel.parameters]
    if set(names) != set(values):
        raise ValueError(f"{kernel.name} takes {names}, not {list(values)}")
    text = "<" + "".join(codes[kind] for _, kind in kernel.parameters)
    try:
        return struct.pack(text, *(values[name] for name in names))
    except (OverflowError, struct.error):
        wrong = {name: value for name, value in values.items() if not abs(value) < 1 << 31}
        raise ArgumentError(f"a number of the model is too large for a GPU: {wrong} of {kernel.name}") from None


def header(counts: Mapping[str, int]) -> Ints:
    """The numbers at the front of a step's integers."""
    return np.array([counts.get(name, 0) for name in COUNTS], np.int32)


@contextmanager
def reported(what: str, gpu: Gpu | None = None) -> Iterator[None]:
    """Errors of wgpu become ours, in one sentence."""
    if gpu is not None and gpu.is_lost:
        raise DeviceError(f"{gpu.info.name} was lost: load the model again")
    try:
        yield
    except FewbitError:
        raise
    except MemoryError as error:
        raise OutOfMemory(f"{what}: {one_line(error)}; take a smaller cache_bytes or max_batched_tokens") from error
    except Exception as error:  # wgpu raises kinds of its own
        text = one_line(error)
        if gpu is not None and _was_lost(gpu, text):
            gpu.lose()
            raise DeviceError(f"{gpu.info.name} was lost: load the model again") from error
        if "not enough memory" in text.lower() or "out of memory" in text.lower():
            raise OutOfMemory(f"{what}: {text}; take a smaller cache_bytes or max_batched_tokens") from error
        raise DeviceError(f"{what}: {text}") from error


def _was_lost(gpu: Gpu, text: str) -> bool:
    """Whether an error means so. A device that is destroyed while its results are waited for stops its poller."""
    found = "lost" in text.lower() or "PollThread" in text
    return gpu.is_lost or found or getattr(gpu._device, "_poller", gpu) is None


def open_gpu(number: int | None = None) -> Gpu:
    """The device of an adapter, opened once; again after it was lost."""
    info, adapter = find(number)
    with _opening:
        if info.number not in _opened:
            _opened[info.number] = Gpu(info, adapter)
        return _opened[info.number]


_opening = RLock()
_opened: dict[int, Gpu] = {}
