"""Log-probabilities of the engine, with the text of their tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..devices.batch import Logprobs, Top
from ..engine.scores import PositionScores
from ..text.tokenizer import Tokenizer
from .completion import TokenLogprob

_NO_TOP = Top(np.empty(0, np.int32), np.empty(0, np.float32))


def token_logprob(tokenizer: Tokenizer, token: int, logprobs: Logprobs) -> TokenLogprob:
    """A token with its log-probability and the likeliest tokens in its place."""
    pairs = zip(logprobs.tokens.tolist(), logprobs.logprobs.tolist(), strict=True)
    return _record(tokenizer, token, logprobs.own, [_record(tokenizer, *pair) for pair in pairs])


def scored_tokens(tokenizer: Tokenizer, tokens: Sequence[int], scores: PositionScores) -> list[TokenLogprob]:
    """The tokens of a text that are scored so far."""
    targets = tokens[scores.first : scores.num_scored + 1]
    tops = scores.tops[: len(targets)] or [_NO_TOP] * len(targets)
    return [
        token_logprob(tokenizer, token, Logprobs(own, *top))
        for token, own, top in zip(targets, scores.values[: len(targets)].tolist(), tops, strict=True)
    ]


def _record(tokenizer: Tokenizer, token: int, logprob: float, top: Sequence[TokenLogprob] = ()) -> TokenLogprob:
    data = tokenizer.token_bytes(token)
    return TokenLogprob(token, logprob, data.decode("utf-8", "replace"), data, list(top))
