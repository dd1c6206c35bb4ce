"""What a model wrote."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, how likely it was, and the likeliest ones in its place."""

    token: int
    logprob: float
    text: str  # U+FFFD for what is no whole character
    bytes: bytes
    top: list[TokenLogprob] = field(default_factory=list)  # likeliest first

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values, for JSON; -inf, which JSON does not know, is None."""
        return {
            "token": self.token,
            "logprob": self.logprob if isfinite(self.logprob) else None,
            "text": self.text,
            "bytes": list(self.bytes),
            "top": [of.to_dict() for of in self.top],
        }


@dataclass(frozen=True, slots=True)
class Completion:
    """An output; `str` gives its text.

    >>> output = Completion("Hello!", [19556, 17], "stop", prompt_tokens=12, prefill_seconds=0.5)
    >>> str(output), output.prefill_tokens_per_second
    ('Hello!', 24.0)
    """

    text: str
    tokens: list[int]  # without the one that ended it
    finish_reason: (
        str  # "stop": by itself or at a stop string; "length"; "deadline"; of a stream also "cancelled", "error"
    )
    logprobs: list[TokenLogprob] | None = None  # one for each token
    stop_token: int | None = None  # that ended it, where a token did
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, known from before
    prefill_seconds: float = 0.0  # until the first token
    decode_seconds: float = 0.0  # from there to the end
    prompt_logprobs: list[TokenLogprob | None] | None = None  # of the prompt's tokens, if asked for; the first has none

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values, for JSON; bytes are lists of numbers.

        >>> Completion("Hi", [7], "stop").to_dict()["tokens"]
        [7]
        """
        found = asdict(self)
        found["logprobs"] = None if self.logprobs is None else [of.to_dict() for of in self.logprobs]
        if self.prompt_logprobs is not None:
            found["prompt_logprobs"] = [one and one.to_dict() for one in self.prompt_logprobs]
        return found

    @property
    def prefill_tokens_per_second(self) -> float:
        """Tokens of the prompt that were run, in a second; 0 if none was."""
        return _rate(self.prompt_tokens - self.cached_tokens, self.prefill_seconds)

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens after the first, in a second; 0 if there was none."""
        return _rate(len(self.tokens) - 1, self.decode_seconds)


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if tokens > 0 and seconds > 0 else 0.0
