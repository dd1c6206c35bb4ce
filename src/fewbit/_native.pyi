"""The native module (csrc/bindings.cpp). Use it through fewbit.ops.cpu."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

activation_bytes: int
max_threads: int

def isas() -> list[str]: ...
def known_isas() -> list[str]: ...
def isa() -> str: ...
def use_isa(name: str) -> None: ...
def int16_rows() -> int: ...
def products() -> int: ...
def scratch_bytes() -> int: ...
def format_names() -> list[str]: ...
def guard_map(data: Bytes) -> int: ...
def map_failed(number: int) -> bool: ...
def unguard_map(number: int) -> None: ...
def row_bytes(format: int, group: int, k: int) -> int: ...
def path(format: int, group: int, k: int, m: int, layout: bool, activations: str | None) -> tuple[str, str]: ...
def decode(format: int, group: int, data: Bytes, n: int, k: int, out: Floats, threads: int) -> None: ...
def bind_threads(workers: list[list[int]], others: list[int]) -> int: ...
def place_memory(data: Bytes, nodes: list[int], interleave: bool) -> int: ...
def linear_backward(w: Packed, grad: Floats, out: Floats, threads: int) -> None: ...
def row_norms(w: Packed, k: int, out: Floats, threads: int) -> None: ...
def encode(format: int, group: int, x: Floats, importance: Floats | None, out: Bytes, threads: int) -> None: ...
def worth_interleaving(format: int, group: int, n: int, k: int) -> bool: ...
def interleave(format: int, group: int, data: Bytes, n: int, k: int, back: bool, out: Bytes, threads: int) -> None: ...
def linear(
    format: int,
    group: int,
    data: Bytes,
    n: int,
    interleaved: bool,
    x: Floats,
    out: Floats,
    threads: int,
    activations: str | None,
) -> None: ...
def linear_many(
    weights: list[tuple[int, int, Bytes, int, bool]],
    x: npt.NDArray[Any],
    kind: str,
    m: int,
    k: int,
    outs: list[Floats],
    biases: list[Floats | None],
    residuals: list[Floats | None],
    threads: int,
    activations: str | None,
) -> None: ...
def linear_gated(
    gate: tuple[int, int, Bytes, int, bool],
    up: tuple[int, int, Bytes, int, bool],
    kind_of_gate: str,
    x: npt.NDArray[Any],
    kind: str,
    m: int,
    k: int,
    out: Floats,
    threads: int,
    activations: str | None,
) -> None: ...
def tile_bytes(m: int, k: int) -> int: ...
def pack_tiles(x: Floats, out: Bytes, threads: int) -> None: ...
def unpack_tiles(x: Bytes, out: Floats) -> None: ...
def quantize_activations(x: Floats, twice: bool, out: Bytes, threads: int) -> None: ...
def decode_activations(x: Bytes, twice: bool, out: Floats) -> None: ...
def kv_write(
    format: int, store: Bytes, x: Floats, slots: npt.NDArray[np.int64], rotate: bool, is_value: bool, threads: int
) -> None: ...
def kv_tiles(format: int, dim: int) -> bool: ...
def attend(
    q: Floats,
    k_format: int,
    k: Bytes,
    v_format: int,
    v: Bytes,
    tables: npt.NDArray[np.int32],
    table_starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    q_starts: npt.NDArray[np.int64],
    scale: float,
    rotate: bool,
    window: int,
    softcap: float,
    sinks: Floats | None,
    out: Floats,
    exact: bool,
    threads: int,
    chunked: bool = False,
) -> None: ...

BadRows = list[tuple[int, int]]  # numbers of rows, and why nothing can be sampled from them

def sample(
    logits: Floats,
    params: bytes,
    uniforms: npt.NDArray[np.float64],
    seen: npt.NDArray[np.int32] | None,
    counts: npt.NDArray[np.int32] | None,
    starts: npt.NDArray[np.int64] | None,
    bias_ids: npt.NDArray[np.int32] | None,
    bias_values: Floats | None,
    bias_starts: npt.NDArray[np.int64] | None,
    masks: npt.NDArray[np.uint32] | None,
    mask_rows: npt.NDArray[np.int32] | None,
    tokens: npt.NDArray[np.int32],
    logprobs: Floats,
    threads: int,
) -> BadRows: ...
def log_probabilities(logits: Floats, tokens: npt.NDArray[np.int32], out: Floats, threads: int) -> BadRows: ...
def sample_chain(
    logits: Floats,
    samplers: bytes,
    params: bytes,
    uniform: float,
    seen: npt.NDArray[np.int32] | None,
    counts: npt.NDArray[np.int32] | None,
    starts: npt.NDArray[np.int64] | None,
    bias_ids: npt.NDArray[np.int32] | None,
    bias_values: Floats | None,
    bias_starts: npt.NDArray[np.int64] | None,
    masks: npt.NDArray[np.uint32] | None,
    mask_rows: npt.NDArray[np.int32] | None,
    dry_ids: npt.NDArray[np.int32] | None,
    dry_values: Floats | None,
    dry_starts: npt.NDArray[np.int64] | None,
) -> tuple[int, float]: ...
def top_tokens(logits: Floats, tokens: npt.NDArray[np.int32], logprobs: Floats) -> BadRows: ...
def probe_read(data: Bytes, threads: int, prefetch: bool) -> float: ...
def probe_rate(kind: str, seconds: float, threads: int) -> float: ...

Packed = tuple[int, int, Bytes, int, bool]  # a matrix: number of the format, group, bytes, rows, interleaved

AdapterOfStep = tuple[Adapter, npt.NDArray[np.int32], Floats, npt.NDArray[np.int32], Floats]

class Adapter:
    def __init__(self) -> None: ...
    def add(
        self,
        product: int,
        a: Bytes | None,
        b: Bytes | None,
        kind: str,
        r: int,
        k: int,
        n: int,
        scale: float,
        is_table: bool,
    ) -> None: ...

class Plan:
    def __init__(self, batch_invariant: bool = False) -> None: ...
    def buffer(self, width: int, logits_only: bool, slot: int) -> int: ...
    def rope(self, inv_freq: Floats, scale: float, neox: bool, axes: Bytes | None = None) -> int: ...
    def embed(self, w: Packed, out: int, scale: float) -> None: ...
    def linear(
        self,
        x: int,
        norm: Floats | None,
        eps: float,
        at_least: str | None,
        terms: list[tuple[Packed, int, Floats | None, int | None]],
        norms: Floats | None = None,
    ) -> None: ...
    def gated(self, x: int, norm: Floats | None, eps: float, gate: Packed, up: Packed, kind: str, out: int) -> None: ...
    def apply_rope(self, x: int, out: int, heads: int, dim: int, rope: int) -> None: ...
    def attend(
        self,
        k_format: int,
        k_store: Bytes,
        k_dim: int,
        v_format: int,
        v_store: Bytes,
        v_dim: int,
        group: int,
        rotate: bool,
        q: int,
        k: int,
        v: int,
        out: int,
        scale: float,
        window: int,
        softcap: float,
        sinks: Floats | None,
        causal: bool = True,
        around: int = 0,
        keep: bool = True,
        chunked: bool = False,
        spans: bool = False,
    ) -> None: ...
    def norm(self, x: int, weight: Floats, eps: float, heads: int, out: int) -> None: ...
    def layer_norm(self, x: int, weight: Floats, bias: Floats | None, eps: float, out: int) -> None: ...
    def map(self, x: int, kind: str, by: float, vector: Floats | None, out: int) -> None: ...
    def positions(self, w: Packed, out: int) -> None: ...
    def columns(self, x: int, start: int, width: int, heads: int, out: int) -> None: ...
    def join(self, a: int, b: int, heads: int, b_heads: int, out: int) -> None: ...
    def linear_heads(self, x: int, w: list[Packed], out: int) -> None: ...
    def experts(
        self,
        x: int,
        scores: int,
        matrices: tuple[Packed | None, Packed, Packed],
        biases: tuple[Floats | None, Floats | None, Floats | None],
        kind: str,
        routing: tuple[int, str, bool, float, Floats | None, int, int, int, Floats | None],
        out: int,
    ) -> None: ...
    def add(self, a: int, b: int, out: int) -> None: ...
    def gate(self, a: int, b: int, kind: str, out: int) -> None: ...
    def conv(
        self, x: int, states: Bytes, offset: int, weight: Floats, bias: Floats | None, silu: bool, out: int
    ) -> None: ...
    def delta_rule(
        self,
        q: int,
        k: int,
        v: int,
        a: int,
        b: int,
        states: Bytes,
        offset: int,
        heads: int,
        v_heads: int,
        decay: Floats,
        dt_bias: Floats,
        scale: float,
        tiled: bool,
        out: int,
    ) -> None: ...
    def scan(
        self,
        x: int,
        dt: int,
        b: int,
        c: int,
        states: Bytes,
        offset: int,
        heads: int,
        groups: int,
        decay: Floats,
        skip: Floats,
        dt_bias: Floats,
        out: int,
    ) -> None: ...
    def gather(self, x: int, out: int) -> None: ...
    def given(self, out: int) -> None: ...
    def insert(self, x: int, part: int, adds: bool, out: int) -> None: ...
    def all_reduce(self, x: int, group: ThreadCollective, rank: int, out: int) -> None: ...
    def all_gather(self, x: int, group: ThreadCollective, rank: int, first: int, out: int) -> None: ...
    def low_rank(self, x: int, products: list[tuple[int, int]]) -> None: ...
    def low_rank_rows(self, product: int, count: int, out: int) -> None: ...
    def set_result(self, x: int) -> None: ...
    def run(
        self,
        tokens: npt.NDArray[np.int32],
        groups: Sequence[tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]] | None],
        lengths: npt.NDArray[np.int64],
        q_starts: npt.NDArray[np.int64],
        logits_indices: npt.NDArray[np.int32],
        out: Floats,
        activations: str | None,
        threads: int,
        reads: npt.NDArray[np.int32] | None = None,
        writes: npt.NDArray[np.int32] | None = None,
        tops: npt.NDArray[np.int32] | None = None,
        given: Floats | None = None,
        adapters: list[AdapterOfStep] = [],
        inserted: list[tuple[int, npt.NDArray[np.int32], Floats]] = [],
        axes: npt.NDArray[np.int32] | None = None,
        spans: npt.NDArray[np.int64] | None = None,
        seconds: float | None = None,
        resumes: bool = False,
    ) -> bool: ...
    def profile(self, on: bool) -> None: ...
    def seconds(self) -> list[tuple[str, float]]: ...
    def expert_bytes(self) -> int: ...

class ThreadCollective:
    def __init__(self, ranks: int) -> None: ...
    def abort(self) -> None: ...
    def reset(self) -> None: ...

def launch_all(
    kernel_address: int,
    gemm_address: int,
    blas_handle: int,
    stream: int,
    launches: Bytes,
    arena: Bytes,
    begin: int,
    end: int,
) -> tuple[int, int]: ...
