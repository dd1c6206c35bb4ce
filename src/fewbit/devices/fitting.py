"""What fits into memory: weights, the rows of a step, and a KV cache of as many tokens as are left room for."""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..cache.groups import MAX_PAGES, pages_by_group
from ..cache.layout import Layout, make_layout
from ..errors import FewbitError, OutOfMemory, RequestError
from ..ops.memory import readable

FULL_SEQUENCES = 8  # that the cache has room for, as far as memory goes
CACHE_SHARE = 4  # of what is available, the part that the cache takes unless one sequence needs more
SMALLER = ("q8_0", "q4_0")  # formats of K and V that are proposed where others do not fit
SMALLER_STEPS = (256, 128, 64, 32)  # tokens of a step that are proposed
MAX_LOGITS = 128  # rows of logits that a step usually gives at most
ROUND = 256  # tokens: what is proposed is a multiple
LEAST_CTX = 512  # tokens: a context that nobody asked for is not made shorter


@dataclass(frozen=True, slots=True)
class Needs:
    """What a model needs beside its KV cache, and what there is."""

    name: str
    layout: Layout
    memory_bytes: int  # available
    file_bytes: int  # of the weights as they are packed
    reserve_bytes: int  # for what is not counted
    row_bytes: int  # of activations, for each token of a step
    logits_bytes: int  # of a row of logits
    max_seqs: int
    step_tokens: int
    decoded_bytes: int = 0  # of weights that are kept as floats too
    kind: str = "memory"  # of what there is
    elsewhere: str = ""  # what would fit anywhere

    @property
    def weight_bytes(self) -> int:
        return self.file_bytes + self.decoded_bytes

    @property
    def step_bytes(self) -> int:
        """Bytes of a step's rows, about."""
        rows = self.step_tokens * self.row_bytes + min(self.step_tokens, MAX_LOGITS) * self.logits_bytes
        return self.reserve_bytes + rows

    @property
    def room(self) -> int:
        """Bytes for the KV cache."""
        return self.memory_bytes - self.weight_bytes - self.step_bytes

    def fits(self, tokens: int) -> bool:
        return self.cache_bytes(tokens) <= self.room

    def ctx_in_room(self, most: int) -> int:
        """The longest context that fits, as a round number of tokens; 0 if none does."""
        return self.tokens_in(self.room, most) // ROUND * ROUND

    def pages(self, tokens: int) -> tuple[int, ...]:
        return pages_by_group(
            self.layout.groups,
            self.layout.page_tokens,
            tokens=tokens,
            max_seqs=self.max_seqs,
            step_tokens=self.step_tokens,
        )

    def cache_bytes(self, tokens: int) -> int:
        """Bytes of a KV cache for so many tokens."""
        sizes = zip(self.pages(tokens), self.layout.groups, strict=True)
        return sum(pages * group.page_bytes for pages, group in sizes)

    def tokens_in(self, nbytes: int, most: int) -> int:
        """How many tokens a KV cache of so many bytes has room for."""
        size = self.layout.page_tokens
        sizes = range(size, most + size, size)
        return min(most, size * bisect_right(sizes, nbytes, key=self.cache_bytes))


def default_ctx(needs: Needs, usual: int) -> int:
    """The longest sequence where nobody said how long: shorter than usual, with a warning, if memory is short."""
    fitting = usual if needs.fits(usual) else needs.ctx_in_room(usual)
    if fitting == usual or fitting < LEAST_CTX:  # too little to be of use: `cache_tokens` says what would fit
        return usual
    smaller = _smaller_kv(needs, usual)
    hint = f'kv="{smaller}" makes room for all of them' if smaller else "a smaller model leaves more room"
    message = f"memory is short: the context is {fitting} tokens instead of {usual}; {hint}"
    warnings.warn(message, stacklevel=4)
    return fitting


def cache_tokens(needs: Needs, ctx: int, cache_bytes: int | None = None, whole: Needs | None = None) -> int:
    """Tokens of the KV cache: in `cache_bytes`, or of some sequences of `ctx` tokens, of one at least.

    `whole`: what the model needs of which these are some layers; `cache_bytes` are of the cache of all of them.
    """
    if cache_bytes is None:
        if not needs.fits(ctx):
            raise _too_large(needs, ctx, needs.cache_bytes(ctx), [*_proposals(needs, ctx), *_elsewhere(needs)])
        share = min(needs.room, needs.memory_bytes // CACHE_SHARE)
        return ctx * max(1, needs.tokens_in(share, ctx * FULL_SEQUENCES) // ctx)
    every = whole or needs
    most = MAX_PAGES * needs.layout.page_tokens
    tokens = every.tokens_in(cache_bytes, most)
    if not tokens:
        least = every.cache_bytes(1)
        raise RequestError(f"cache_bytes={cache_bytes} is less than a page of the KV cache, which takes {least} bytes")
    if needs.cache_bytes(tokens) > needs.room:
        fitting = needs.tokens_in(needs.room, tokens)
        smaller = [f"cache_bytes={every.cache_bytes(fitting)}"] if fitting else [*_proposals(needs, tokens)]
        raise _too_large(needs, tokens, needs.cache_bytes(tokens), [*smaller, *_elsewhere(needs)])
    return tokens


def _too_large(needs: Needs, tokens: int, cache_bytes: int, proposals: list[str]) -> OutOfMemory:
    total = needs.weight_bytes + needs.step_bytes + cache_bytes
    formats = "/".join(dict.fromkeys([needs.layout.k.name, needs.layout.v.name]))
    return OutOfMemory(
        f"{needs.name} needs {readable(total)} of {needs.kind}, and {readable(needs.memory_bytes)} is available: "
        f"weights take {readable(needs.weight_bytes)}, a step {readable(needs.step_bytes)}, the KV cache of {tokens} "
        f"tokens in {formats} {readable(cache_bytes)}; try {' or '.join(proposals)}"
    )


def _elsewhere(needs: Needs) -> list[str]:
    return [needs.elsewhere] if needs.elsewhere else []


def _proposals(needs: Needs, tokens: int) -> Iterator[str]:
    """What would fit instead: one change, if one is enough."""
    ctx, kv = needs.ctx_in_room(tokens), _smaller_kv(needs, tokens)
    steps = [count for count in SMALLER_STEPS if count < needs.step_tokens]
    step = next((count for count in steps if replace(needs, step_tokens=count).fits(tokens)), None)
    is_packed = bool(needs.decoded_bytes) and replace(needs, decoded_bytes=0).fits(tokens)
    if ctx:
        yield f"ctx={ctx}"
    if kv is not None:
        yield f'kv="{kv}"'
    if step is not None:
        yield f"max_batched_tokens={step}"
    if is_packed:
        yield 'device="cpu", which keeps weights packed'
    if not (ctx or kv or step or is_packed):
        yield _last_resort(replace(needs, step_tokens=min([needs.step_tokens, *steps])), tokens)


def _last_resort(needs: Needs, tokens: int) -> str:
    """What fits with the smallest steps."""
    if ctx := needs.ctx_in_room(tokens):
        return f"max_batched_tokens={needs.step_tokens} with ctx={ctx}"
    weights = needs.memory_bytes - needs.step_bytes - needs.cache_bytes(ROUND)
    packed = weights * needs.file_bytes // needs.weight_bytes
    return f"a model file of at most {readable(packed)}" if packed > 0 else "a machine with more memory"


def _smaller_kv(needs: Needs, tokens: int) -> str | None:
    """A format of K and V in which so many tokens fit."""
    return next((name for name in SMALLER if _fits_in(needs, tokens, name)), None)


def _fits_in(needs: Needs, tokens: int, kv: str) -> bool:
    try:
        other = replace(needs, layout=make_layout(needs.layout.specs, kv, page_tokens=needs.layout.page_tokens))
        return other.cache_bytes(tokens) <= min(needs.room, needs.cache_bytes(tokens) - 1)
    except FewbitError:  # heads that the format cannot pack
        return False
