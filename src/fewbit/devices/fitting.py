"""What fits into memory: weights, the activations of a step, and a KV cache of as many tokens as possible.

Each pass takes the plans of all devices that a model is on.
"""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from ..cache.groups import MAX_PAGES, MAX_SEQS, pages_by_group
from ..cache.layout import Layout, make_layout
from ..errors import FewbitError, OutOfMemory, RequestError
from ..files.model import ModelFile
from ..models import LoadedModel
from ..ops.cut import layers_of
from ..ops.memory import readable
from . import Device

FULL_SEQUENCES = 8  # that the cache has room for, as far as memory goes
CACHE_SHARE = 4  # of what is available, the part that the cache takes unless one sequence needs more
SEQ_TOKENS = 512  # that the cache has room for, for each output where a device takes more of them than usual
SEQS_STEP = 32  # outputs: a default above the usual is a multiple
SMALLER_KV = ("q8_0", "q4_0")  # proposed where other formats do not fit
SMALLER_STEPS = (256, 128, 64, 32)  # tokens; likewise
MAX_LOGITS = 128  # rows of logits in most steps
ROUND = 256  # tokens: what is proposed is a multiple
LEAST_CTX = 512  # tokens: a default context is not made shorter


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory that layers of a model need on a device beside their KV cache, and the memory that there is.

    Args:
        model: Name of the model.
        place: Name of the device, as `fewbit.devices.get` takes it.
        device: The device.
        layers: Number of layers.
        weight_layout: Layout of the weights.
        kv_layout: Layout of what the layers keep of sequences.
        memory_bytes: Available memory.
        file_bytes: Size of the packed weights.
        row_bytes: Size of the activations of a token in a step.
        logits_bytes: Size of a row of logits.
        max_seqs: Maximum number of sequences in a step.
        step_tokens: Maximum number of tokens in a step.
        decoded_bytes: Size of weights that are kept as floats too.
        alternative: An option to propose where nothing fits.
        cpu_experts: Number of layers whose experts are not among the weights, since they stay on the CPU.
    """

    model: str
    place: str
    device: Device
    layers: int
    weight_layout: str
    kv_layout: Layout
    memory_bytes: int
    file_bytes: int
    row_bytes: int
    logits_bytes: int
    max_seqs: int
    step_tokens: int
    decoded_bytes: int = 0
    alternative: str = ""
    cpu_experts: int = 0

    @property
    def weight_bytes(self) -> int:
        return self.file_bytes + self.decoded_bytes

    @property
    def step_bytes(self) -> int:
        """Estimated size of the activations of a step."""
        logits = min(self.step_tokens, max(MAX_LOGITS, self.max_seqs))
        rows = self.step_tokens * self.row_bytes + logits * self.logits_bytes
        return self.device.reserve_bytes + rows

    @property
    def free_bytes(self) -> int:
        """Bytes that are left for the KV cache."""
        return self.memory_bytes - self.weight_bytes - self.step_bytes

    def fits(self, tokens: int) -> bool:
        return self.cache_bytes(tokens) <= self.free_bytes

    def max_ctx(self, most: int) -> int:
        """The longest context that fits, as a round number of tokens; 0 if none does."""
        return tokens_in([self], self.free_bytes, most) // ROUND * ROUND

    def pages(self, tokens: int) -> tuple[int, ...]:
        """Pages of a KV cache for so many tokens, by group."""
        return pages_by_group(
            self.kv_layout.groups,
            self.kv_layout.page_tokens,
            tokens=tokens,
            max_seqs=self.max_seqs,
            step_tokens=self.step_tokens,
        )

    def cache_bytes(self, tokens: int) -> int:
        """Size of a KV cache for so many tokens."""
        sizes = zip(self.pages(tokens), self.kv_layout.groups, strict=True)
        return sum(pages * group.page_bytes for pages, group in sizes)


def plan_memory(
    file: ModelFile, model: LoadedModel, place: str, device: Device, weight_layout: str, kv_layout: Layout,
    max_seqs: int, step_tokens: int,
) -> MemoryPlan:  # fmt: skip
    """The plan for all layers of a model on one device."""
    config = model.config
    values = 4 * config.hidden + 4 * config.feed_forward + 2 * config.heads * (config.k_dim + config.v_dim)
    decoded_bytes = sum(4 * prod(tensor.shape) for tensor in file.tensors.values()) if device.decodes else 0
    return MemoryPlan(
        model=file.path.name,
        place=place,
        device=device,
        layers=len(layers_of(model.graph.nodes)),
        weight_layout=weight_layout,
        kv_layout=kv_layout,
        memory_bytes=device.memory_bytes(file.file_bytes, weight_layout),
        file_bytes=file.file_bytes,
        row_bytes=4 * values,
        logits_bytes=4 * model.graph.result.width,
        max_seqs=max_seqs,
        step_tokens=step_tokens,
        decoded_bytes=decoded_bytes,
        alternative=device.alternative,
    )


def choose_layout(device: Device, nbytes: int, repack: bool | None = None) -> str:
    """The layout of weights: the device's own, or that of the file if memory is short or `repack` is False."""
    if repack is None:
        return device.layout if nbytes <= device.memory_bytes(nbytes, device.layout) * 3 // 4 else "rows"
    if not repack:
        return "rows"
    if device.layouts == ("rows",):
        raise RequestError(f"device {device.name!r} reads weights as they are; leave repack out")
    return device.layouts[0]


def tokens_in(plans: Sequence[MemoryPlan], nbytes: int, most: int) -> int:
    """How many tokens a KV cache of so many bytes has room for, on all devices together."""
    size = plans[0].kv_layout.page_tokens
    sizes = range(size, most + size, size)
    return min(most, size * bisect_right(sizes, nbytes, key=lambda tokens: _cache_bytes(plans, tokens)))


def _cache_bytes(plans: Sequence[MemoryPlan], tokens: int) -> int:
    return sum(plan.cache_bytes(tokens) for plan in plans)


def choose_seqs(plans: Sequence[MemoryPlan], ctx: int, cache_bytes: int | None) -> int:
    """Default number of outputs in a step: what the devices take, as far as the cache has tokens for so many.

    Args:
        plans: What each of the devices that share the layers would need for all of them.
        ctx: Tokens of the longest sequence.
        cache_bytes: Size of the KV cache, where an option says so.
    """
    plan, most = plans[-1], min(plan.device.max_seqs for plan in plans)
    memory = sum(one.memory_bytes for one in plans)
    free = memory - plan.weight_bytes - sum(one.step_bytes for one in plans)
    limit = min(free, memory // CACHE_SHARE) if cache_bytes is None else cache_bytes

    def fits(seqs: int) -> bool:
        return replace(plan, max_seqs=seqs).cache_bytes(seqs * min(ctx, SEQ_TOKENS)) <= limit

    return next(filter(fits, range(most, MAX_SEQS, -SEQS_STEP)), min(most, MAX_SEQS))


def default_ctx(plans: Sequence[MemoryPlan], usual: int) -> int:
    """The default context: shorter than usual, with a warning, if memory is short."""
    plan = min(plans, key=lambda plan: usual if plan.fits(usual) else plan.max_ctx(usual))
    ctx = plan.max_ctx(usual)
    if plan.fits(usual) or ctx < LEAST_CTX:  # too little to be of use: `cache_tokens` says what would fit
        return usual
    smaller = _smaller_kv(plan, usual)
    hint = f'kv="{smaller}" makes room for all of them' if smaller else "a smaller model leaves more room"
    warnings.warn(f"memory is short: the context is {ctx} tokens instead of {usual}; {hint}", stacklevel=5)
    return ctx


def cache_tokens(plans: Sequence[MemoryPlan], ctx: int, cache_bytes: int | None = None) -> int:
    """Tokens of the KV cache: in `cache_bytes` on all devices together, or of at least one sequence of `ctx` tokens."""
    if cache_bytes is None:
        for plan in plans:
            if not plan.fits(ctx):
                raise _too_large(plan, ctx, [*_proposals(plan, ctx)])
        return ctx * max(1, min(_shared_tokens(plan, _usual_tokens(plan, ctx)) for plan in plans) // ctx)
    tokens = tokens_in(plans, cache_bytes, MAX_PAGES * plans[0].kv_layout.page_tokens)
    if not tokens:
        least = _cache_bytes(plans, 1)
        raise RequestError(
            f"cache_bytes must be at least {least}, the size of a page of the KV cache, got {cache_bytes}"
        )
    for plan in plans:
        if not plan.fits(tokens):
            fitting = tokens_in([plan], plan.free_bytes, tokens)
            smaller = [f"cache_bytes={_cache_bytes(plans, fitting)}"] if fitting else _proposals(plan, tokens)
            raise _too_large(plan, tokens, [*smaller])
    return tokens


def _usual_tokens(plan: MemoryPlan, ctx: int) -> int:
    """Tokens that a KV cache has room for by default: some sequences of `ctx`, or less of many."""
    many = plan.max_seqs * min(ctx, SEQ_TOKENS) if plan.max_seqs > MAX_SEQS else 0
    return max(ctx * FULL_SEQUENCES, many)


def _shared_tokens(plan: MemoryPlan, most: int) -> int:
    """Tokens of a KV cache that leaves memory to others."""
    return tokens_in([plan], min(plan.free_bytes, plan.memory_bytes // CACHE_SHARE), most)


def _too_large(plan: MemoryPlan, tokens: int, proposals: list[str]) -> OutOfMemory:
    cache_bytes = plan.cache_bytes(tokens)
    total = plan.weight_bytes + plan.step_bytes + cache_bytes
    formats = "/".join(dict.fromkeys([plan.kv_layout.k.name, plan.kv_layout.v.name]))
    every = [*proposals, plan.alternative] if plan.alternative else proposals
    return OutOfMemory(
        f"{plan.model} needs {readable(total)} of {plan.device.memory_kind}, and {readable(plan.memory_bytes)} is "
        f"available: weights take {readable(plan.weight_bytes)}, a step {readable(plan.step_bytes)}, the KV cache of "
        f"{tokens} tokens in {formats} {readable(cache_bytes)}; try {' or '.join(every)}"
    )


def _proposals(plan: MemoryPlan, tokens: int) -> Iterator[str]:
    """What would fit instead: one change, if one is enough."""
    ctx, kv = plan.max_ctx(tokens), _smaller_kv(plan, tokens)
    steps = [count for count in SMALLER_STEPS if count < plan.step_tokens]
    step = next((count for count in steps if replace(plan, step_tokens=count).fits(tokens)), None)
    is_packed = bool(plan.decoded_bytes) and replace(plan, decoded_bytes=0).fits(tokens)
    if ctx:
        yield f"ctx={ctx}"
    if kv is not None:
        yield f'kv="{kv}"'
    if step is not None:
        yield f"max_batched_tokens={step}"
    if is_packed:
        yield 'device="cpu", which keeps weights packed'
    if not (ctx or kv or step or is_packed):
        yield _last_resort(replace(plan, step_tokens=min([plan.step_tokens, *steps])), tokens)


def _last_resort(plan: MemoryPlan, tokens: int) -> str:
    """What fits with the smallest steps."""
    if ctx := plan.max_ctx(tokens):
        return f"max_batched_tokens={plan.step_tokens} with ctx={ctx}"
    weights = plan.memory_bytes - plan.step_bytes - plan.cache_bytes(ROUND)
    packed = weights * plan.file_bytes // plan.weight_bytes
    return f"a model file of at most {readable(packed)}" if packed > 0 else "a machine with more memory"


def _smaller_kv(plan: MemoryPlan, tokens: int) -> str | None:
    """A format of K and V in which so many tokens fit."""
    return next((name for name in SMALLER_KV if _fits_in(plan, tokens, name)), None)


def _fits_in(plan: MemoryPlan, tokens: int, kv: str) -> bool:
    layout = plan.kv_layout
    try:
        other = replace(plan, kv_layout=make_layout(layout.specs, kv, page_tokens=layout.page_tokens))
        return other.cache_bytes(tokens) <= min(plan.free_bytes, plan.cache_bytes(tokens) - 1)
    except FewbitError:  # heads that the format cannot pack
        return False
