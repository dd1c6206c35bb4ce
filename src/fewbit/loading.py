"""From a model file to what an engine runs: the layout of weights, the length of sequences, the size of the cache."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from json import dumps
from platform import machine

from .arrays import Floats
from .cache.cache import Cache
from .cache.disk import MAX_BYTES, DiskCache
from .cache.groups import MAX_SEQS, pages_by_group
from .cache.layout import make_layout
from .devices import Device
from .devices.batch import Executor, Row
from .devices.cpu_experts import place_experts
from .devices.dividing import divide
from .devices.fitting import (
    LEAST_CTX,
    MemoryPlan,
    cache_tokens,
    choose_layout,
    choose_seqs,
    default_ctx,
    plan_memory,
)
from .devices.forward import forward
from .devices.mtp import MtpExecutor
from .devices.splitting import Placed, find_devices, is_ranked, is_staged, join, needed_tokens, share_memory, split
from .devices.tensor_parallel import divide_layers
from .errors import OutOfMemory, RequestError
from .files.hub import find
from .files.maps import FileMap, check_maps
from .files.model import ModelFile
from .load_options import KvFormats, LoadOptions, kv_formats
from .models import LoadedModel, load_model, open_eagle_head
from .models.classifier import Classifier
from .models.config import Config
from .models.lora import AdapterReader, find_products
from .models.rope_scaling import stretched
from .models.vision import VisionModel
from .ops.inserts import drop_rows, span_reach, take_rows
from .ops.memory import Shortage

DEFAULT_CTX = 8192  # tokens of a sequence unless an option says otherwise
SAMPLE_BYTES = 1024  # of each tensor, for its model's fingerprint


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
    classifier: Classifier | None = None  # makes logits of labels from hidden rows
    second_text: int = 0  # is added to the token ids of the second of two texts
    adapters: AdapterReader | None = None  # reads adapters for the model
    sees: bool = False  # whether it takes the rows of an image encoder
    image_reach: int = 0  # how far back tokens of an image see in it, where they see later ones; 0: all of it

    def forward(self, chunks: Sequence[Row], output: str = "logits") -> Floats:
        """A step without an engine: see `fewbit.devices.forward`."""
        return forward(self.executor, self.cache, chunks, output)

    def close(self) -> None:
        """End what the executor has outside of this process, such as stages on other machines."""
        if close := getattr(self.executor, "close", None):
            close()


def load(
    file: ModelFile,
    options: LoadOptions,
    preferred_activations: str | None = None,
    vision: VisionModel | None = None,
) -> Loaded:
    """Load a model; one that does not fit into memory is refused with what would fit.

    Args:
        file: The model's file.
        options: What the user chose. `model`, `format`, `keep` and limits of the engine are not used here.
        preferred_activations: The activations that the model needs, if `options` say nothing and the device has them.
        vision: The image encoder whose rows the model takes; None: it reads text only.
    """
    targets = find_devices(options, file.path)
    if vision is not None and not all(device.takes_images for _, device in targets):
        if options.mmproj is not None:
            raise RequestError(
                f"device {options.device!r} takes no images; use device='cpu' or 'cuda', or mmproj='off'"
            )
        vision = None
    file = stretched(file, options.rope_scaling)
    mtp, head = options.speculate == "mtp", _eagle_head(options)
    model = load_model(file, mtp=mtp, head=head)  # its weights stay in the file for now
    reach, model = span_reach(model.graph), _seeing(model, vision)
    _, device = targets[-1]
    options = with_activations(options, device, preferred_activations)
    ctx, step_tokens = choose_lengths(options, model, device, 0 if vision is None else vision.joint_tokens)
    plans = _split(file, model, targets, options, ctx, step_tokens)
    if options.ctx is None and options.cache_bytes is None:
        ctx = default_ctx(plans, ctx)
    pages = _pages(plans, model, ctx, options.cache_bytes)
    device = join(plans, model.graph, replace(options, model=file.path, ctx=ctx, max_batched_tokens=step_tokens))
    if model.drafting is not None and not device.takes_rows:
        what = 'speculate="mtp"' if mtp else "an EAGLE head"
        raise RequestError(f"{what} needs one device for all layers, not {device.name}")
    model = _seeing(_pack(file, device, plans[0].weight_layout, ctx, mtp, head), vision)
    store = device.make_store(make_layout(model.specs, *kv_formats(options.kv)), pages)
    disk = _disk_cache(options, device, plans[0].weight_layout)
    suffix = f"-{model_fingerprint(head)}" if head else "-mtp" if mtp else ""  # it keeps K and V too
    cache = Cache(store, kv_fingerprint(file, ctx) + suffix, Shortage(), disk)
    executor = _make_executor(device, model, cache)
    check_maps(file.maps)  # what was read is what the file holds
    maps = () if device.copies_weights else file.maps
    max_seqs = min(plans[0].max_seqs, executor.max_batched_tokens, executor.max_logits)
    adapters = AdapterReader(file, find_products(model.graph, model.places))
    return Loaded(
        executor, cache, ctx, model.step_bytes, max_seqs, model.is_encoder, maps,
        model.classifier, model.second_text, adapters, vision is not None, reach,
    )  # fmt: skip


def _seeing(model: LoadedModel, vision: VisionModel | None) -> LoadedModel:
    """A model whose graph takes the rows of an image encoder."""
    if vision is None:
        return replace(model, graph=drop_rows(model.graph))
    if model.is_encoder:
        raise RequestError("an image encoder needs a model that writes text, this one makes embeddings")
    if vision.width != model.config.hidden:
        raise RequestError(
            f"the image encoder gives rows of {vision.width} values, and the model takes {model.config.hidden}"
        )
    return replace(model, graph=take_rows(model.graph, vision.sees_all))


def with_activations(options: LoadOptions, device: Device, preferred: str | None) -> LoadOptions:
    """Options with the activations that a model needs, if they say nothing and the device has them."""
    if options.activations is None and preferred in device.activation_types:
        return replace(options, activations=preferred)
    return options


def choose_lengths(options: LoadOptions, model: LoadedModel, device: Device, joint: int = 0) -> tuple[int, int]:
    """Tokens of the longest sequence and of a step. An encoder runs a whole text in one step, and a model that sees the
    `joint` tokens of an image."""
    ctx, step_tokens = check_ctx(options.ctx, model.config), options.max_batched_tokens
    if step_tokens is None:
        return ctx, max(ctx if model.is_encoder else 2 * joint, device.max_batched_tokens)
    if not model.is_encoder or ctx <= step_tokens:
        return ctx, step_tokens
    if options.ctx is not None:
        raise RequestError(
            f"the model runs a text in one step: max_batched_tokens must be at least ctx={ctx}, got {step_tokens}"
        )
    return step_tokens, step_tokens


def check_ctx(ctx: int | None, config: Config) -> int:
    if ctx is None:
        return min(config.ctx, DEFAULT_CTX)
    if not 1 <= ctx <= config.ctx:
        raise RequestError(f"ctx must be between 1 and {config.ctx} tokens, {config.ctx_reason}, got {ctx}")
    return ctx


def _split(
    file: ModelFile, model: LoadedModel, targets: Sequence[Placed], options: LoadOptions, ctx: int, step_tokens: int
) -> list[MemoryPlan]:
    """What each device needs for its layers."""
    kv_layout = make_layout(model.specs, *kv_formats(options.kv))
    plans = []
    for place, device in targets:
        layout = choose_layout(device, file.file_bytes, options.repack)
        plans.append(plan_memory(file, model, place, device, layout, kv_layout, MAX_SEQS, step_tokens))
    tokens = ctx if options.ctx else min(ctx, LEAST_CTX)
    is_shared = is_ranked(options) or is_staged(options)
    if is_shared:
        plans = share_memory(plans)
    seqs = options.max_seqs or choose_seqs(plans if is_shared else plans[-1:], ctx, options.cache_bytes)
    plans = [replace(plan, max_seqs=seqs) for plan in plans]
    if is_shared:
        return divide_layers(plans, model.graph) if is_ranked(options) else divide(plans, model.graph, tokens)
    if plans[-1].device.leaves_experts:
        *others, last = plans
        plans = [*others, place_experts(last, model.graph, options, needed_tokens(last, tokens, options.cache_bytes))]
        if plans[-1].cpu_experts:
            return plans[-1:]
    return split(plans, model.graph, options.gpu_layers, tokens, options.cache_bytes)


def _pages(plans: Sequence[MemoryPlan], model: LoadedModel, ctx: int, cache_bytes: int | None) -> tuple[int, ...]:
    """Pages of the KV cache, by group; the same on all devices."""
    plan, tokens = plans[0], cache_tokens(plans, ctx, cache_bytes)
    if model.is_encoder:  # nothing is kept from one step to the next
        tokens = min(tokens, plan.step_tokens + 2 * plan.max_seqs * plan.kv_layout.page_tokens)
    return plan.pages(tokens)


def _disk_cache(options: LoadOptions, device: Device, layout: str) -> DiskCache | None:
    """The folder of evicted prompts. K and V of another numeric path would break the promise of `batch_invariant`."""
    if options.cache_dir is None:
        return None
    path = [options.device, options.activations, options.batch_invariant, layout, machine(), device.numerics]
    nbytes = MAX_BYTES if options.cache_dir_bytes is None else options.cache_dir_bytes
    return DiskCache(options.cache_dir, nbytes, identity=dumps(path))


def load_weights(
    file: ModelFile, device: Device, repack: bool | None = None, mtp: bool = False, head: ModelFile | None = None
) -> LoadedModel:
    """The model of a file, with its weights in the layout that the device reads."""
    return _pack(file, device, choose_layout(device, file.file_bytes, repack), None, mtp, head)


def place(model: LoadedModel, device: Device, kv: KvFormats, ctx: int, tokens: int) -> Loaded:
    """A model on a device, beside a cache for so many tokens."""
    layout = make_layout(model.specs, *kv_formats(kv))
    cache = Cache(device.make_store(layout, pages_by_group(layout.groups, layout.page_tokens, tokens=tokens)))
    return Loaded(_make_executor(device, model, cache), cache, ctx, model.step_bytes)


def _make_executor(device: Device, model: LoadedModel, cache: Cache) -> Executor:
    if model.drafting is not None:
        return MtpExecutor(device, model, cache)
    return device.make_executor(model.graph, cache.store, model.config.vocab)


def _eagle_head(options: LoadOptions) -> ModelFile | None:
    """The EAGLE head that is to draft, if that is what `draft` names."""
    return None if options.draft is None else open_eagle_head(find(options.draft, progress=options.progress))


def _pack(
    file: ModelFile, device: Device, layout: str, ctx: int | None = None, mtp: bool = False,
    head: ModelFile | None = None,
) -> LoadedModel:  # fmt: skip
    """The model with its weights in a layout; parts of fused tensors begin at places of their own."""
    files = [file, head] if head else [file]
    nbytes = sum(one.file_bytes + 256 * len(one.tensors) for one in files)
    try:
        return load_model(file, device.pack(layout, nbytes), ctx, mtp, head)
    except MemoryError as error:
        raise OutOfMemory(f"{file.path.name}: no memory to lay the weights out anew; try repack=False") from error


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
    """The same for K and V: those of a model with two sets of rope factors also depend on which of them is used, those
    with dynamic scaling on the longest sequence."""
    original = file.config.get("rope.scaling.original_context_length", ctx)
    is_long = "rope_factors_long.weight" in file.tensors and ctx > original
    is_dynamic = file.config.get("rope.scaling.type") == "dynamic"
    return model_fingerprint(file) + ("-long" if is_long else "") + (f"-{ctx}" if is_dynamic else "")
