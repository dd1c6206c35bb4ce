"""Plans of random graphs on WebGPU, in ragged batches, with every format of pages, beside the NumPy device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fewbit as fb
from fewbit import devices
from fewbit.arrays import Floats
from fewbit.cache.cache import Cache
from fewbit.cache.groups import pages_by_group
from fewbit.cache.layout import make_layout
from fewbit.devices.batch import Row
from fewbit.devices.forward import forward
from fewbit.devices.webgpu import WebGpuDevice, WebGpuExecutor
from fewbit.formats import get
from fewbit.formats.decode import decode
from fewbit.formats.encode import encode
from fewbit.load_options import LoadOptions
from fewbit.ops.graph import OPERATIONS, Graph, Value
from fewbit.ops.recorder import Ops, record
from fewbit.ops.specs import AttentionSpec, Routing
from fewbit.ops.webgpu import Gpu
from fewbit.ops.webgpu.page_writers import FORMATS, page_row_bytes
from fewbit.ops.webgpu.plan import Builder

from ..ops import near_ties
from ..ops.steps import ROPES, VOCAB, matrix, random_graph, stack, vector
from .cases import error, formats

pytestmark = pytest.mark.webgpu
BAR = 1e-5


def run(device: str, graph: Graph, chunks: list[tuple[int, list[int]]], kv: str = "f32", **options: Any) -> Floats:
    """Results of steps with the same sequences, of the last tokens of each, one after the other, as one array."""
    made = devices.get(device, LoadOptions(device=device, **options))
    layout = make_layout(graph.specs, kv)
    pages = pages_by_group(layout.groups, layout.page_tokens, tokens=512, max_seqs=4, step_tokens=64)
    cache = Cache(made.make_store(layout, pages))
    executor = made.make_executor(graph, cache.store, VOCAB)
    sequences = {number: cache.new() for number, _ in chunks}
    first = forward(executor, cache, [Row(sequences[n], ids, min(len(ids), 30)) for n, ids in chunks]).copy()
    second = forward(executor, cache, [Row(sequences[n], ids[:1], 1) for n, ids in chunks])
    return np.concatenate([first, second])


CHUNKS = [(0, [3, 1, 4, 1, 5, 9, 2, 6]), (1, [7]), (2, [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5])]


def test_every_operation_is_there() -> None:
    """But for those that join the threads of tensor parallelism on a CPU."""
    assert {name for name in OPERATIONS if not hasattr(Builder, name)} == {"all_gather", "all_reduce"}


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(3, 25))])
def test_random_graphs(gpu: Gpu, seed: int) -> None:
    graph = random_graph(seed)
    chunks = CHUNKS
    if not graph.is_causal:  # a text is run whole
        made = devices.get("webgpu", LoadOptions(device="webgpu", max_batched_tokens=64))
        assert made.takes_rows
    assert error(run("webgpu", graph, chunks, max_batched_tokens=64), run("numpy", graph, chunks)) <= 2 * BAR


def attending(kv_heads: int, dim: int, v_dim: int, window: int, **options: Any) -> Graph:
    def forward_of(ops: Ops) -> Value:
        x = ops.embed(matrix(VOCAB, 64))
        q, k = ops.linear(x, matrix(2 * kv_heads * dim, 64, 1)), ops.linear(x, matrix(kv_heads * dim, 64, 2))
        v = ops.linear(x, matrix(kv_heads * v_dim, 64, 3))
        q, k = ops.rope(q, 2 * kv_heads, ROPES[1]), ops.rope(k, kv_heads, ROPES[1])
        spec = AttentionSpec(kv_heads, dim, v_dim, window)
        return ops.attend(0, q, k, v, spec=spec, scale=dim**-0.5, **options)

    return record(forward_of)


@pytest.mark.parametrize("kv", FORMATS)
def test_pages(gpu: Gpu, kv: str) -> None:
    """More than one page, values that fill no block, windows, sinks and caps."""
    long = [(0, [n % VOCAB for n in range(50)]), (1, [5, 3])]
    bars = {"f32": BAR, "f8_e4m3": 2e-2, "q4_0": 2e-2, "iq4_nl": 0.1}  # numbers between two codes go either way
    bar = bars.get(kv, 2e-3)
    for graph in (
        attending(2, 32, 32, 0),
        attending(1, 40, 24, 37, softcap=3.0, sinks=vector(2, 3)),
    ):
        assert error(run("webgpu", graph, long, kv, max_batched_tokens=64), run("numpy", graph, long, kv)) <= bar


@pytest.mark.parametrize(("kv", "bar"), [("f8_e4m3", 0.0), ("q8_0", 1e-4), ("q4_0", 1e-3), ("iq4_nl", 0.02)])
def test_codes_in_pages(gpu: Gpu, kv: str, bar: float) -> None:
    """What is kept of K and V loses what the reference's encoder loses, also where numbers are huge, tiny or 0."""
    fmt, dim, tokens = get(kv), 72, 40
    values = np.random.default_rng(0).standard_normal((tokens, dim), np.float32)
    values *= (10.0 ** np.random.default_rng(1).integers(-6, 5, (tokens, 1))).astype(np.float32)
    values[3], values[4, 32:] = 0, 0

    def forward_of(ops: Ops) -> Value:
        x = ops.embed(fb.quantize(values, "f32"))
        return ops.attend(0, x, x, x, spec=AttentionSpec(1, dim, dim), scale=1.0)

    graph = record(forward_of)
    made = devices.get("webgpu", LoadOptions(device="webgpu", max_batched_tokens=64))
    layout = make_layout(graph.specs, kv, rotate=False)
    cache = Cache(made.make_store(layout, (4,)))
    executor = made.make_executor(graph, cache.store, tokens)
    sequence = cache.new()
    forward(executor, cache, [Row(sequence, list(range(tokens)), 1)])
    pages = cache.table(sequence)
    found = np.concatenate([cache.store.read(0, pages[n // 32], min(32, tokens - n))[1][:, 0] for n in (0, 32)])
    got, best = decode(fmt, found, dim), decode(fmt, encode(fmt, values), dim)
    limit = np.maximum(np.abs(values).max(axis=1), 1e-30)
    lost, least = (np.sqrt((((one - values) / limit[:, None]) ** 2).mean(axis=1)) for one in (got, best))
    assert (lost <= least * (1 + bar) + 1e-7).all()
    if not bar:
        np.testing.assert_array_equal(got, best)


def test_pages_that_are_split(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """More splits than pages, and more pages than splits."""
    monkeypatch.setattr("fewbit.ops.webgpu.attention.LONG", 1)
    monkeypatch.setattr("fewbit.ops.webgpu.attention.SPLITS", 3)
    chunks = [(0, [n % VOCAB for n in range(150)]), (1, [5, 3])]
    for window in (0, 40):
        graph = attending(2, 32, 24, window, sinks=vector(4, 3))
        assert error(run("webgpu", graph, chunks, max_batched_tokens=200), run("numpy", graph, chunks)) <= BAR


@pytest.mark.parametrize("fmt", formats(("q4_0",)))
def test_experts(gpu: Gpu, fmt: fb.Format) -> None:
    n = 512 if fmt.block == 256 else 128 if fmt.block > 32 else 64
    weights = [np.random.default_rng(i).standard_normal((4, n, n), np.float32) / 8 for i in range(3)]
    if fmt.is_scalar and fmt.name not in ("f32", "f16", "bf16"):
        pytest.skip("no format of weights")
    up, gate, down = (fb.quantize(w, fmt) for w in weights)
    routing = Routing(2, "sigmoid", bias=vector(4, 8), groups=2, top_groups=1, group_top=2, expert_scale=vector(4, 9))

    def forward_of(ops: Ops) -> Value:
        x = ops.embed(matrix(VOCAB, n))
        ops.attend(0, x, x, x, spec=AttentionSpec(1, n, n), scale=1.0)
        bias = np.stack([vector(n, 20 + i) for i in range(4)])
        scores = ops.linear(x, matrix(4, n, 5))
        gated = ops.experts(x, scores, up=up, down=down, gate=gate, routing=routing, up_bias=bias, down_bias=bias)
        return ops.experts(gated, scores, up=up, down=down, routing=Routing(3, "softmax_top"), kind="gelu")

    graph = record(forward_of)
    assert error(run("webgpu", graph, CHUNKS, max_batched_tokens=64), run("numpy", graph, CHUNKS)) <= 2 * BAR


def test_gates_of_two_formats_and_matrices_that_are_split(small_bindings: Gpu) -> None:
    up, gate = (
        fb.quantize(np.random.default_rng(i).standard_normal((32, 64)), f) for i, f in enumerate(("q8_0", "q4_0"))
    )
    heads = fb.quantize(np.asarray(stack(4, 8, 16).dequantize()), "f16")

    def forward_of(ops: Ops) -> Value:
        x = ops.norm(ops.embed(fb.quantize(matrix(VOCAB, 64).dequantize(), "q8_0")), vector(64), 1e-5)
        y = ops.gate(ops.linear(x, gate), ops.linear(x, up), "silu")
        a, b = ops.linear(x, matrix(3, 64), vector(3)), ops.linear(x, matrix(16, 64, 1))
        joined = ops.join(ops.columns(ops.linear_heads(x, heads), 0, 32), b, 1)
        return ops.join(ops.linear(y, matrix(16, 32)), ops.join(joined, a, 1), 1)

    small_bindings.binding_bytes = 4000
    graph = record(forward_of)
    small_bindings.binding_bytes = 1 << 20  # rows of values take more
    expected = run("numpy", graph, CHUNKS)
    assert error(run("webgpu", graph, CHUNKS, max_batched_tokens=64), expected) <= BAR


@pytest.mark.parametrize("is_long", [False, True])
def test_pages_in_several_buffers(small_bindings: Gpu, monkeypatch: pytest.MonkeyPatch, is_long: bool) -> None:
    """K and V of three pages each, of which a sequence sees some; with and without splits of their own."""
    if is_long:
        monkeypatch.setattr("fewbit.ops.webgpu.attention.LONG", 1)
    long = [(0, [n % VOCAB for n in range(150)]), (1, [5, 3]), (2, [n % VOCAB for n in range(40)])]
    make_store = WebGpuDevice.make_store

    def small(self: WebGpuDevice, *given: Any) -> Any:
        small_bindings.binding_bytes = 3 * 32 * 2 * 32 * 4 + 100
        store: Any = make_store(self, *given)
        small_bindings.binding_bytes = 1 << 24
        assert [len(array.memories) for array in store.arrays[0]] == [6, 6]
        return store

    monkeypatch.setattr(WebGpuDevice, "make_store", small)
    for window in (0, 40):
        graph = attending(2, 32, 32, window, sinks=vector(4, 3))
        expected = run("numpy", graph, long)
        assert error(run("webgpu", graph, long, max_batched_tokens=200), expected) <= BAR


@pytest.mark.parametrize("each", [6, 1, 4])
def test_pages_that_are_copied_saved_and_read_again(small_bindings: Gpu, each: int) -> None:
    """With so many pages in a buffer."""
    graph, gpu = attending(2, 32, 32, 0), small_bindings
    for kv in ("f16", "f8_e4m3", "q8_0", "iq4_nl"):
        made = devices.get("webgpu", LoadOptions(device="webgpu", max_batched_tokens=64))
        layout = make_layout(graph.specs, kv)
        gpu.binding_bytes = each * max(2 * 32 * page_row_bytes(layout.k, 32), 1) + 8
        store: Any = made.make_store(layout, (6,))
        assert len(store.arrays[0][1].memories) == -(-6 // each)
        parts = [
            np.random.default_rng(i).integers(0, 255, (7, 2, b), np.uint8)
            for i, b in enumerate(layout.row_bytes(graph.specs[0]))
        ]  # type: ignore[arg-type]
        store.write(0, 2, parts, first=3)
        store.copy(0, [(2, 4), (4, 1)])
        for page in (1, 2, 4):
            for part, got in zip(parts, store.read(0, page, 10), strict=True):
                np.testing.assert_array_equal(got[3:], part)


def test_what_does_not_fit_is_said_in_a_sentence(small_bindings: Gpu) -> None:
    graph = attending(2, 32, 32, 0)
    made = devices.get("webgpu", LoadOptions(device="webgpu"))
    with pytest.raises(fb.OutOfMemory, match=r"a page of 32 tokens takes .* take a smaller cache_bytes"):
        made.make_store(make_layout(graph.specs), (6,))
    with pytest.raises(fb.FormatError, match="on WebGPU k cannot be q5_0"):
        made.make_store(make_layout(graph.specs, "q5_0"), (6,))
    for options, text in (({"threads": 2}, "no threads to set"), ({"batch_invariant": True}, "not batch-invariant")):
        with pytest.raises(fb.RequestError, match=text):
            devices.get("webgpu", LoadOptions(device="webgpu", **options))  # type: ignore[arg-type]
    assert WebGpuExecutor.runs_ahead is False


@pytest.mark.parametrize("activations", ["int8", "f16"])
@pytest.mark.parametrize("format", near_ties.FORMATS)
def test_near_ties_of_experts_are_decided_in_f32(gpu: Gpu, format: str, activations: str) -> None:
    near_ties.check_device(format, "webgpu", activations=activations)
