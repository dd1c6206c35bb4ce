"""Low-rank terms of adapters on a GPU, against `ops/numpy.py`, and models with adapters against the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewbit.arrays import Floats
from fewbit.devices.batch import AdapterMix, LoadedAdapter, Row, Sample
from fewbit.devices.forward import make_batch
from fewbit.errors import RequestError
from fewbit.loading import Loaded
from fewbit.models import open_model
from fewbit.ops import cuda
from fewbit.ops import numpy as reference
from fewbit.ops.cuda.adapters import GpuAdapters, Target, mix_of, pack_adapters
from fewbit.ops.cuda.values import Rows, StepInputs
from fewbit.ops.low_rank import AdapterRows, LowRank, ProductKey, Terms
from fewbit.ops.sampling import SamplingParams

from ..loading import load
from ..models.random_llama import write_llama
from .row_cases import Inputs, floats, plain_step

pytestmark = pytest.mark.cuda
KEYS: list[ProductKey] = [("linear", number) for number in range(5)] + [("embed", 9)]


def term(n: int, k: int, r: int, kind: Any = np.float16, table: bool = False) -> LowRank:
    a, b = floats(*((k, r) if table else (r, k))), floats(n, r)
    return LowRank((a / np.float32(np.sqrt(k))).astype(kind), b.astype(kind), 0.5, n, k)


def used(adapter: Any, rows: list[int], weights: list[float]) -> AdapterRows:
    none = np.zeros(0, np.int32)
    return AdapterRows(adapter, np.array(rows, np.int32), np.array(weights, np.float32), none, none.astype(np.float32))


def adapted_step(case: Inputs, adapters: Sequence[AdapterRows], tokens: int) -> StepInputs:
    mix = mix_of(adapters, tokens)
    slots, weights = np.zeros(tokens * mix, np.int32), np.zeros(tokens * mix, np.int32)
    pack_adapters(adapters, mix, slots, weights)
    return replace(case.step, adapters=case.pointer(slots), adapter_weights=case.pointer(weights), mix=mix)


@pytest.mark.parametrize(
    ("tokens", "k", "widths"), [(1, 256, [40]), (5, 100, [70, 8, 300]), (3, 64, [16] * 5), (2, 4232, [24])]
)
def test_terms_of_products(device: cuda.Session, tokens: int, k: int, widths: list[int]) -> None:
    """Ragged widths, ranks that are padded, rows of several adapters and of none, more products than a launch has."""
    case, table = plain_step(device, tokens), GpuAdapters(device, KEYS)
    given: list[Terms] = [
        {KEYS[i]: term(n, k, 3 + 5 * i) for i, n in enumerate(widths)},
        {KEYS[0]: term(widths[0], k, 20, np.float32)},
        {KEYS[0]: LowRank(None, floats(widths[0], k), 1.0, widths[0], k)},
    ]
    rows = [[*range(tokens)], [tokens - 1], [0]]
    host = [used(terms, own, [0.5 + i] * len(own)) for i, (terms, own) in enumerate(zip(given, rows, strict=True))]
    sent = [replace(one, adapter=table.place(one.adapter)) for one in host]
    x, ys = floats(tokens, k), [floats(tokens, n) for n in widths]
    step = adapted_step(case, sent, tokens)
    places = [case.rows(y, 3) for y in ys]
    targets = [Target(place, key) for place, key in zip(places, KEYS, strict=False)]
    table.add(case.launcher(), step, case.rows(x, 4), targets, tokens, False)
    found = [read(device, place, tokens) for place in places]
    case.host.adapters = host
    reference.low_rank(case.host, x, *ys, products=KEYS[: len(widths)], logits_only=False)
    for got, expected in zip(found, ys, strict=True):
        assert np.allclose(got, expected, rtol=2e-3, atol=2e-3 * float(np.abs(expected).max()))


@pytest.mark.parametrize("k", [100, 264])
def test_terms_of_normed_rows(device: cuda.Session, k: int) -> None:
    case, table = plain_step(device, 3), GpuAdapters(device, KEYS)
    host = [used({KEYS[0]: term(24, k, 7)}, [0, 2], [1, 0.5])]
    sent = [replace(one, adapter=table.place(one.adapter)) for one in host]
    x, weight, y = 3 * floats(3, k), floats(k), floats(3, 24)
    place, step = case.rows(y, 0), adapted_step(case, sent, 3)
    norm = case.pointer(weight), 1e-5
    table.add(case.launcher(), step, case.rows(x, 0), [Target(place, KEYS[0])], 3, False, norm)
    normed = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5) * weight
    case.host.adapters = host
    reference.low_rank(case.host, normed, y, products=KEYS[:1], logits_only=False)
    assert np.allclose(read(device, place, 3), y, rtol=2e-3, atol=2e-3 * float(np.abs(y).max()))


def read(device: cuda.Session, rows: Rows, tokens: int) -> Floats:
    out = np.empty((tokens - 1) * rows.stride + rows.width, np.float32)
    device.download(rows.pointer, out)
    return np.stack([out[i * rows.stride : i * rows.stride + rows.width] for i in range(tokens)])


def test_terms_of_a_table(device: cuda.Session) -> None:
    case, table, n = plain_step(device, 4), GpuAdapters(device, KEYS), 50
    host = [
        used({KEYS[-1]: term(n, 40, 5, table=True)}, [0, 1, 3], [1, 2, 1]),
        used({KEYS[-1]: LowRank(floats(40, n), None, 1.0, n, 40)}, [3], [1]),
    ]
    sent = [replace(one, adapter=table.place(one.adapter)) for one in host]
    y = floats(4, n)
    place = case.rows(y, 1)
    table.add_rows(case.launcher(), adapted_step(case, sent, 4), Target(place, KEYS[-1]), 4, 40)
    case.host.adapters = host
    reference.low_rank_rows(case.host, y, product=KEYS[-1])
    assert np.allclose(read(device, place, 4), y, rtol=2e-3, atol=2e-3)


def test_slots_are_used_again(device: cuda.Session) -> None:
    table = GpuAdapters(device, KEYS)
    first = table.place({KEYS[0]: term(8, 8, 2)})
    slot = first.slot
    del first
    again = table.place({KEYS[1]: term(8, 8, 2)})
    assert again.slot == slot


def test_a_row_has_a_few_adapters_at_most() -> None:
    rows = [used(None, [0, 1], [1, 1])] * 3
    assert (mix_of([], 2), mix_of(rows[:1], 2), mix_of(rows, 2)) == (0, 1, 4)
    with pytest.raises(RequestError, match="may use up to 4 adapters at once, not 6"):
        mix_of(rows * 2, 2)


def random_terms(loaded: Loaded, seed: int) -> Terms:
    """Terms of all products of a model, by the keys of its graph."""
    random = np.random.default_rng(seed)
    graph = loaded.executor.graph  # type: ignore[attr-defined]
    terms: dict[ProductKey, LowRank] = {}
    for node in graph.nodes:
        if node.operation not in ("linear", "embed"):
            continue
        is_table = node.operation == "embed"
        w = node.attributes["table" if is_table else "w"]
        (n, k), r = w.shape[::-1] if is_table else w.shape, 5
        a = random.standard_normal((k, r) if is_table else (r, k), np.float32) / np.float32(np.sqrt(k))
        terms[node.operation, id(w)] = LowRank(a, 0.3 * random.standard_normal((n, r), np.float32), 1.0, n, k)
    return terms


def results(loaded: Loaded) -> tuple[Floats, list[int]]:
    """Logits of prompts with two adapters, with one, and without; and tokens that steps of decoding sample."""
    one, two = (LoadedAdapter(str(i), str(i), loaded.executor.place_adapter(random_terms(loaded, i))) for i in range(2))
    mixes = [AdapterMix(((one, 1.0), (two, -0.5))), AdapterMix(((two, 1.0),)), None]
    sequences = [loaded.cache.new() for _ in mixes]
    rows = [
        Row(sequence, [3 + i, 7, 11, 2], 4, adapter=mix)
        for i, (sequence, mix) in enumerate(zip(sequences, mixes, strict=True))
    ]
    logits = loaded.forward(rows).copy()
    sampled = []
    tokens = [5, 6, 7]
    for _ in range(4):  # the first is launched, the second captured, the others are replayed
        rows = [
            Row(sequence, [token], 1, [Sample(SamplingParams(temperature=0), 0.0)], adapter=mix)
            for sequence, token, mix in zip(sequences, tokens, mixes, strict=True)
        ]
        found: list[Any] = loaded.executor.launch(make_batch(loaded.cache, rows)).fetch()
        for sequence, token in zip(sequences, tokens, strict=True):
            loaded.cache.commit(sequence, [token])
        tokens = [result.tokens[0] for result in found]
        sampled += tokens
    return logits, sampled


@pytest.mark.parametrize("invariant", [False, True], ids=["", "invariant"])
def test_models(tmp_path: Path, invariant: bool) -> None:
    path = write_llama(tmp_path / "model.gguf", layers=2, format="q8_0")
    expected, tokens = results(load(open_model(path), device="cpu", exact=True, max_seqs=4))
    small: dict[str, Any] = {"device": "cuda", "max_batched_tokens": 64, "max_seqs": 4, "cache_bytes": 1 << 20}
    logits, got = results(load(open_model(path), batch_invariant=invariant, **small))
    assert np.linalg.norm(logits - expected) / np.linalg.norm(expected) < 0.03
    assert sum(a == b for a, b in zip(got, tokens, strict=True)) >= len(tokens) - 2


def test_layers_on_both_devices(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "model.gguf", layers=3, format="q8_0")
    loaded = load(open_model(path), device="cuda", gpu_layers=1, max_batched_tokens=64, max_seqs=4, cache_bytes=1 << 20)
    whole = load(open_model(path), device="cpu", exact=True, max_seqs=4)
    graphs = [one.graph for one in loaded.executor.executors]  # type: ignore[attr-defined]
    places = [i for i, graph in enumerate(graphs) for node in graph.nodes if node.operation in ("linear", "embed")]
    assert len(set(places)) == 2
    terms = list(random_terms(whole, 0).values())
    keys = [
        (node.operation, id(node.attributes["table" if node.operation == "embed" else "w"]))
        for graph in graphs for node in graph.nodes if node.operation in ("linear", "embed")
    ]  # fmt: skip
    both = [dict(zip(keys, terms, strict=True)), random_terms(whole, 0)]
    out = []
    for one, given in zip((loaded, whole), both, strict=True):
        mix = AdapterMix(((LoadedAdapter("a", "a", one.executor.place_adapter(given)), 1.0),))
        out.append(one.forward([Row(one.cache.new(), [3, 7, 11, 2], 2, adapter=mix)]).copy())
    assert np.linalg.norm(out[0] - out[1]) / np.linalg.norm(out[1]) < 0.03
