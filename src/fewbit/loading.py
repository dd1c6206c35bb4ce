"""From a model file to what an engine runs: the layout of weights, the length of sequences, the size of the cache."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from json import dumps
from math import prod
from os import PathLike
from platform import machine
from typing import Any

from . import devices
from .arrays import Floats
from .cache.cache import Cache
from .cache.disk import MAX_BYTES, DiskCache
from .cache.groups import MAX_SEQS, pages_by_group
from .cache.layout import Layout, kv_format, make_layout
from .devices import Device, DeviceOptions
from .devices.batch import Executor, Row
from .devices.fitting import LEAST_CTX, Needs, cache_tokens, default_ctx
from .devices.forward import forward
from .devices.splitting import check_layers, make_hybrid, split
from .errors import DtypeError, FormatError, OutOfMemory, RequestError
from .files.maps import FileMap, check_maps
from .files.model import ModelFile
from .models import LoadedModel, load_model
from .ops.memory import Shortage
from .ops.validation import chosen_activations
from .validation import to_flag, to_size

DEFAULT_CTX = 8192  # tokens of a sequence unless more are asked for
RESERVE_BYTES = 64 << 20  # for what is not counted: threads, tables, Python
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
    is_encoder: bool = False  # texts run whole, in one step; it gives hidden rows, no logits
    maps: Collection[FileMap] = ()  # of files that steps read weights from

    def forward(self, chunks: Sequence[Row], output: str = "logits") -> Floats:
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
    batch_invariant: bool = False,
    gpu_layers: int | None = None,
    cache_dir: str | PathLike[str] | None = None,
    cache_dir_bytes: int | None = None,
    progress: Callable[[str, int, int | None], None] | None = None,
    preferred_activations: str | None = None,
) -> Loaded:
    """The model of a file on a device, by name; see `fewbit.devices`.

    `kv` names the format of K and V, or one of each: "q8_0/q4_0" or a pair; `ctx` is the longest sequence, in tokens,
    8192 unless the model was made for fewer or, with a warning, memory is short; `activations` says how products take
    them, see `fewbit.linear`, and `exact` is short for "exact"; logits are made with 16 bits at least. `repack` says
    whether weights are laid out anew, see `fewbit.repack`: if not given, where it makes them faster and memory is large
    enough to hold them.

    `cache_bytes` is the size of the KV cache: if not given, for up to 8 sequences of `ctx` tokens in at most a quarter
    of the memory that is available, and for one in any case. A step runs up to `max_seqs` sequences (64) and
    `max_batched_tokens` tokens (512). What does not fit into memory is refused.

    `batch_invariant` takes one numeric path for every batch size: a sequence gets the same bits alone, beside any
    others, in one chunk or several, and after a prefix hit or a preemption. Many tokens at once are then slower.

    `gpu_layers` of the model's layers, the last ones, run on a GPU and the others on the CPU: if not given, all of
    them, or with a warning as many as fit. `cache_bytes` is the size of the KV cache of all layers, wherever it lies;
    `threads` are those of the CPU. 0 is the same as `device="cpu"`.

    `cache_dir` is a folder for long prompts that the KV cache has no room for, in at most `cache_dir_bytes` (8 GiB):
    they are found again after a restart.

    `preferred_activations` are those that the model needs, where `activations` is None and the device has a choice.
    """
    k, v = kv_formats(kv)
    given = None if max_batched_tokens is None else _count(max_batched_tokens, "max_batched_tokens")
    chosen = chosen_activations(activations, to_flag(exact, "exact"))
    invariant = to_flag(batch_invariant, "batch_invariant")
    device, layers = check_layers(device, gpu_layers)
    options = DeviceOptions(
        threads, chosen, given, invariant, progress=_sending(file, device, progress),
        preferred_activations=preferred_activations,
    )  # fmt: skip
    of = devices.get(device, options if layers is None else replace(options, threads=None))
    step_tokens = of.max_batched_tokens
    model = load_model(file)  # its weights stay in the file for now
    length = check_ctx(ctx, model.config.ctx)
    if model.is_encoder:
        length, step_tokens = whole_texts(length, step_tokens, ctx is not None, given is not None)
    layout = choose_layout(of, file.file_bytes, repack)
    seqs = MAX_SEQS if max_seqs is None else _count(max_seqs, "max_seqs")
    kept = make_layout(model.graph.specs, k, v)
    needs = _needs(file, model, of, layout, kept, seqs, step_tokens)
    size = None if cache_bytes is None else to_size(cache_bytes, "cache_bytes", least=1, error=RequestError)
    whole = needs
    if of.name == "cuda":
        layers, needs = split(needs, model.graph, layers, length if ctx else min(length, LEAST_CTX), size)
    if ctx is None and size is None:
        length = default_ctx(needs, length)
    pages = _pages(needs, model, length, size, None if layers is None else whole)
    options = replace(options, max_batched_tokens=step_tokens, ctx=length)
    of = devices.get(device, options if layers is None else replace(options, threads=None))
    if layers is not None:
        of = make_hybrid(of, options, model.graph, layers)
    fingerprint = kv_fingerprint(file, length)
    model = _pack(file, of, layout, length)
    # K and V of another numeric path would break the promise of `batch_invariant`.
    how = dumps([device, chosen or preferred_activations, invariant, layout, machine(), getattr(of, "numerics", "")])
    nbytes = MAX_BYTES if cache_dir_bytes is None else cache_dir_bytes
    disk = None if cache_dir is None else DiskCache(cache_dir, nbytes, identity=how)
    cache = Cache(of.make_store(kept, pages), fingerprint, Shortage(), disk)
    executor = of.make_executor(model.graph, cache.store, model.config.vocab)
    check_maps(file.maps)  # what was read is what the file holds
    maps = () if of.name == "cuda" and layers is None else file.maps  # a GPU has copies of its weights
    return Loaded(executor, cache, length, model.step_bytes, seqs, model.is_encoder, maps)


def _pages(needs: Needs, model: LoadedModel, ctx: int, cache_bytes: int | None, whole: Needs | None) -> tuple[int, ...]:
    """Pages of the KV cache, by group; `whole` as `cache_tokens` takes it."""
    tokens = cache_tokens(needs, ctx, cache_bytes, whole)
    if model.is_encoder:  # nothing is kept from one step to the next
        tokens = min(tokens, needs.step_tokens + 2 * needs.max_seqs * needs.layout.page_tokens)
    return needs.pages(tokens)


def _sending(
    file: ModelFile, device: str, progress: Callable[[str, int, int | None], None] | None
) -> Callable[[int], None] | None:
    """Tells of weights that are sent to a device, as of a download."""
    if progress is None:
        return None
    sent, total = 0, file.file_bytes

    def tell(nbytes: int) -> None:
        nonlocal sent
        sent = min(sent + nbytes, total)
        progress(f"sending {file.path.name} to {device}", sent, total)

    return tell


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
        return device.layout if file_bytes <= device.memory_bytes(file_bytes, device.layout) * 3 // 4 else "rows"
    if not to_flag(repack, "repack"):
        return "rows"
    if device.layouts == ("rows",):
        raise RequestError(f"device {device.name!r} reads weights as they are; leave repack out")
    return device.layouts[0]


def kv_formats(kv: Any) -> tuple[str, str]:
    """The names of the formats of K and V, checked.

    >>> kv_formats("f16"), kv_formats("q8_0/q4_0"), kv_formats(("q8_0", "f16"))
    (('f16', 'f16'), ('q8_0', 'q4_0'), ('q8_0', 'f16'))
    """
    parts = kv.split("/") if isinstance(kv, str) else kv
    if not isinstance(parts, tuple | list):
        raise DtypeError(f'kv is a format like "q8_0", or two like "q8_0/q4_0", not {kv!r}')
    if not 1 <= len(parts) <= 2 or (len(parts) == 1 and not isinstance(kv, str)):
        raise FormatError(f'kv is a format like "q8_0", or two like "q8_0/q4_0", not {kv!r}')
    kv_format(parts[0], "k"), kv_format(parts[-1], "v")
    return parts[0], parts[-1]


def check_ctx(ctx: int | None, made_for: int) -> int:
    if ctx is None:
        return min(made_for, DEFAULT_CTX)
    if isinstance(ctx, bool) or not hasattr(ctx, "__index__"):
        raise DtypeError(f"ctx is a number of tokens, not {ctx!r}")
    if not 1 <= ctx <= made_for:
        raise RequestError(f"ctx is a number of tokens from 1 to {made_for}, which the model was made for, not {ctx!r}")
    return int(ctx)


def whole_texts(length: int, step_tokens: int, ctx_given: bool, step_given: bool) -> tuple[int, int]:
    """The longest text and the tokens of a step, of a model that runs a text in one step.

    >>> whole_texts(2048, 512, False, False), whole_texts(2048, 512, False, True)
    ((2048, 2048), (512, 512))
    """
    if not step_given:
        return length, max(length, step_tokens)
    if ctx_given and length > step_tokens:
        raise RequestError(
            f"the model runs a text in one step: ctx={length} needs as many max_batched_tokens, not {step_tokens}"
        )
    return min(length, step_tokens), step_tokens


def model_fingerprint(file: ModelFile) -> str:
    """A short text that is the same for the same model, and another one for any other: from all that its file says of
    its architecture and tensors, and some bytes of each."""
    digest = blake2b(digest_size=16)
    config = {key: value for key, value in file.config.items() if isinstance(value, int | float | str)}
    digest.update(dumps([file.architecture, config], sort_keys=True).encode())
    for part in file.samples(SAMPLE_BYTES):
        digest.update(part)
    return digest.hexdigest()


def kv_fingerprint(file: ModelFile, ctx: int) -> str:
    """The same for K and V: those of a model with two sets of rope factors also depend on which of them is used."""
    original = file.config.get("rope.scaling.original_context_length", ctx)
    is_long = "rope_factors_long.weight" in file.tensors and ctx > original
    return model_fingerprint(file) + ("-long" if is_long else "")


def _pack(file: ModelFile, device: Device, layout: str, ctx: int | None = None) -> LoadedModel:
    """The model with its weights in a layout; parts of fused tensors begin at places of their own."""
    try:
        return load_model(file, device.pack(layout, file.file_bytes + 256 * len(file.tensors)), ctx)
    except MemoryError as error:
        raise OutOfMemory(f"{file.path.name}: no memory to lay the weights out anew; try repack=False") from error


def _needs(
    file: ModelFile, model: LoadedModel, device: Device, layout: str, kv: Layout, max_seqs: int, step_tokens: int
) -> Needs:
    """What a model needs of memory with its weights and its K and V in these layouts."""
    return Needs(
        name=file.path.name,
        layout=kv,
        memory_bytes=device.memory_bytes(file.file_bytes, layout),
        file_bytes=file.file_bytes,
        decoded_bytes=_decoded_bytes(file) if device.decodes else 0,
        reserve_bytes=getattr(device, "reserve_bytes", RESERVE_BYTES),
        row_bytes=_row_bytes(model),
        logits_bytes=4 * model.graph.result.width,
        max_seqs=max_seqs,
        step_tokens=step_tokens,
        **({"kind": "GPU memory", "elsewhere": 'device="cpu"'} if device.name == "cuda" else {}),
    )


def _row_bytes(model: LoadedModel) -> int:
    """Bytes of one token in a step, about: activations of some operations."""
    of = model.config
    return 4 * (4 * of.hidden + 4 * of.feed_forward + 2 * of.heads * (of.k_dim + of.v_dim))


def _decoded_bytes(file: ModelFile) -> int:
    """Bytes of all weights as f32."""
    return sum(4 * prod(tensor.shape) for tensor in file.tensors.values())


def _count(value: int, what: str) -> int:
    return to_size(value, what, least=1, error=RequestError)
