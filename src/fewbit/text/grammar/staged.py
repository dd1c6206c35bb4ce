"""Constraints for outputs of which a part is free text: calls among text, and answers after a thought."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ...arrays import Words
from ...errors import RequestError
from .constraint import StepwiseConstraint
from .grammar import Grammar
from .triggers import TriggerWatch
from .vocabulary import GrammarVocabulary

MAX_SPACE = 8  # bytes of whitespace between a thought and what follows


class Trigger(NamedTuple):
    """A text that begins a grammar, such as "<tool_call>", and the grammar of what follows it."""

    text: str
    grammar: Grammar


@dataclass(frozen=True)
class Stage:
    """What the outputs of one staged constraint have in common.

    Attributes:
        watch: What ends the free text.
        repeats: The text is free again after the constraint that follows.
        end: The text that is forced after `max_tokens` tokens of free text.
        needs_end: The output may not end while the text is free.
    """

    watch: TriggerWatch
    vocabulary: GrammarVocabulary
    repeats: bool = False
    end: str = ""
    max_tokens: int | None = None
    needs_end: bool = False

    def free_mask(self, tail: bytes) -> Words | None:
        """The tokens that may follow in free text."""
        if tail not in self._masks:
            refused = self.watch.refused(tail) + (self.vocabulary.eos_ids if self.needs_end else [])
            self._masks[tail] = self.vocabulary.words_without(refused) if refused else None
        return self._masks[tail]

    @cached_property
    def _masks(self) -> dict[bytes, Words | None]:
        return {}


class StagedState(NamedTuple):
    """Where an output is.

    Attributes:
        tail: In free text, its end that may be the start of a trigger.
        inner: The constraint after a trigger; None in free text.
        space: Bytes of whitespace that may still come before what `inner` holds.
        num_free: Tokens of free text so far.
        forced: Tokens left of the end that is forced.
        is_open: Nothing is held any more.
        partial: Bytes that a character still needs.
    """

    tail: bytes = b""
    inner: StepwiseConstraint | None = None
    space: int = 0
    num_free: int = 0
    forced: tuple[int, ...] = ()
    is_open: bool = False
    partial: int = 0


class StagedConstraint:
    """Free text up to a trigger, then a constraint. The mask is None while all tokens are allowed."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._state = self._with_forced(StagedState())
        self._history: list[tuple[StagedState, bool]] = []  # before each token, and whether `inner` took it

    def mask(self) -> Words | None:
        """The tokens that may come next; None: all."""
        state, stage = self._state, self._stage
        if state.is_open:
            return None
        if state.forced:
            return stage.vocabulary.words([state.forced[0]])
        if state.inner is None:
            return stage.free_mask(state.tail)
        mask = state.inner.mask()
        return mask if mask is None or not state.space else mask | stage.vocabulary.whitespace

    def accept(self, token: int) -> None:
        """A token of the output."""
        if self._state.inner is not None:
            self._accept_inner(token)
        elif self._state.forced and token != self._state.forced[0]:
            raise RequestError(f"token {token} is not the forced token {self._state.forced[0]}")
        elif not self._feed(self._stage.vocabulary.bytes[token]):
            raise RequestError(f"token {token} begins a grammar that does not allow the rest of the token")

    def accept_bytes(self, data: bytes) -> bool:
        """Take bytes like a token. If they do not fit, nothing changes."""
        state = self._state
        if state.inner is None:
            return self._feed(data)
        if not state.inner.accept_bytes(data):
            return False
        self._enter(state._replace(space=0), inner_took=True)
        return True

    def forced(self) -> Sequence[int]:
        """The tokens that must come next; none if there is a choice."""
        state = self._state
        if state.inner is not None and not state.space:
            return state.inner.forced()
        return state.forced

    @property
    def is_finished(self) -> bool:
        """Whether nothing may follow."""
        return self._state.inner is not None and self._state.inner.is_finished

    def rollback(self, count: int) -> None:
        """Take back the last tokens."""
        if count > len(self._history):
            raise RequestError(f"cannot take back {count} tokens, there were {len(self._history)}")
        for _ in range(count):
            self._state, inner_took = self._history.pop()
            if inner_took and self._state.inner is not None:
                self._state.inner.rollback(1)

    def _accept_inner(self, token: int) -> None:
        state = self._state
        assert state.inner is not None
        data = self._stage.vocabulary.bytes[token]
        if state.space and data.isspace() and not _allows(state.inner.mask(), token):
            if len(data) > state.space:
                raise RequestError(f"token {token} is more whitespace than may stand here")
            self._enter(state._replace(space=state.space - len(data)), inner_took=False)
            return
        state.inner.accept(token)
        self._enter(state._replace(space=0), inner_took=True)

    def _feed(self, data: bytes) -> bool:
        """Take bytes of free text, unless they begin a grammar that does not allow the rest of them."""
        state, watch = self._state, self._stage.watch
        if state.is_open:
            self._enter(state, inner_took=False)
            return True
        found = watch.feed(state.tail, data)
        if found.trigger is None:
            self._enter(
                state._replace(
                    tail=found.tail,
                    num_free=state.num_free + 1,
                    forced=state.forced[1:],
                    partial=_missing_bytes(state.partial, data),
                ),
                inner_took=False,
            )
            return True
        inner, took = watch.follow(found)
        if not took and not (watch.allows_space and found.rest.isspace()):
            return False
        space = 0 if not watch.allows_space or (took and found.rest) else max(MAX_SPACE - len(found.rest), 0)
        self._enter(StagedState(inner=inner, space=space, is_open=inner is None), inner_took=False)
        return True

    def _enter(self, state: StagedState, inner_took: bool) -> None:
        """Go on to the state after a token."""
        self._history.append((self._state, inner_took))
        if state.inner is not None and state.inner.is_finished and self._stage.repeats:
            state = StagedState()
        self._state = self._with_forced(state)

    def _with_forced(self, state: StagedState) -> StagedState:
        """The same state, with the end forced if the free text has had all its tokens."""
        limit, is_free = self._stage.max_tokens, state.inner is None and not state.is_open
        if limit is None or not is_free or state.forced or state.partial or state.num_free < limit:
            return state
        rest = self._stage.end.encode()[len(state.tail) :].decode("utf-8", "ignore")
        marker = self._stage.vocabulary.marker(rest) if rest else []
        return state._replace(forced=tuple(marker))


def _allows(mask: Words | None, token: int) -> bool:
    return mask is None or bool(int(mask[token // 32]) >> (token % 32) & 1)


def _missing_bytes(missing: int, data: bytes) -> int:
    """How many bytes a character still needs after `data`, if it needed `missing` before.

    >>> _missing_bytes(0, b"a\\xe2\\x82"), _missing_bytes(1, b"\\xac")
    (1, 0)
    """
    for byte in data:
        if byte < 0x80 or byte >= 0xF8:
            missing = 0
        elif byte < 0xC0:
            missing = max(missing - 1, 0)
        else:
            missing = 1 + (byte >= 0xE0) + (byte >= 0xF0)
    return missing
