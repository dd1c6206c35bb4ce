"""Samplers as clients of llama.cpp, vLLM and others ask for them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from ..llm.extra_options import MAX_CHARS, MAX_NGRAM, MAX_TEXTS
from .errors import unsupported
from .output_formats import Guided
from .template_input import given

Share = Annotated[float, Meta(ge=0, le=1)]
Amount = Annotated[float, Meta(ge=0, le=1e6)]
LastTokens = Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)]  # -1: all
TokenId = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
SamplerTexts = Annotated[list[Annotated[str, Meta(min_length=1, max_length=MAX_CHARS)]], Meta(max_length=MAX_TEXTS)]
TokenIdList = Annotated[list[TokenId], Meta(max_length=1 << 19)]
LETTERS = {  # of llama.cpp's `samplers` as one text
    "d": "dry", "k": "top_k", "y": "typ_p", "p": "top_p", "s": "top_n_sigma", "m": "min_p", "t": "temperature",
    "x": "xtc", "e": "penalties",
}  # fmt: skip


class SamplerFields(Guided):
    """Samplers beyond the usual ones, and tokens that may or may not come: the names of llama.cpp and vLLM."""

    samplers: Annotated[list[str], Meta(max_length=32)] | Annotated[str, Meta(max_length=256)] | None = None
    typical_p: Share | None = None
    top_n_sigma: Annotated[float, Meta(ge=-1, le=1e6)] | None = None
    xtc_probability: Share | None = None
    xtc_threshold: Share | None = None
    dry_multiplier: Amount | None = None
    dry_base: Annotated[float, Meta(ge=0, le=1e6)] | None = None  # below 1: as it is without it
    dry_allowed_length: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)] | None = None
    dry_penalty_last_n: LastTokens | None = None
    dry_sequence_breakers: SamplerTexts | None = None
    mirostat: Annotated[int, Meta(ge=0, le=2)] | None = None
    mirostat_mode: Annotated[int, Meta(ge=0, le=2)] | None = None  # the same
    mirostat_tau: Annotated[float, Meta(ge=0, le=100)] | None = None
    mirostat_eta: Annotated[float, Meta(ge=0, le=100)] | None = None
    dynatemp_range: Amount | None = None
    dynatemp_exponent: Amount | None = None
    no_repeat_ngram_size: Annotated[int, Meta(ge=0, le=MAX_NGRAM)] | None = None
    bad_words: SamplerTexts | None = None
    allowed_words: SamplerTexts | None = None
    allowed_token_ids: TokenIdList | None = None
    banned_token_ids: TokenIdList | None = None

    def sampler_options(self) -> dict[str, Any]:
        """The same by the names of `LLM.generate`."""
        mode = self.mirostat if self.mirostat is not None else self.mirostat_mode
        return given(
            samplers=read_samplers(self.samplers), typical_p=typical(self.typical_p), top_n_sigma=self.top_n_sigma,
            xtc_probability=self.xtc_probability, xtc_threshold=self.xtc_threshold,
            dry_multiplier=self.dry_multiplier, dry_base=None if (self.dry_base or 0) < 1 else self.dry_base,
            dry_allowed_length=self.dry_allowed_length, dry_penalty_last_n=self.dry_penalty_last_n,
            dry_sequence_breakers=self.dry_sequence_breakers, mirostat=mirostat_version(mode),
            mirostat_tau=self.mirostat_tau, mirostat_eta=self.mirostat_eta, dynatemp_range=self.dynatemp_range,
            dynatemp_exponent=self.dynatemp_exponent, no_repeat_ngram_size=self.no_repeat_ngram_size,
            bad_words=self.bad_words or None, allowed_words=self.allowed_words or None,
            allowed_token_ids=self.allowed_token_ids or None, banned_token_ids=self.banned_token_ids or None,
        )  # fmt: skip


def typical(share: float | None) -> float | None:
    """`typical_p` as the engine takes it; 0 is off too, as llama.cpp's clients send it."""
    return 1.0 if share == 0 else share


def mirostat_version(version: int | None, field: str = "mirostat") -> int | None:
    """Versions 0 and 2; 1 is refused."""
    if version == 1:
        raise unsupported(field, "use 2 or leave it out; version 1 is not supported")
    return version


def read_samplers(samplers: list[str] | str | None) -> list[str] | None:
    """Names of samplers: a list, names between semicolons, or llama.cpp's letters.

    >>> read_samplers("top_k;temperature"), read_samplers("kt"), read_samplers(["top_k"]), read_samplers([])
    (['top_k', 'temperature'], ['top_k', 'temperature'], ['top_k'], None)
    """
    if not samplers:
        return None
    if isinstance(samplers, list):
        return samplers
    if samplers.isalpha() and set(samplers) <= LETTERS.keys():
        return [LETTERS[letter] for letter in samplers]
    return [part.strip() for part in samplers.split(";") if part.strip()]
