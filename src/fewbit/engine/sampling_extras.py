"""What an output is sampled with beyond `SamplingParams`: a chain of samplers, and tokens that may not come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from ..arrays import Floats, Ints, Words
from ..ops.sampler_chain import ChainState, SamplerChain
from ..ops.sampling_arrays import MASK_BITS
from .constraint import Constraint
from .history_bias import Bans, MakeBans, RepeatPenalty

Bias = tuple[Ints, Floats]


@dataclass(frozen=True, slots=True)
class SamplingExtras:
    """What a request asks for beyond `SamplingParams`.

    Args:
        chain: Samplers, if others than the usual ones run, or in another order.
        dry_breakers: Tokens at which repetitions begin anew.
        allowed: Token ids that alone may be sampled; None: all.
        bans: Make what forbids tokens by those before them.
    """

    chain: SamplerChain | None = None
    dry_breakers: frozenset[int] = field(default=frozenset(), repr=False)
    allowed: Sequence[int] | None = None
    bans: Sequence[MakeBans] = ()

    @property
    def needs_tokens(self) -> bool:
        """Whether a token must be known before the next one is sampled."""
        return self.chain is not None or bool(self.bans)


class OutputExtras:
    """The same for one output, which it follows token by token."""

    def __init__(self, extras: SamplingExtras, prompt: Sequence[int], seed: int | None) -> None:
        self.state: ChainState | None = None
        self._dry: RepeatPenalty | None = None
        self._bans: list[Bans] = [make(prompt) for make in extras.bans]
        self._draw = Random(None if seed is None else f"xtc {seed}").random  # its own, as that of the tokens
        if extras.chain is not None:
            self.state = ChainState(extras.chain, self._draw())
            if extras.chain.has_dry:
                self._dry = RepeatPenalty(prompt, extras.chain, extras.dry_breakers)
                self.state.dry = self._dry.penalties()

    def add(self, token: int) -> None:
        """A token of the output."""
        for one in self._bans:
            one.add(token)
        if self.state is not None:
            self.state.accept(self._draw())
            if self._dry is not None:
                self._dry.add(token)
                self.state.dry = self._dry.penalties()

    def bias(self, given: Bias | None) -> Bias | None:
        """A bias after which no banned token comes."""
        banned = set[int]().union(*(one.banned() for one in self._bans))
        if not banned:
            return given
        if given is not None:
            kept = [place for place, token in enumerate(given[0].tolist()) if token not in banned]
            given = given[0][kept], given[1][kept]
        ids, values = np.array(sorted(banned), np.int32), np.full(len(banned), -np.inf, np.float32)
        return (ids, values) if given is None else (np.append(given[0], ids), np.append(given[1], values))


def token_mask(tokens: Iterable[int], vocab: int) -> Words:
    """
    >>> token_mask([1, 33], 40).tolist()
    [2, 2]
    """
    bits = np.zeros(-(-vocab // MASK_BITS) * MASK_BITS, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


class AllowedTokens:
    """A constraint, and only some of the tokens that it allows."""

    def __init__(self, constraint: Constraint, allowed: Words) -> None:
        self._constraint, self._allowed = constraint, allowed

    @property
    def is_finished(self) -> bool:
        return self._constraint.is_finished

    def mask(self) -> Words | None:
        mask = self._constraint.mask()
        return self._allowed if mask is None else mask & self._allowed

    def accept(self, token: int) -> None:
        self._constraint.accept(token)

    def forced(self) -> Sequence[int]:
        return self._constraint.forced()

    def rollback(self, count: int) -> None:
        self._constraint.rollback(count)
