"""Requests that read a text and write none: scores of its tokens, or hidden states."""

from __future__ import annotations

import numpy as np

from ..arrays import Floats
from ..devices.batch import AdapterMix, Row, RowResult
from .request import Request, StepRows
from .scores import PositionScores


class Scoring(Request):
    """A text whose tokens are scored from `first` on; there is no output."""

    scores: PositionScores

    def __init__(
        self,
        tokens: list[int],
        namespace: str = "",
        adapter: AdapterMix | None = None,
        num_logprobs: int | None = None,
        first: int = 1,
    ) -> None:
        super().__init__(tokens, namespace, adapter)
        self.scores = PositionScores(len(tokens), first, num_logprobs)

    @property
    def end(self) -> int:
        return len(self.tokens) - 1  # nothing follows the last one

    @property
    def first_needed(self) -> int:
        return self.scores.num_scored

    def ask(self, row: Row, rows: StepRows) -> None:
        row.score = self.scores.ask(self.tokens, row.num_logits)

    def take(self, result: RowResult) -> str | None:
        if result.scores is not None:
            self.scores.receive(result.scores, result.tops)
        return "stop" if self.is_run else None


class Embedding(Request):
    """A text whose last hidden rows are wanted, one for each token, or of the last token alone.

    `hidden` holds those computed so far.
    """

    output = "hidden"

    def __init__(
        self, tokens: list[int], namespace: str = "", adapter: AdapterMix | None = None, *, last_only: bool = False
    ) -> None:
        super().__init__(tokens, namespace, adapter)
        self.hidden: Floats | None = None  # (rows, hidden)
        self.num_embedded = len(tokens) - 1 if last_only else 0  # tokens whose rows are here, or not wanted
        self._skipped = self.num_embedded

    @property
    def first_needed(self) -> int:
        return self.num_embedded

    def ask(self, row: Row, rows: StepRows) -> None:
        row.hidden = True

    def take(self, result: RowResult) -> str | None:
        if result.hidden is not None:
            self._receive(result.hidden)
        return "stop" if self.is_run else None

    def _receive(self, hidden: Floats) -> None:
        if self.hidden is None:
            self.hidden = np.empty((len(self.tokens) - self._skipped, hidden.shape[1]), np.float32)
        first = self.num_embedded - self._skipped
        self.hidden[first : first + len(hidden)] = hidden
        self.num_embedded += len(hidden)
