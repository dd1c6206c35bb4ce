"""The KV cache for direct use: K, V and q are given layer by layer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from ..arrays import Floats
from ..errors import DtypeError, PositionError, ShapeError
from ..formats import Format
from ..ops.specs import AttentionParams, AttentionSpec, LayerSpec
from ..validation import check_type, refuse_pickle, to_integer, to_size
from .attention import attend, default_params, write_kv
from .cache import Cache, to_requests
from .disk import DiskCache
from .groups import MAX_SEQS, PAGE_TOKENS, SNAPSHOTS, pages_by_group
from .kernels import Kernels, native
from .layout import make_layout
from .store import HostStore
from .view import View


class KVCache(Cache):
    """K and V of many sequences, in pages that sequences with the same prefix share.

    `new` returns the number of a sequence. Each step reserves room for new tokens, writes and reads them layer by
    layer, and commits their ids at the end, so that later sequences with the same prefix share them:

    >>> import numpy as np
    >>> from fewbit.ops import attention
    >>> cache = KVCache(layers=1, kv_heads=2, dim=64, tokens=1024, k="q8_0", kernels=attention)
    >>> prompt = list(range(40))
    >>> a = cache.new(prompt)
    >>> step = cache.reserve([(a, 40 - cache.length(a))])
    >>> for layer in range(1):
    ...     k = v = np.ones((40, 2, 64), np.float32)
    ...     cache.append(layer, step, k, v)
    ...     y = cache.attend(layer, step, np.ones((40, 8, 64), np.float32))
    >>> cache.commit(a, prompt)
    >>> b = cache.new(prompt)
    >>> cache.length(b), cache.stats().used  # b shares the first page, 32 tokens
    (32, 2)

    A call that raises an error changes nothing. A cache may be used by one thread at a time.

    Args:
        layers: Number of layers, all with the same sizes. Give these or `specs`.
        kv_heads: KV heads of a layer.
        dim: Values of a head of K, and of V unless `v_dim` is given.
        specs: What each layer keeps, where layers differ.
        tokens: Capacity in tokens. Give this or `pages`. Memory is committed when it is first written.
        pages: Capacity in pages.
        k: Format of K: one of at most 32 bits, or one with blocks of 32 values.
        v: Format of V. Defaults to that of K.
        v_dim: Values of a head of V.
        window: Tokens that are kept, the latest ones. 0 keeps all.
        rotate: Apply a Hadamard transform to K and q, which spreads outlier channels over a block. Defaults to True
            where K has fewer than 8 bits.
        page_tokens: Tokens of a page.
        max_seqs: Sequences at a time, for the pages of layers with a window.
        snapshots: Saved states of recurrent layers.
        kernels: Module with `kv_write`, `attend` and `keeps_tiles`. Defaults to the native CPU code.
        disk: Where evicted pages of long prompts go; `fetch` brings them back.
    """

    store: HostStore

    def __init__(
        self,
        layers: int = 0,
        kv_heads: int = 0,
        dim: int = 0,
        *,
        specs: Sequence[LayerSpec] | None = None,
        tokens: int | None = None,
        pages: int | None = None,
        k: str | Format = "f16",
        v: str | Format | None = None,
        v_dim: int | None = None,
        window: int = 0,
        rotate: bool | None = None,
        page_tokens: int = PAGE_TOKENS,
        max_seqs: int = MAX_SEQS,
        snapshots: int = SNAPSHOTS,
        kernels: Kernels | None = None,
        disk: DiskCache | None = None,
    ) -> None:
        if specs is None:
            spec = AttentionSpec(kv_heads, dim, dim if v_dim is None else v_dim, window)
            specs = [spec] * to_size(layers, "layers", least=1)
        elif layers or kv_heads or dim or v_dim or window:
            raise ShapeError("give either `specs`, or layers, kv_heads, dim, v_dim and window")
        layout = make_layout(specs, k, v, rotate, page_tokens)
        sizes = pages_by_group(
            layout.groups, layout.page_tokens, tokens=tokens, pages=pages, max_seqs=max_seqs, snapshots=snapshots
        )
        chosen = native() if kernels is None else kernels
        if not hasattr(chosen, "keeps_tiles"):
            raise DtypeError(f"kernels must have kv_write, attend and keeps_tiles; {type(chosen).__name__} has not")

        def keeps_tiles(spec: AttentionSpec) -> bool:
            return chosen.keeps_tiles(layout.k, layout.v, layout.page_tokens, spec.k_dim, spec.v_dim)

        super().__init__(HostStore(layout, sizes, keeps_tiles), disk=disk)
        self._kernels = chosen
        self._attention = frozenset(n for n, spec in enumerate(layout.specs) if isinstance(spec, AttentionSpec))
        self._missing: dict[int, tuple[View, set[int]]] = {}  # sequence -> its step, layers without K and V of it

    def __repr__(self) -> str:
        layout = self.layout
        pages = ", ".join(map(str, self.totals))
        size = f"{len(layout.specs)} layers, {pages} pages of {self.page_tokens}"
        return f"KVCache({size}, k={layout.k}, v={layout.v}, rotate={layout.rotate})"

    def __reduce__(self) -> NoReturn:
        refuse_pickle("a KVCache", "save its sequences to files, and load them into a cache of the other process")

    def reserve(self, requests: Iterable[tuple[int, int]]) -> View:
        requests = to_requests(requests)
        for sequence, _ in requests:
            self._refuse_missing(sequence)
        step = super().reserve(requests)
        missing = set(self._attention)
        self._missing.update((sequence, (step, missing)) for sequence, count in requests if count)
        return step

    def append(self, layer: int, step: View, k: Any, v: Any, *, threads: int | None = None) -> None:
        """Pack and keep K and V of a layer for the new tokens of a step.

        Args:
            layer: Number of the layer.
            step: What `reserve` returned. Tokens are those of its sequences, one sequence after another.
            k: Array of (tokens, kv_heads, k_dim).
            v: Array of (tokens, kv_heads, v_dim).
            threads: Number of threads. Defaults to all usable cores.
        """
        layer = self._layer(layer)
        missing = self._current(step)
        if len(step.slots(self.store.group_of(layer))) and layer not in missing:
            raise PositionError(f"layer {layer} has K and V of these tokens already; `reserve` makes room for new ones")
        write_kv(self._kernels, self.store, step, layer, k, v, threads=threads)
        missing.discard(layer)

    def attend(
        self,
        layer: int,
        step: View,
        q: Any,
        *,
        scale: float | None = None,
        window: int | None = None,
        softcap: float = 0.0,
        sinks: Any = None,
        out: Floats | None = None,
        exact: bool = True,
        threads: int | None = None,
    ) -> Floats:
        """Causal attention of the new tokens of a step.

        Args:
            layer: Number of the layer. Its K and V were appended before.
            step: What `reserve` returned.
            q: Array of (tokens, q_heads, k_dim). NaN in q gives NaN in the result.
            scale: Factor of the scores. Defaults to 1 / sqrt(k_dim).
            window: Positions that a token sees, itself included; 0 for all. Defaults to what the layer keeps.
            softcap: If not 0, a score s becomes softcap * tanh(s / softcap).
            sinks: For each query head a logit without a value.
            out: Float32 array for the result. Allocated if not given.
            exact: False rounds to bf16 on machines with matrix tiles, where prompts then take about half the time.
                With packed K and V, q and the weights may be rounded to 16 bits in either case.
            threads: Number of threads. Defaults to all usable cores.

        Returns:
            Float32 array of (tokens, q_heads, v_dim).
        """
        layer = self._layer(layer)
        if layer in self._current(step):
            raise PositionError(f"layer {layer} has no K and V of the new tokens yet; `append` them first")
        usual = default_params(self.layout.attention(layer))
        params = AttentionParams(
            usual.scale if scale is None else scale, usual.window if window is None else window, softcap, sinks
        )
        return attend(self._kernels, self.store, step, layer, q, params, out=out, exact=exact, threads=threads)

    def commit(self, sequence: int, tokens: Iterable[int]) -> None:
        self._refuse_missing(sequence)
        super().commit(sequence, tokens)
        self._missing.pop(sequence, None)

    def fork(self, sequence: int, length: int | None = None) -> int:
        if length is None or to_integer(length, "a number of tokens") > self.committed(sequence):
            self._refuse_missing(sequence)
        return super().fork(sequence, length)

    def truncate(self, sequence: int, length: int) -> None:
        super().truncate(sequence, length)
        if sequence in self._missing and length <= self._before(sequence):
            del self._missing[sequence]

    def free(self, sequence: int) -> None:
        super().free(sequence)
        self._missing.pop(sequence, None)

    def save(self, sequence: int, path: str | os.PathLike[str], *, fingerprint: str | None = None) -> None:
        self._refuse_missing(sequence)
        super().save(sequence, path, fingerprint=fingerprint)

    def _layer(self, layer: int) -> int:
        number = to_integer(layer, "a layer")
        if not 0 <= number < len(self.layout.specs):
            raise PositionError(f"layer must be from 0 to {len(self.layout.specs) - 1}, got {number}")
        if number not in self._attention:
            raise PositionError(f"layer {number} keeps no K and V")
        return number

    def _current(self, step: View) -> set[int]:
        """The layers that have no K and V of a step yet."""
        check_type(step, View, "step")
        missing: set[int] = set()
        for sequence, length, before in zip(step.sequences, step.lengths.tolist(), step.before.tolist(), strict=True):
            if length == before:
                continue
            current, missing = self._missing.get(sequence, (None, missing))
            if current is not step or self.length(sequence) != length:
                raise PositionError(
                    f"this step is over: sequence {sequence} was committed, cut or freed; reserve again"
                )
        return missing

    def _before(self, sequence: int) -> int:
        """The length of a sequence before its step."""
        step, _ = self._missing[sequence]
        return int(step.before[step.sequences.index(sequence)])

    def _refuse_missing(self, sequence: int) -> None:
        step = self._missing.get(to_integer(sequence, "a sequence"))
        if step is not None and step[1]:
            layers, before = ", ".join(map(str, sorted(step[1]))), self._before(sequence)
            new = self.length(sequence) - before
            raise PositionError(
                f"sequence {sequence} has {new} new tokens without K and V in layers {layers}: "
                f"append them, or truncate it to {before}"
            )
