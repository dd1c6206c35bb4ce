"""A pretended model that drives a KV cache by hand."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from fewbit.arrays import Bytes, Floats
from fewbit.cache.kv import KVCache
from fewbit.ops import attention, cpu

from ..exact_attention import error, exact

KERNELS = [attention, cpu]
LAYERS, KV_HEADS, Q_HEADS, DIM = 2, 2, 6, 64


def arrays(cache: KVCache) -> list[Bytes]:
    """K and V of all layers."""
    return [array for layer in range(len(cache.layout.specs)) for array in cache.store.kv(layer)[1::2]]


class Model:
    """K, V and q that follow from a token, its position and the layer, as if there were a model."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.texts: dict[int, list[int]] = {}

    def begin(self, prompt: list[int] | None = None) -> int:
        sequence = self.cache.new(prompt or [])
        self.texts[sequence] = (prompt or [])[: self.cache.length(sequence)]
        return sequence

    def step(self, work: dict[int, list[int]], commit: bool = True, **options: Any) -> list[Floats]:
        """Tokens for each sequence, all in one batch; the outputs of each layer."""
        step = self.cache.reserve([(sequence, len(tokens)) for sequence, tokens in work.items()])
        for sequence, tokens in work.items():
            self.texts[sequence] += tokens
        outputs = []
        for layer in range(len(self.cache.layout.specs)):
            of = [(self.texts[s], len(tokens)) for s, tokens in work.items()]
            k, v, q = (np.concatenate([self.make(layer, what, *one) for one in of]) for what in range(3))
            self.cache.append(layer, step, k, v)
            outputs.append(self.cache.attend(layer, step, q, **options))
        if commit:
            for sequence, tokens in work.items():
                self.cache.commit(sequence, tokens)
        return outputs

    def make(self, layer: int, what: int, text: list[int], last: int) -> Floats:
        """K, V or q (0, 1 or 2) of the last tokens of a text."""
        spec = self.cache.layout.attention(layer)
        heads = Q_HEADS if what == 2 else spec.kv_heads
        dim = spec.v_dim if what == 1 else spec.k_dim
        rows = [
            np.random.default_rng((layer, what, position, text[position])).standard_normal((heads, dim), np.float32)
            for position in range(len(text) - last, len(text))
        ]
        return np.array(rows, np.float32).reshape(last, heads, dim)

    def wanted(self, layer: int, sequence: int, rows: int, **options: Any) -> npt.NDArray[np.float64]:
        text = self.texts[sequence]
        k, v = (self.make(layer, what, text, len(text)) for what in (0, 1))
        spec = self.cache.layout.attention(layer)
        options = {"scale": spec.k_dim**-0.5, "window": spec.window} | options
        return exact(self.make(layer, 2, text, rows), k, v, **options)

    def fork(self, sequence: int) -> int:
        child = self.cache.fork(sequence)
        self.texts[child] = self.texts[sequence][:]
        return child

    def check(self, sequence: int) -> None:
        """Read a sequence without changing it: a fork asks with one more token."""
        probe = self.fork(sequence)
        for layer, y in enumerate(self.step({probe: [1]}, commit=False)):
            assert error(y, self.wanted(layer, probe, 1)) <= 2e-6
        self.cache.free(probe)


def make_model(kernels: ModuleType, **options: Any) -> Model:
    same = {} if "specs" in options else {"layers": LAYERS, "kv_heads": KV_HEADS, "dim": DIM}
    options = same | {"pages": 64, "page_tokens": 8, "k": "f32"} | options
    return Model(KVCache(kernels=kernels, **options))


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 1000, count).tolist()
