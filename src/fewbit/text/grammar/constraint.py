"""A grammar that holds one output, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ...arrays import Words
from ...errors import RequestError
from .holding import one_sentence
from .vocabulary import GrammarVocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher


class StepwiseConstraint(Protocol):
    """A constraint of the engine that can also be given bytes, which came with the end of an earlier token."""

    def mask(self) -> Words | None: ...
    def accept(self, token: int) -> None: ...
    def accept_bytes(self, data: bytes) -> bool: ...
    def forced(self) -> Sequence[int]: ...
    @property
    def is_finished(self) -> bool: ...
    def rollback(self, count: int) -> None: ...


class GrammarConstraint:
    """One output that follows a grammar. Methods are not called at the same time; others may run in other threads."""

    def __init__(self, matcher: LLMatcher, vocabulary: GrammarVocabulary) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._steps: list[int] = []  # tokens that the matcher took at each `accept` and `accept_bytes`

    def mask(self) -> Words | None:
        """The tokens that may come next: bit i % 32 of word i // 32 is token i."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)[: self._vocabulary.num_words]
        if self._matcher.is_error():
            raise RequestError(f"the grammar cannot go on: {_reason(self._matcher)}")
        return mask

    def accept(self, token: int) -> None:
        """A token of the output."""
        if self._matcher.is_stopped() and token in self._vocabulary.eos_ids:
            self._steps.append(0)
            return
        if not self._matcher.consume_token(token):
            raise RequestError(f"the grammar does not allow token {token} here: {_reason(self._matcher)}")
        self._steps.append(1)

    def accept_bytes(self, data: bytes) -> bool:
        """Take bytes like a token. If they do not fit, nothing changes."""
        tokens = self._vocabulary.spell(data)
        if b"".join(self._vocabulary.bytes[token] for token in tokens) != data:
            return False
        taken = self._matcher.try_consume_tokens(tokens)
        if taken < len(tokens):
            self._matcher.rollback(taken)
            return False
        self._steps.append(taken)
        return True

    def forced(self) -> Sequence[int]:
        """The tokens that must come next; none if there is a choice."""
        return () if self._matcher.is_stopped() else self._matcher.compute_ff_tokens()

    @property
    def is_finished(self) -> bool:
        """Whether nothing may follow."""
        return self._matcher.is_stopped()

    def rollback(self, count: int) -> None:
        """Take back the last tokens."""
        if count > len(self._steps):
            raise RequestError(f"cannot take back {count} tokens, there were {len(self._steps)}")
        kept = len(self._steps) - count
        num_tokens = sum(self._steps[kept:])
        del self._steps[kept:]
        if num_tokens and not self._matcher.rollback(num_tokens):
            raise RequestError(f"cannot take back {count} tokens: {_reason(self._matcher)}")


def _reason(matcher: LLMatcher) -> str:
    message = one_sentence(matcher.get_error())
    return "no token of the vocabulary fits" if message == "NoExtensionBias" else message
