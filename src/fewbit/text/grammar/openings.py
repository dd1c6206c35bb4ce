"""A constraint for outputs whose beginning decides what holds the rest: a thought, a call, or an answer at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from ...arrays import Words
from ...errors import RequestError
from .constraint import StepwiseConstraint
from .vocabulary import GrammarVocabulary

Factory: TypeAlias = Callable[[], StepwiseConstraint]


class OpeningMark(NamedTuple):
    """Tokens that an output may begin with, and what makes the constraint of what follows them."""

    tokens: tuple[int, ...]
    follower: Factory


class OpeningState(NamedTuple):
    """Where an output is.

    Args:
        marks: Those that it may still be the beginning of.
        length: Their tokens so far.
        inner: What holds the rest; None while that is open, or if nothing does.
    """

    marks: tuple[OpeningMark, ...]
    length: int = 0
    inner: StepwiseConstraint | None = None


class OpeningConstraint:
    """An output that may begin with marks.

    Args:
        marks: What it may begin with.
        otherwise: Makes the constraint of an output that begins with none of them; None: it is free.
        vocabulary: The tokens of the model.
    """

    def __init__(self, marks: Sequence[OpeningMark], otherwise: Factory | None, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        self._otherwise = None if otherwise is None else otherwise()
        self._state = OpeningState(tuple(marks), inner=self._otherwise)
        self._history: list[tuple[OpeningState, StepwiseConstraint | None]] = []  # before each token, and who took it

    def mask(self) -> Words | None:
        """The tokens that may come next; None: all."""
        state = self._state
        inner = None if state.inner is None else state.inner.mask()
        if not state.marks:
            return inner
        if inner is None and (state.inner is not None or self._is_free):
            return None
        begun = self._vocabulary.words([mark.tokens[state.length] for mark in state.marks])
        return begun if inner is None else inner | begun

    def accept(self, token: int) -> None:
        """A token of the output."""
        state = self._state
        going = tuple(mark for mark in state.marks if mark.tokens[state.length] == token)
        complete = next((mark for mark in going if len(mark.tokens) == state.length + 1), None)
        if complete is not None:
            self._enter(OpeningState((), inner=complete.follower()), None)
        elif going and (state.inner is None or not self._allows(state.inner, token)):
            self._enter(OpeningState(going, state.length + 1), None)
        else:
            self._enter(OpeningState(going, state.length + 1, state.inner), state.inner)
            if state.inner is not None:
                state.inner.accept(token)
            elif not going and not self._is_free:
                raise RequestError(f"token {token} begins nothing that may stand here")

    def accept_bytes(self, data: bytes) -> bool:
        """Take bytes like a token. If they do not fit, nothing changes."""
        state = self._state
        if state.inner is None:
            if not self._is_free:
                return False
            self._enter(OpeningState(()), None)
            return True
        if not state.inner.accept_bytes(data):
            return False
        self._enter(OpeningState((), inner=state.inner), state.inner)
        return True

    def forced(self) -> Sequence[int]:
        """The tokens that must come next; none if there is a choice."""
        state = self._state
        if not state.marks:
            return () if state.inner is None else state.inner.forced()
        if len(state.marks) == 1 and state.inner is None and not self._is_free:
            return state.marks[0].tokens[state.length :]
        return ()

    @property
    def is_finished(self) -> bool:
        """Whether nothing may follow."""
        return not self._state.marks and self._state.inner is not None and self._state.inner.is_finished

    def rollback(self, count: int) -> None:
        """Take back the last tokens."""
        for _ in range(count):
            self._state, taker = self._history.pop()
            if taker is not None:
                taker.rollback(1)

    @property
    def _is_free(self) -> bool:
        """Whether an output may begin with anything else."""
        return self._otherwise is None

    def _allows(self, inner: StepwiseConstraint, token: int) -> bool:
        mask = inner.mask()
        return mask is None or bool(int(mask[token // 32]) >> (token % 32) & 1)

    def _enter(self, state: OpeningState, taker: StepwiseConstraint | None) -> None:
        self._history.append((self._state, taker))
        self._state = state
