"""Chains of samplers, in an order that the caller may set: what `sample` in sampling.py has not.

The default order is `DEFAULT_SAMPLERS`; without the samplers that are new here a chain samples from the same
distribution as `sample`. Bias and mask come first, in any order. Temperature 0 leaves the likeliest token, so what
follows it has no effect. A token is drawn from what is left, walked from the likeliest on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log2
from numbers import Integral, Real
from typing import Any

import numpy as np

from ..arrays import Floats, Ints
from ..errors import ArgumentError, DataError, DtypeError
from .samplers import SAMPLERS, CandidateLogits, TopTokens, custom, mirostat, softmax
from .sampling import SamplingParams, biased, masked
from .sampling_arrays import BAD_LOGITS, NOTHING_ALLOWED, Bias, Mask, Seen, logits_error

CustomSampler = Callable[[Floats], Any]
Samplers = Sequence[str | CustomSampler]
DEFAULT_SAMPLERS = tuple(SAMPLERS)
_BESIDE_MIROSTAT = ("penalties", "dry", "temperature")  # it takes the place of the others
_ALIASES = {
    "typ_p": "typical_p", "typ": "typical_p", "typical": "typical_p", "temp": "temperature", "nucleus": "top_p",
    "nsigma": "top_n_sigma", "repetition_penalty": "penalties", "penalty": "penalties",
}  # fmt: skip
_NAMES = {**{name: name for name in SAMPLERS}, **_ALIASES}
_LIMITS = {  # least and most
    "typical_p": (0, 1),
    "top_n_sigma": (-1, 1e6),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 1),
    "dry_multiplier": (0, 1e6),
    "dry_base": (1, 1e6),
    "dry_allowed_length": (0, 2**31 - 1),
    "dry_penalty_last_n": (-1, 2**31 - 1),
    "mirostat": (0, 2),
    "mirostat_tau": (0, 100),
    "mirostat_eta": (0, 100),
    "dynatemp_range": (0, 1e6),
    "dynatemp_exponent": (0, 1e6),
}
_WHOLE = ("dry_allowed_length", "dry_penalty_last_n", "mirostat")


@dataclass(frozen=True, slots=True)
class SamplerChain:
    """Samplers beyond those of `SamplingParams`, and the order of all of them.

    >>> SamplerChain(samplers=["top_k", "typ_p", "temp"]).samplers
    ('top_k', 'typical_p', 'temperature')
    >>> SamplerChain(typical_p=0.9).is_needed, SamplerChain().is_needed
    (True, False)
    >>> SamplerChain(mirostat=1)
    Traceback (most recent call last):
    fewbit.errors.ArgumentError: mirostat must be 0 (off) or 2, got 1; version 1 is not supported

    Args:
        samplers: Their order; those that are not listed do not run. A function of the logits that returns logits is a
            sampler too.
        typical_p: Sample from tokens about as surprising as the entropy says that together have this probability. 1:
            all.
        top_n_sigma: Sample from logits at most so many standard deviations below the largest. 0 or -1: all.
        xtc_probability: How often the likeliest tokens are excluded.
        xtc_threshold: They are those of at least this probability but the least likely of them. Above 0.5: none.
        dry_multiplier: Strength of DRY, which penalizes tokens that would extend a repetition. 0: off.
        dry_base: The penalty is `dry_multiplier * dry_base ** (length - dry_allowed_length)`.
        dry_allowed_length: Repetitions of fewer tokens are not penalized.
        dry_penalty_last_n: The last tokens in which repetitions are searched. -1: all.
        mirostat: 2: Mirostat 2 takes the place of all samplers but penalties, DRY and temperature. 0: off.
        mirostat_tau: The surprise that it aims at, in bits.
        mirostat_eta: How fast it learns.
        dynatemp_range: The temperature lies so far above or below `temperature`, by the entropy. 0: it is fixed.
        dynatemp_exponent: Of the entropy's share.
    """

    samplers: Samplers = DEFAULT_SAMPLERS
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "samplers", sampler_names(self.samplers))
        for name, limits in _LIMITS.items():
            object.__setattr__(self, name, _number(name, getattr(self, name), *limits))
        object.__setattr__(self, "top_n_sigma", max(self.top_n_sigma, 0.0))
        if self.mirostat == 1:
            raise ArgumentError("mirostat must be 0 (off) or 2, got 1; version 1 is not supported")

    @property
    def is_needed(self) -> bool:
        """Whether it samples in another way than `sample` does."""
        return self.samplers != DEFAULT_SAMPLERS or any(getattr(self, name) != off for name, off in _OFF.items())

    @property
    def has_dry(self) -> bool:
        return self.dry_multiplier > 0 and "dry" in self.samplers


_OFF = {
    "typical_p": 1.0, "top_n_sigma": 0.0, "xtc_probability": 0.0, "dry_multiplier": 0.0, "mirostat": 0,
    "dynatemp_range": 0.0,
}  # fmt: skip


def sampler_names(samplers: Any) -> tuple[str | CustomSampler, ...]:
    """The samplers of a chain by our names. Functions stay."""
    if isinstance(samplers, str | bytes) or not isinstance(samplers, Sequence):
        raise DtypeError(f"samplers must be a list of names and functions, not {type(samplers).__name__}")
    found: list[str | CustomSampler] = []
    for one in samplers:
        name = _name(one) if isinstance(one, str) else one
        if isinstance(one, str) and name not in SAMPLERS:
            raise ArgumentError(f"samplers: there is no {one!r}; there are: {', '.join(SAMPLERS)}")
        if not isinstance(one, str) and not callable(one):
            raise DtypeError(f"a sampler must be a name or a function, not {type(one).__name__}")
        found.append(name)
    if twice := next((one for one in found if isinstance(one, str) and found.count(one) > 1), None):
        raise ArgumentError(f"samplers: {twice!r} is listed twice")
    return tuple(found)


def _name(name: str) -> str:
    """A sampler's name as we write it; llama.cpp takes capitals, dashes and neither.

    >>> _name("typ-p"), _name("Nucleus"), _name("TopNSigma"), _name("other")
    ('typical_p', 'top_p', 'top_n_sigma', 'other')
    """
    return {_squashed(one): known for one, known in _NAMES.items()}.get(_squashed(name), name)


def _squashed(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


@dataclass(slots=True)
class ChainState:
    """What a chain keeps of one output between its tokens.

    Args:
        chain: The chain.
        xtc_uniform: From [0, 1): whether the next token is without the likeliest ones.
        dry: Tokens that would extend a repetition, and what is subtracted from their logits.
    """

    chain: SamplerChain
    xtc_uniform: float = 1.0
    dry: tuple[Ints, Floats] | None = None
    mu: float = 0.0  # of Mirostat
    next_mu: float = 0.0  # if the token that was sampled last is kept

    def __post_init__(self) -> None:
        self.mu = self.next_mu = 2 * self.chain.mirostat_tau

    def accept(self, xtc_uniform: float) -> None:
        """A token was added to the output; the next one has its own number."""
        self.mu, self.xtc_uniform = self.next_mu, xtc_uniform


@dataclass(frozen=True, slots=True)
class ChainStep:
    """What samplers know of the token to be sampled."""

    params: SamplingParams
    state: ChainState
    seen: Seen | None = None

    @property
    def chain(self) -> SamplerChain:
        return self.state.chain


def sample_chain(
    logits: Floats,
    step: ChainStep,
    uniform: float,
    *,
    bias: Bias | None = None,
    mask: Mask | None = None,
    top_tokens: TopTokens | None = None,
) -> int:
    """The token that a chain samples from a row of logits, (vocab,). `ops.cpu.sample_chain` is the fast one.

    >>> step = ChainStep(SamplingParams(temperature=1, top_k=2), ChainState(SamplerChain(typical_p=0.9)))
    >>> sample_chain(np.log(np.array([1, 5, 4], np.float32)), step, 0.7)
    2

    Args:
        logits: Logits of the whole vocabulary.
        step: Its parameters and state.
        uniform: From [0, 1).
        bias: Token ids, and what is added to their logits.
        mask: Bit i % 32 of word i // 32: token i may be sampled.
        top_tokens: Finds the likeliest tokens, faster than a sort.
    """
    largest = logits.max()
    if not np.isfinite(largest):
        raise logits_error([(0, BAD_LOGITS if not np.isneginf(largest) else NOTHING_ALLOWED)])
    candidates = CandidateLogits(np.array(masked(biased(logits, bias), mask)), top_tokens)
    if (bias is not None or mask is not None) and np.isneginf(candidates.row().max()):
        raise logits_error([(0, NOTHING_ALLOWED)])
    for one in step.chain.samplers:
        _run(one, candidates, step)
    if step.chain.mirostat:
        mirostat(candidates, step)
    ids, ranked = candidates.ranked()
    probabilities = softmax(ranked)
    place = min(int(np.searchsorted(np.cumsum(probabilities), uniform, side="right")), len(ids) - 1)
    advance_mirostat(step, float(probabilities[place]))
    return int(ids[place])


def advance_mirostat(step: ChainStep, probability: float) -> None:
    """What Mirostat learns of the token that was drawn."""
    if step.chain.mirostat:
        surprise = -log2(max(probability, 1e-300))
        step.state.next_mu = step.state.mu - step.chain.mirostat_eta * (surprise - step.chain.mirostat_tau)


def _run(one: str | CustomSampler, candidates: CandidateLogits, step: ChainStep) -> None:
    if isinstance(one, str):
        if not step.chain.mirostat or one in _BESIDE_MIROSTAT:
            SAMPLERS[one](candidates, step)
        return
    custom(candidates, one)
    if np.isneginf(candidates.row().max()):
        raise DataError(f"the sampler {getattr(one, '__name__', one)} left no token that can be sampled")


def _number(name: str, value: Any, least: float, most: float) -> float:
    number: float
    if name in _WHOLE and isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
    elif name not in _WHOLE and isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
    else:
        raise DtypeError(f"{name} must be {'an integer' if name in _WHOLE else 'a number'}, not {value!r}")
    if not least <= number <= most:
        raise ArgumentError(f"{name} must be from {least:.10g} to {most:.10g}, got {value}")
    return number
