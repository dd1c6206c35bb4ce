"""What fits into memory: weights, the rows of a step, and a KV cache of as many tokens as are left room for."""

from __future__ import annotations

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
ROUND = 256  # tokens: what is proposed is a multiple


@dataclass(frozen=True, slots=True)
class Needs:
    """What a model needs beside its KV cache, and what there is."""

    name: str
    layout: Layout
    memory_bytes: int  # available
    weight_bytes: int
    step_bytes: int  # of a step's rows
    max_seqs: int
    step_tokens: int

    @property
    def room(self) -> int:
        """Bytes for the KV cache."""
        return self.memory_bytes - self.weight_bytes - self.step_bytes

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


def cache_tokens(needs: Needs, ctx: int, cache_bytes: int | None = None) -> int:
    """Tokens of the KV cache: in `cache_bytes`, or of some sequences of `ctx` tokens, of one at least."""
    if cache_bytes is None:
        if needs.cache_bytes(ctx) > needs.room:
            raise _too_large(needs, ctx, needs.cache_bytes(ctx), [*_proposals(needs, ctx)])
        share = min(needs.room, needs.memory_bytes // CACHE_SHARE)
        return ctx * max(1, needs.tokens_in(share, ctx * FULL_SEQUENCES) // ctx)
    tokens = needs.tokens_in(cache_bytes, MAX_PAGES * needs.layout.page_tokens)
    if not tokens:
        least = needs.cache_bytes(1)
        raise RequestError(f"cache_bytes={cache_bytes} is less than a page of the KV cache, which takes {least} bytes")
    if cache_bytes > needs.room:
        smaller = [f"cache_bytes={needs.room}"] if needs.cache_bytes(1) <= needs.room else [*_proposals(needs, tokens)]
        raise _too_large(needs, tokens, cache_bytes, smaller)
    return tokens


def _too_large(needs: Needs, tokens: int, cache_bytes: int, proposals: list[str]) -> OutOfMemory:
    total = needs.weight_bytes + needs.step_bytes + cache_bytes
    formats = "/".join(dict.fromkeys([needs.layout.k.name, needs.layout.v.name]))
    return OutOfMemory(
        f"{needs.name} needs {readable(total)} of memory, and {readable(needs.memory_bytes)} is available: "
        f"weights take {readable(needs.weight_bytes)}, a step {readable(needs.step_bytes)}, the KV cache of {tokens} "
        f"tokens in {formats} {readable(cache_bytes)}; try {' or '.join(proposals)}"
    )


def _proposals(needs: Needs, tokens: int) -> Iterator[str]:
    """What would fit instead."""
    fitting = needs.tokens_in(needs.room, tokens)
    if fitting >= ROUND:
        yield f"ctx={fitting // ROUND * ROUND}"
    kv = next((name for name in SMALLER if _fits_in(needs, tokens, name)), None)
    if kv is not None:
        yield f'kv="{kv}"'
    if fitting < ROUND and kv is None:
        weights = needs.memory_bytes - needs.step_bytes - needs.cache_bytes(ROUND)
        yield f"a model file of at most {readable(weights)}" if weights > 0 else "a machine with more memory"


def _fits_in(needs: Needs, tokens: int, kv: str) -> bool:
    try:
        other = replace(needs, layout=make_layout(needs.layout.specs, kv, page_tokens=needs.layout.page_tokens))
        return other.cache_bytes(tokens) <= min(needs.room, needs.cache_bytes(tokens) - 1)
    except FewbitError:  # heads that the format cannot pack
        return False
