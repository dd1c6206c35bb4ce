"""Samplers as options of `LLM.generate`: their types, their checks, and texts as tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any, TypedDict, get_type_hints

import numpy as np

from ..engine.history_bias import NgramBans, TextBans, TokenIndex
from ..engine.request_checks import check_count
from ..engine.sampling_extras import SamplingExtras
from ..errors import DtypeError, RequestError
from ..ops.sampler_chain import SamplerChain, Samplers
from ..text.tokenizer import Tokenizer
from ..validation import to_tokens

DRY_BREAKERS = ("\n", ":", '"', "*")
MAX_TEXTS = 256  # bad or allowed words, or breakers
MAX_CHARS = 256  # of each
MAX_NGRAM = 64


class SamplerOptions(TypedDict, total=False):
    """Samplers beyond `SamplingParams`, and tokens that may or may not come. See `Options`."""

    samplers: Samplers
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    dynatemp_range: float
    dynatemp_exponent: float
    no_repeat_ngram_size: int
    bad_words: Sequence[str]
    allowed_words: Sequence[str]
    allowed_token_ids: Sequence[int]
    banned_token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class SamplerSettings:
    """These options, checked. None of the lists is set if it has no effect."""

    chain: SamplerChain | None = None
    dry_breakers: tuple[str, ...] = ()
    ngram_size: int = 0
    bad_words: tuple[str, ...] = ()
    allowed_words: tuple[str, ...] | None = None
    allowed: tuple[int, ...] | None = None
    banned: tuple[int, ...] = ()


def pop_samplers(options: dict[str, Any]) -> SamplerSettings | None:
    """Take these options out of others. None if none of them has an effect.

    >>> pop_samplers({"typical_p": 1.0, "bad_words": []}) is None
    True
    """
    given = {name: options.pop(name) for name in get_type_hints(SamplerOptions) if options.get(name) is not None}
    for name in get_type_hints(SamplerOptions):
        options.pop(name, None)
    if not given:
        return None
    chain = SamplerChain(**{one.name: given[one.name] for one in fields(SamplerChain) if one.name in given})
    words = _texts(given["allowed_words"], "allowed_words") if "allowed_words" in given else None
    found = SamplerSettings(
        chain if chain.is_needed else None,
        _texts(given.get("dry_sequence_breakers", DRY_BREAKERS), "dry_sequence_breakers") if chain.has_dry else (),
        check_count(given.get("no_repeat_ngram_size", 0), "no_repeat_ngram_size", MAX_NGRAM, least=0),
        _texts(given.get("bad_words", ()), "bad_words"),
        words,
        _token_ids(given["allowed_token_ids"], "allowed_token_ids") if "allowed_token_ids" in given else None,
        _token_ids(given.get("banned_token_ids", ()), "banned_token_ids"),
    )
    return None if found == SamplerSettings() else found


class TokenTexts:
    """Finds the tokens of texts. What is found of breakers is kept.

    Args:
        tokenizer: The model's.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._breakers: dict[tuple[str, ...], frozenset[int]] = {}

    @cached_property
    def index(self) -> TokenIndex:
        """The bytes of all tokens that are text."""
        known = self._tokenizer
        return TokenIndex(
            [b"" if known.is_special(token) else known.token_bytes(token) for token in range(known.vocab_size)]
        )

    def extras(self, settings: SamplerSettings, bias: Mapping[int, float] | None, ends: Set[int]) -> dict[str, Any]:
        """What `Engine.generation` takes for settings.

        Args:
            settings: Of one call.
            bias: Its `logit_bias`, which banned tokens are added to.
            ends: Tokens that end an output.
        """
        bans: list[Any] = []
        if settings.ngram_size:
            bans.append(partial(NgramBans, size=settings.ngram_size))
        if settings.bad_words:
            texts = [text.encode() for text in settings.bad_words]
            bans.append(lambda prompt: TextBans(self.index, texts))
        allowed = settings.allowed
        if settings.allowed_words is not None:
            tokens = {*self._tokens_of(settings.allowed_words), *ends}
            allowed = tuple(tokens if allowed is None else tokens & {*allowed})
        breakers = self._breaker_tokens(settings.dry_breakers)
        found: dict[str, Any] = {"extras": SamplingExtras(settings.chain, breakers, allowed, bans)}
        if settings.banned:
            found["logit_bias"] = {**(bias or {}), **dict.fromkeys(settings.banned, -np.inf)}
        return found

    def _tokens_of(self, texts: Sequence[str]) -> set[int]:
        """The tokens of texts, alone and after a space."""
        return {token for text in texts for start in ("", " ") for token in self._tokenizer.encode(start + text)}

    def _breaker_tokens(self, texts: tuple[str, ...]) -> frozenset[int]:
        """Tokens that hold one of the texts; the last token of a text that none holds."""
        if not texts:
            return frozenset()
        if texts not in self._breakers:
            found = set[int]()
            for text in texts:
                found |= self.index.containing(text.encode()) or {*self._tokenizer.encode(text)[-1:]}
            if len(self._breakers) >= 16:  # texts come from clients
                self._breakers.clear()
            self._breakers[texts] = frozenset(found)
        return self._breakers[texts]


def _texts(values: Any, name: str) -> tuple[str, ...]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence | Set):
        raise DtypeError(f"{name} must be a list of str, not {type(values).__name__}")
    if len(values) > MAX_TEXTS:
        raise RequestError(f"{name} may hold {MAX_TEXTS} texts, got {len(values)}")
    for text in values:
        if not isinstance(text, str) or not text:
            raise DtypeError(f"{name} must be texts that are not empty, got {text!r}")
        if len(text) > MAX_CHARS:
            raise RequestError(f"a text of {name} may have {MAX_CHARS} characters, one has {len(text)}")
    return tuple(values)


def _token_ids(values: Any, name: str) -> tuple[int, ...]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence | Set):
        raise DtypeError(f"{name} must be a list of token ids, not {type(values).__name__}")
    return tuple(to_tokens(values))
