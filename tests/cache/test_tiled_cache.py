"""A cache whose pages hold K and V as matrix tiles want them, beside one that keeps rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fewbit.cache.kv import KVCache
from fewbit.ops import attention, cpu

from ..exact_attention import error
from .model import Model, make_model

pytestmark = pytest.mark.skipif("amx" not in cpu.isas(), reason="no matrix tiles: every cache keeps rows")

TEXT = list(range(150))


def is_tiled(cache: KVCache) -> bool:
    return cache.store.kv(0)[1].shape[2] != cache.page_tokens


def models(k: str, v: str) -> tuple[Model, Model]:
    """One that keeps tiles, and the reference."""
    ours, reference = (make_model(ops, k=k, v=v, page_tokens=32, pages=64, dim=128) for ops in (cpu, attention))
    assert is_tiled(ours.cache)
    assert not is_tiled(reference.cache)
    return ours, reference


@pytest.mark.parametrize(("k", "v"), [("q8_0", "q8_0"), ("q4_0", "q8_0"), ("q4_0", "iq4_nl")])
def test_prompts_chunks_forks_and_truncation(k: str, v: str) -> None:
    ours, reference = models(k, v)
    results = []
    for model in (ours, reference):
        a = model.begin()
        out = [model.step({a: TEXT[:70]}), model.step({a: TEXT[70:75]}), model.step({a: [1]})]
        forks = [model.fork(a) for _ in range(8)]
        for i, fork in enumerate(forks):  # each writes to the page that all hold
            out.append(model.step({fork: [100 + i]}))
        out.append(model.step({a: [5], forks[3]: TEXT[:40], forks[7]: [6]}))
        model.cache.truncate(forks[3], 72)
        model.texts[forks[3]] = model.texts[forks[3]][:72]
        out.append(model.step({forks[3]: [9]}))
        results.append(out)
    assert ours.cache.stats() == reference.cache.stats()
    for got, wanted in zip(*results, strict=True):
        for layer in range(len(got)):
            assert error(got[layer], wanted[layer]) <= 1e-4


def test_files_fit_caches_of_rows_and_of_tiles(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    k, v = rng.standard_normal((2, 2, 75, 2, 128), np.float32)
    q = rng.standard_normal((1, 6, 128), np.float32)
    path, contents, outputs = tmp_path / "a.kv", [], []
    cache, before = KVCache(2, 2, 128, tokens=256, k="q8_0", v="q4_0"), None
    a = cache.new()
    step = cache.reserve([(a, 75)])
    for layer in range(2):
        cache.append(layer, step, k[layer], v[layer])
    cache.commit(a, range(75))
    for page_tokens in (32, 8, 64, 32):
        if before is not None:
            cache = KVCache(2, 2, 128, tokens=256, k="q8_0", v="q4_0", page_tokens=page_tokens)
            a = cache.load(path)
        assert is_tiled(cache) == (page_tokens != 8)
        cache.save(a, path)
        contents.append(path.read_bytes())
        b = cache.fork(a)
        step = cache.reserve([(b, 1)])
        cache.append(1, step, k[1, :1], v[1, :1])
        outputs.append(cache.attend(1, step, q))
        before = cache
    assert len(set(contents)) == 1
    assert max(error(y, outputs[0]) for y in outputs) <= 1e-4
