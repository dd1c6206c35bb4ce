"""What an evaluation found: figures for each token, and what is made of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import Doubles, Floats, Ints

PARTS_OF_TEXT = 8
PERCENTILES = (50, 90, 99, 99.9)


@dataclass(frozen=True, slots=True, eq=False)
class TokenScores:
    """Figures for each token that was scored, in the order of the text.

    Args:
        logprobs: Log-probabilities of the tokens that came.
        depths: How many tokens came before each in its window.
        positions: Where each is in the text.
        divergence: KL(reference || model) at each, in nats; None without a reference.
        agrees: Whether both find the same token likeliest.
        reference: The reference's log-probabilities of the tokens that came.
    """

    logprobs: Floats
    depths: Ints
    positions: Ints
    divergence: Doubles | None = None
    agrees: np.ndarray[Any, np.dtype[np.bool_]] | None = None
    reference: Floats | None = None

    def select(self, chosen: Any) -> TokenScores:
        """The figures of some tokens."""
        optional = (self.divergence, self.agrees, self.reference)
        return TokenScores(
            self.logprobs[chosen], self.depths[chosen], self.positions[chosen],
            *(None if values is None else values[chosen] for values in optional),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Divergence:
    """How much a model differs from a reference, in nats a token.

    Args:
        mean: Mean KL divergence.
        error: Standard error of the mean.
        median: Half of all tokens differ less.
        p90: 90% of all tokens differ less.
        p99: 99% of all tokens differ less.
        p999: 99.9% of all tokens differ less.
        max: The largest.
        top1: Share of tokens at which both models find the same token likeliest.
        rms_delta_p: Root mean square of the change of the probability of the token that came.
        reference_perplexity: Perplexity of the reference over the same tokens.
    """

    mean: float
    error: float
    median: float
    p90: float
    p99: float
    p999: float
    max: float
    top1: float
    rms_delta_p: float
    reference_perplexity: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one way to run a model costs.

    Args:
        model: Name of the model.
        format: What its weights were quantized to when it was loaded; None: as they are.
        kv: Format of the KV cache.
        activations: How products took their inputs; None: as the device does by default.
        device: Where it ran.
        threads: Number of threads; None: all.
        file_bytes: Size of the model's file.
        seconds: Time of all steps, without that of the reference.
        run_tokens: Tokens that were run.
        reference: Name of the reference, if there is one.
        scores: Figures for each token.
    """

    model: str
    format: str | None
    kv: str
    activations: str | None
    device: str
    threads: int | None
    file_bytes: int
    seconds: float
    run_tokens: int
    reference: str | None
    scores: TokenScores

    @property
    def tokens(self) -> int:
        """Number of tokens that were scored."""
        return len(self.scores.logprobs)

    @property
    def perplexity(self) -> float:
        return perplexity(self.scores.logprobs)

    @property
    def perplexity_error(self) -> float:
        """Standard error of the perplexity."""
        return self.perplexity * standard_error(self.scores.logprobs)

    @property
    def divergence(self) -> Divergence | None:
        """How much it differs from the reference; None without one."""
        return summarize(self.scores)

    def by_depth(self) -> dict[tuple[int, int], TokenScores]:
        """Figures of tokens by how many tokens came before them, in ranges that double: first and end of each."""
        depths, parts = self.scores.depths, {}
        for begin, end in depth_ranges(int(depths.max(initial=0))):
            chosen = (depths >= begin) & (depths < end)
            if chosen.any():
                parts[begin, end] = self.scores.select(chosen)
        return parts

    def by_position(self, parts: int = PARTS_OF_TEXT) -> list[TokenScores]:
        """Figures of consecutive parts of the text with the same number of tokens.

        Args:
            parts: Number of parts.
        """
        order = np.argsort(self.scores.positions, kind="stable")
        return [self.scores.select(part) for part in np.array_split(order, parts) if len(part)]

    def to_dict(self) -> dict[str, Any]:
        """All figures but those of single tokens, ready for JSON."""
        names = ("model", "format", "kv", "activations", "device", "threads", "file_bytes", "seconds", "run_tokens")
        facts: dict[str, Any] = {name: getattr(self, name) for name in (*names, "reference", "tokens")}
        depths = [{"begin": begin, "end": end, **part_facts(part)} for (begin, end), part in self.by_depth().items()]
        return {
            **facts, "perplexity": self.perplexity, "perplexity_error": self.perplexity_error,
            "divergence": divergence_facts(self.divergence), "by_depth": depths,
            "by_position": [part_facts(part) for part in self.by_position()],
        }  # fmt: skip


def depth_ranges(deepest: int) -> Iterator[tuple[int, int]]:
    """
    >>> list(depth_ranges(300))
    [(0, 64), (64, 128), (128, 256), (256, 512)]
    """
    begin, end = 0, 64
    while begin <= deepest:
        yield begin, end
        begin, end = end, 2 * end


def perplexity(logprobs: Floats) -> float:
    """
    >>> round(perplexity(np.log(np.array([0.5, 0.125], np.float32))), 3)
    4.0
    """
    mean = -float(logprobs.mean(dtype=np.float64)) if len(logprobs) else math.nan
    return math.exp(mean) if mean < 700 else math.inf


def standard_error(values: Floats | Doubles) -> float:
    return float(values.std(dtype=np.float64, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def summarize(scores: TokenScores) -> Divergence | None:
    """The figures of a divergence; None without a reference."""
    values, agrees, reference = scores.divergence, scores.agrees, scores.reference
    if values is None or agrees is None or reference is None or not len(values):
        return None
    change = np.exp(scores.logprobs.astype(np.float64)) - np.exp(reference.astype(np.float64))
    median, p90, p99, p999 = (float(np.percentile(values, p)) for p in PERCENTILES)
    return Divergence(
        float(values.mean()), standard_error(values), median, p90, p99, p999, float(values.max()),
        float(agrees.mean()), float(np.sqrt(np.square(change).mean())), perplexity(reference),
    )  # fmt: skip


def divergence_facts(found: Divergence | None) -> dict[str, float] | None:
    return None if found is None else {name: getattr(found, name) for name in Divergence.__slots__}


def part_facts(part: TokenScores) -> dict[str, Any]:
    found = summarize(part)
    mean = None if found is None else found.mean
    return {"tokens": len(part.logprobs), "perplexity": perplexity(part.logprobs), "divergence": mean}
