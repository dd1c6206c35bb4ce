"""Runners: a model with its cache. `CpuRunner` runs a native plan; `NumpyRunner` runs the model's own code, slowly."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from ..arrays import Room
from ..cache.backend import Backend
from ..cache.kv import Batch, KVCache
from ..cache.layout import Layout, kv_format
from ..errors import FewbitError
from ..files.gguf import GGUF
from ..models import Model, load_model
from ..models.checkpoint import Prepare
from ..ops import cpu
from ..ops.arguments import chosen_activations
from ..ops.numpy import NumpyOps
from ..ops.plan import record
from ..tensor import QuantTensor
from .contract import Chunk

MOST_TOKENS = 512  # in one call
USUAL_CTX = 8192  # tokens of a sequence unless more are asked for
SEQUENCES = 8  # full ones that the cache has room for, as far as memory goes

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
KvFormats = str | tuple[str, str]  # of K and V


class CpuRunner:
    """A model on the CPU: one native call a step."""

    def __init__(
        self, model: Model, cache: KVCache, ctx: int, activations: str | None = None, threads: int | None = None
    ) -> None:
        self.model, self.cache, self.ctx = model, cache, ctx
        self.vocab = model.config.vocab
        self.activations = chosen_activations(activations)
        self.threads = cpu.checked_threads(threads)
        self.most_tokens = self.most_wanted = MOST_TOKENS
        self.plan = record(model.forward, cache)
        self._logits = np.empty((self.most_wanted, self.vocab), np.float32)

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that a step reads: all but the table of embeddings, of which it reads some rows."""
        return self.model.weight_bytes

    def forward(self, chunks: Sequence[Chunk]) -> Floats:
        """Run the model and commit the tokens: logits (wanted rows, vocab), valid until the next call."""
        if len(chunks) == 1 and len(chunks[0].tokens) == 1:
            done = self._step(chunks[0])
            if done is not None:
                return done
        tokens, wanted = _flat(chunks, self.most_tokens, self.most_wanted)
        out = self._logits[: len(wanted)]
        ids = _extend(self.cache, chunks)
        try:
            b = self.cache.batch(ids)
            self._run(tokens, b, wanted, out)
        except BaseException:
            _retract(self.cache, chunks)
            raise
        _commit(self.cache, chunks, b)
        return out

    def _step(self, chunk: Chunk) -> Floats | None:
        """The usual step of one sequence, with as little Python as can be. None: it is not the usual one."""
        batch = self.cache.step(chunk.sequence)
        if batch is None:
            return None
        wanted = _ZERO[: chunk.wanted]
        out = self._logits[: len(wanted)]
        try:
            self._run(np.array(chunk.tokens, np.int32), batch, wanted, out)
        except BaseException:
            _retract(self.cache, (chunk,))
            raise
        self.cache.settle(chunk.sequence, batch, chunk.tokens[0])
        return out

    def _run(self, tokens: Ints, b: Batch, wanted: Ints, out: Floats) -> None:
        try:
            self.plan.run(
                tokens, b.tables, b.table_starts, b.lengths, b.q_starts, wanted, out, self.activations, self.threads
            )
        except ValueError as error:
            raise FewbitError(str(error)) from None


class NumpyRunner:
    """The same with NumPy: what `CpuRunner` is compared with. Weights are decoded once and kept."""

    def __init__(self, model: Model, cache: KVCache, ctx: int) -> None:
        self.model, self.cache, self.ctx = model, cache, ctx
        self.vocab = model.config.vocab
        self.most_tokens = self.most_wanted = MOST_TOKENS
        self._decoded: dict[int, tuple[QuantTensor, Floats]] = {}

    def forward(self, chunks: Sequence[Chunk]) -> Floats:
        tokens, wanted = _flat(chunks, self.most_tokens, self.most_wanted)
        ids = _extend(self.cache, chunks)
        try:
            b = self.cache.batch(ids)
            counts = np.diff(b.q_starts)
            positions = np.concatenate([np.arange(n - c, n) for n, c in zip(b.lengths, counts, strict=True)])
            ops = NumpyOps(
                tokens, positions.astype(np.int32), wanted, self.cache, ids, self.model.config.dim, self._weights
            )
            out = np.asarray(self.model.forward(ops), np.float32)
        except BaseException:
            _retract(self.cache, chunks)
            raise
        _commit(self.cache, chunks, b)
        return out

    def _weights(self, w: QuantTensor) -> Floats:
        if id(w) not in self._decoded:
            self._decoded[id(w)] = w, w.dequantize()
        return self._decoded[id(w)][1]


def _flat(chunks: Sequence[Chunk], most_tokens: int, most_wanted: int) -> tuple[Ints, Ints]:
    """Tokens, and which of them logits are wanted of."""
    tokens = np.fromiter(chain.from_iterable(chunk.tokens for chunk in chunks), np.int32)
    rows: list[int] = []
    end = 0
    for chunk in chunks:
        end += len(chunk.tokens)
        rows.extend(range(end - chunk.wanted, end))
    if len(tokens) > most_tokens or len(rows) > most_wanted:
        asked = f"{len(tokens)} and {len(rows)}"
        raise FewbitError(f"a step takes {most_tokens} tokens and gives {most_wanted} rows of logits, not {asked}")
    return tokens, np.array(rows, np.int32)


_ZERO = np.zeros(1, np.int32)


def _extend(cache: KVCache, chunks: Sequence[Chunk]) -> list[int]:
    """Room for all chunks, or an error and everything as it was."""
    done = 0
    try:
        for chunk in chunks:
            cache.extend(chunk.sequence, len(chunk.tokens))
            done += 1
    except BaseException:
        _retract(cache, chunks[:done])
        raise
    return [chunk.sequence for chunk in chunks]


def _retract(cache: KVCache, chunks: Sequence[Chunk]) -> None:
    for chunk in chunks:
        cache.truncate(chunk.sequence, cache.length(chunk.sequence) - len(chunk.tokens))


def _commit(cache: KVCache, chunks: Sequence[Chunk], batch: Batch) -> None:
    cache.wrote(batch)
    for chunk in chunks:
        cache.commit(chunk.sequence, chunk.tokens)


def load(
    gguf: GGUF,
    *,
    device: str = "cpu",
    kv: KvFormats = "f16",
    ctx: int | None = None,
    exact: bool = False,
    threads: int | None = None,
    repack: bool | None = None,
    activations: str | None = None,
) -> CpuRunner | NumpyRunner:
    """The model of a file on a device: "cpu", or "numpy", the slow reference.

    `kv` names the format of K and V, or one of each; `ctx` is the longest sequence, in tokens, 8192 unless the model
    was made for fewer; `activations` says how products take them, see `fewbit.linear`, and `exact` is short for
    "exact"; logits are made with 16 bits at least. `repack` says whether weights are laid out anew, see
    `fewbit.repack`: if not given, where it makes them faster and memory is large enough to hold them.
    """
    if device not in ("cpu", "numpy"):
        raise FewbitError(f"there is no device {device!r}; there are: cpu, numpy")
    if device == "numpy" and repack:
        raise FewbitError("device 'numpy' reads weights as they are; leave repack out")
    how = chosen_activations(activations, exact)
    if device == "numpy" and how not in (None, "exact"):
        raise FewbitError("device 'numpy' takes activations as they are; leave activations out")
    model = load_model(gguf, preparation(gguf, device, how, threads, repack))
    longest = checked_ctx(ctx, model)
    if device == "numpy":
        if threads is not None:
            raise FewbitError("device 'numpy' has no threads to set; leave threads out")
        from ..ops import attention

        return NumpyRunner(model, make_cache(model, kv, longest, attention), longest)
    return CpuRunner(model, make_cache(model, kv, longest), longest, how, threads)


def preparation(
    gguf: GGUF,
    device: str = "cpu",
    activations: str | None = None,
    threads: int | None = None,
    repack: bool | None = None,
) -> Prepare | None:
    """What is done with the weights of a model when it is loaded. Exact products read rows as they are in the file."""
    if repack is None:
        repack = device == "cpu" and activations != "exact" and gguf.file_bytes <= machine_memory() * 3 // 4
    if not repack:
        return None
    room = Room(gguf.file_bytes + 64 * len(gguf.infos))
    return lambda w: cpu.repack(w, threads, room)


def checked_ctx(ctx: int | None, model: Model) -> int:
    made_for = model.config.ctx
    if ctx is None:
        return min(made_for, USUAL_CTX)
    if isinstance(ctx, bool) or not isinstance(ctx, int) or not 1 <= ctx <= made_for:
        raise FewbitError(f"ctx is a number of tokens from 1 to {made_for}, which the model was made for, not {ctx!r}")
    return ctx


def make_cache(model: Model, kv: KvFormats, ctx: int, backend: Backend | None = None) -> KVCache:
    """A cache for some sequences of `ctx` tokens, in at most a quarter of the memory; for one at least."""
    k, v = (kv, kv) if isinstance(kv, str) else kv
    c = model.config
    layout = Layout(c.layers, c.kv_heads, c.dim, kv_format(k, "k"), kv_format(v, "v"), rotate=False)
    room = machine_memory() // 4 // (ctx * layout.token_bytes)
    tokens = ctx * min(max(room, 1), SEQUENCES)
    return KVCache(c.layers, c.kv_heads, c.dim, tokens=tokens, k=k, v=v, backend=backend)


def machine_memory() -> int:
    """Bytes of memory that the machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
