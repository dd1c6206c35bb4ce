"""From a model file to what an engine runs: the layout of weights, the length of sequences, the size of the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from json import dumps
from typing import Any

from . import devices
from .arrays import Floats
from .cache.cache import Cache
from .cache.groups import MAX_SEQS, pages_by_group
from .cache.layout import make_layout
from .devices import MAX_BATCHED_TOKENS, Device, DeviceOptions
from .devices.batch import Chunk, Executor
from .devices.fitting import Needs, cache_tokens
from .devices.forward import forward
from .errors import DtypeError, FormatError, OutOfMemory, RequestError
from .files.model import ModelFile
from .models import LoadedModel, load_model
from .ops.memory import Shortage, address_space, available_memory
from .ops.validation import chosen_activations
from .validation import to_flag, to_size

DEFAULT_CTX = 8192  # tokens of a sequence unless more are asked for
RESERVE_BYTES = 64 << 20  # for what is not counted: threads, tables, Python
MAX_LOGITS = 128  # rows of logits that a step usually gives at most
SAMPLE_BYTES = 1024  # of each tensor, for its model's fingerprint

KvFormats = str | tuple[str, str]  # of K and V


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A model on a device, ready to run."""

    executor: Executor
    cache: Cache
    ctx: int  # the longest sequence, in tokens
    step_bytes: int = 0  # of weights that a step reads
    max_seqs: int = MAX_SEQS  # that run in one step

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
    cache_bytes: int | None = None,
    max_seqs: int | None = None,
    max_batched_tokens: int | None = None,
) -> Loaded:
    """The model of a file on a device, by name; see `fewbit.devices`.

    `kv` names the format of K and V, or one of each: "q8_0/q4_0" or a pair; `ctx` is the longest sequence, in tokens,
    8192 unless the model was made for fewer; `activations` says how products take them, see `fewbit.linear`, and
    `exact` is short for "exact"; logits are made with 16 bits at least. `repack` says whether weights are laid out
    anew, see `fewbit.repack`: if not given, where it makes them faster and memory is large enough to hold them.

    `cache_bytes` is the size of the KV cache: if not given, for up to 8 sequences of `ctx` tokens in at most a quarter
    of the memory that is available, and for one in any case. A step runs up to `max_seqs` sequences (64) and
    `max_batched_tokens` tokens (512). What does not fit into memory is refused.
    """
    k, v = kv_formats(kv)
    step_tokens = _count(max_batched_tokens, "max_batched_tokens", MAX_BATCHED_TOKENS)
    chosen = chosen_activations(activations, to_flag(exact, "exact"))
    of = devices.get(device, DeviceOptions(threads, chosen, step_tokens))
    model = load_model(file)  # its weights stay in the file for now
    ctx = check_ctx(ctx, model.config.ctx)
    layout = choose_layout(of, file.file_bytes, repack)
    seqs = _count(max_seqs, "max_seqs", MAX_SEQS)
    needs = Needs(
        name=file.path.name,
        layout=make_layout(model.graph.specs, k, v),
        memory_bytes=_memory(file.file_bytes, layout),
        weight_bytes=file.file_bytes,
        step_bytes=_step_bytes(model, step_tokens),
        max_seqs=seqs,
        step_tokens=step_tokens,
    )
    size = None if cache_bytes is None else to_size(cache_bytes, "cache_bytes", least=1, error=RequestError)
    pages = needs.pages(cache_tokens(needs, ctx, size))
    fingerprint = model_fingerprint(file)
    if layout != "rows":
        model = _pack(file, of, layout)
    cache = Cache(of.make_store(needs.layout, pages), fingerprint, Shortage())
    executor = of.make_executor(model.graph, cache.store, model.config.vocab)
    return Loaded(executor, cache, ctx, model.step_bytes, seqs)


def load_weights(file: ModelFile, device: Device, repack: bool | None = None) -> LoadedModel:
    """The model of a file, with its weights in the layout that the device reads."""
    return _pack(file, device, choose_layout(device, file.file_bytes, repack))


def place(model: LoadedModel, device: Device, kv: KvFormats, ctx: int, tokens: int) -> Loaded:
    """A model on a device, beside a cache for so many tokens."""
    layout = make_layout(model.graph.specs, *kv_formats(kv))
    cache = Cache(device.make_store(layout, pages_by_group(layout.groups, layout.page_tokens, tokens=tokens)))
    return Loaded(device.make_executor(model.graph, cache.store, model.config.vocab), cache, ctx, model.step_bytes)


def choose_layout(device: Device, file_bytes: int, repack: bool | None) -> str:
    """The layout of weights: the device's own unless that is not wanted, or memory is short."""
    if repack is None:
        return device.layout if file_bytes <= _memory(file_bytes, device.layout) * 3 // 4 else "rows"
    if not to_flag(repack, "repack"):
        return "rows"
    if device.layouts == ("rows",):
        raise RequestError(f"device {device.name!r} reads weights as they are; leave repack out")
    return device.layouts[0]


def kv_formats(kv: Any) -> tuple[str, str]:
    """The formats of K and V.

    >>> kv_formats("f16"), kv_formats("q8_0/q4_0"), kv_formats(("q8_0", "f16"))
    (('f16', 'f16'), ('q8_0', 'q4_0'), ('q8_0', 'f16'))
    """
    parts = kv.split("/") if isinstance(kv, str) else kv
    if not isinstance(parts, tuple | list):
        raise DtypeError(f'kv is a format like "q8_0", or two like "q8_0/q4_0", not {kv!r}')
    if not 1 <= len(parts) <= 2 or (len(parts) == 1 and not isinstance(kv, str)):
        raise FormatError(f'kv is a format like "q8_0", or two like "q8_0/q4_0", not {kv!r}')
    return parts[0], parts[-1]


def check_ctx(ctx: int | None, made_for: int) -> int:
    if ctx is None:
        return min(made_for, DEFAULT_CTX)
    if isinstance(ctx, bool) or not hasattr(ctx, "__index__"):
        raise DtypeError(f"ctx is a number of tokens, not {ctx!r}")
    if not 1 <= ctx <= made_for:
        raise RequestError(f"ctx is a number of tokens from 1 to {made_for}, which the model was made for, not {ctx!r}")
    return int(ctx)


def model_fingerprint(file: ModelFile) -> str:
    """A short text that is the same for the same model, and another one for any other: from all that its file says of
    its architecture and tensors, and some bytes of each."""
    digest = blake2b(digest_size=16)
    config = {key: value for key, value in file.config.items() if isinstance(value, int | float | str)}
    digest.update(dumps([file.architecture, config], sort_keys=True).encode())
    for name in sorted(file.tensors):
        tensor = file.tensors[name]
        data, middle = tensor.stored.reshape(-1), tensor.nbytes // 2
        digest.update(dumps([name, tensor.format.name, tensor.shape]).encode())
        digest.update(data[:SAMPLE_BYTES].tobytes() + data[middle : middle + SAMPLE_BYTES].tobytes())
    return digest.hexdigest()


def _pack(file: ModelFile, device: Device, layout: str) -> LoadedModel:
    try:
        return load_model(file, device.pack(layout, file.file_bytes + 64 * len(file.tensors)))
    except MemoryError as error:
        raise OutOfMemory(f"{file.path.name}: no memory to lay the weights out anew; try repack=False") from error


def _memory(file_bytes: int, layout: str) -> int:
    """Bytes that are there for a model: the file is in the address space already, a copy of it is not."""
    return min(available_memory(), address_space() + (file_bytes if layout == "rows" else 0))


def _step_bytes(model: LoadedModel, tokens: int) -> int:
    """Bytes of a step's rows, about: activations of some operations, and logits."""
    of = model.config
    widths = 4 * of.hidden + 4 * of.feed_forward + 2 * of.heads * (of.k_dim + of.v_dim)
    return RESERVE_BYTES + 4 * (tokens * widths + min(tokens, MAX_LOGITS) * of.vocab)


def _count(value: int | None, what: str, usual: int) -> int:
    return usual if value is None else to_size(value, what, least=1, error=RequestError)
