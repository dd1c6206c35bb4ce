"""From a model file to what an engine runs: the layout of weights, the length of sequences, the size of the cache."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from . import devices
from .arrays import Floats
from .cache.cache import Cache
from .cache.groups import pages_by_group
from .cache.layout import Layout, make_layout
from .devices import Device, DeviceOptions
from .devices.batch import Chunk, Executor
from .devices.forward import forward
from .errors import FewbitError
from .files.model import ModelFile
from .models import LoadedModel, load_model
from .ops.validation import chosen_activations

DEFAULT_CTX = 8192  # tokens of a sequence unless more are asked for
FULL_SEQUENCES = 8  # that the cache has room for, as far as memory goes

KvFormats = str | tuple[str, str]  # of K and V


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A model on a device, ready to run."""

    executor: Executor
    cache: Cache
    ctx: int  # the longest sequence, in tokens
    step_bytes: int = 0  # of weights that a step reads

    def forward(self, chunks: Sequence[Chunk], output: str = "logits") -> Floats:
        """A step without an engine: see `fewbit.devices.forward`."""
        return forward(self.executor, self.cache, chunks, output)


def load(
    file: ModelFile,
    *,
    device: str = "cpu",
    kv: KvFormats = "f16",
    ctx: int | None = None,
    exact: bool = False,
    threads: int | None = None,
    repack: bool | None = None,
    activations: str | None = None,
) -> Loaded:
    """The model of a file on a device, by name; see `fewbit.devices`.

    `kv` names the format of K and V, or one of each; `ctx` is the longest sequence, in tokens, 8192 unless the model
    was made for fewer; `activations` says how products take them, see `fewbit.linear`, and `exact` is short for
    "exact"; logits are made with 16 bits at least. `repack` says whether weights are laid out anew, see
    `fewbit.repack`: if not given, where it makes them faster and memory is large enough to hold them.
    """
    of = devices.get(device, DeviceOptions(threads, chosen_activations(activations, exact)))
    model = load_weights(file, of, repack)
    return place(model, of, kv, check_ctx(ctx, model.config.ctx))


def load_weights(file: ModelFile, device: Device, repack: bool | None = None) -> LoadedModel:
    """The model of a file, with its weights in the layout that the device reads."""
    layout = choose_layout(device, file.file_bytes, repack)
    return load_model(file, device.pack(layout, file.file_bytes + 64 * len(file.tensors)))


def place(model: LoadedModel, device: Device, kv: KvFormats, ctx: int, tokens: int | None = None) -> Loaded:
    """A model on a device, beside a cache for so many tokens, or for as many as memory allows."""
    k, v = (kv, kv) if isinstance(kv, str) else kv
    layout = make_layout(model.graph.specs, k, v)
    pages = pages_by_group(layout.groups, layout.page_tokens, tokens=tokens or cache_tokens(layout, ctx))
    cache = Cache(device.make_store(layout, pages))
    return Loaded(device.make_executor(model.graph, cache.store, model.config.vocab), cache, ctx, model.step_bytes)


def choose_layout(device: Device, file_bytes: int, repack: bool | None) -> str:
    """The layout of weights: the device's own unless that is not wanted, or memory is short."""
    if repack is None:
        return device.layout if file_bytes <= machine_memory() * 3 // 4 else "rows"
    if repack and device.layouts == ("rows",):
        raise FewbitError(f"device {device.name!r} reads weights as they are; leave repack out")
    return device.layouts[0] if repack else "rows"


def check_ctx(ctx: int | None, made_for: int) -> int:
    if ctx is None:
        return min(made_for, DEFAULT_CTX)
    if isinstance(ctx, bool) or not isinstance(ctx, int) or not 1 <= ctx <= made_for:
        raise FewbitError(f"ctx is a number of tokens from 1 to {made_for}, which the model was made for, not {ctx!r}")
    return ctx


def cache_tokens(layout: Layout, ctx: int) -> int:
    """Tokens of some sequences of `ctx` tokens, in at most a quarter of the memory; of one at least."""
    fit = machine_memory() // 4 // max(1, ctx * layout.token_bytes)
    return ctx * min(max(fit, 1), FULL_SEQUENCES)


def machine_memory() -> int:
    """Bytes of memory that the machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
