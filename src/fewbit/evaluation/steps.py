"""Runs windows of a text through models, all of them step by step: only the logits of one step are in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from ..arrays import Floats
from ..cache.groups import PAGE_TOKENS
from ..devices.batch import Row
from ..loading import Loaded
from .windows import Window

LOGITS_BYTES = 256 << 20  # of a step, of all models
LEAST_STEP, MOST_STEP = 32, 512  # tokens


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of a window, and how many of the last ones give the logits of a token that is scored."""

    window: int  # its number
    start: int
    end: int
    num_logits: int

    @property
    def targets(self) -> slice:
        """The tokens of the window that are scored."""
        return slice(self.end - self.num_logits + 1, self.end + 1)


@dataclass(frozen=True, slots=True)
class StepValues:
    """What a step gave: chunks, and for each model their rows, valid until the next step, and its seconds."""

    chunks: list[Chunk]
    values: list[Floats]
    seconds: list[float]


def step_tokens(row_values: int, models: int = 1) -> int:
    """Tokens of a step whose result rows have so many values, with bounded memory."""
    return max(LEAST_STEP, min(MOST_STEP, LOGITS_BYTES // (4 * row_values * models)))


def cache_tokens(windows: Sequence[Window], tokens: int) -> int:
    """Tokens that the cache of a model must hold."""
    longest = max(len(window.tokens) for window in windows)
    pages = -(-longest // PAGE_TOKENS) + 1
    return pages * PAGE_TOKENS * windows_in_step(longest, tokens)


def windows_in_step(longest: int, tokens: int) -> int:
    return max(1, tokens // longest)


def run_windows(models: Sequence[Loaded], windows: Sequence[Window], output: str = "logits") -> Iterator[StepValues]:
    """Run all windows through all models, several windows beside each other if they are short.

    Args:
        models: Models with the same tokens.
        windows: What they run.
        output: "logits" of the tokens before those that are scored, or "hidden" rows of all tokens.
    """
    most = min(min(model.executor.max_batched_tokens, model.executor.max_logits) for model in models)
    count = windows_in_step(max(len(window.tokens) for window in windows), most)
    for first in range(0, len(windows), count):
        group = range(first, min(first + count, len(windows)))
        with ExitStack() as stack:
            sequences = [stack.enter_context(_sequences(model, group)) for model in models]
            for chunks in plan_steps({index: _span(windows[index], output) for index in group}, most):
                pairs = zip(models, sequences, strict=True)
                found = [_forward(model, ids, windows, chunks, output) for model, ids in pairs]
                yield StepValues(chunks, [values for values, _ in found], [seconds for _, seconds in found])


def _span(window: Window, output: str) -> tuple[int, int]:
    """How many tokens run, and the first that gives a row. The last token predicts none that is scored."""
    return (len(window.tokens), 0) if output == "hidden" else (len(window.tokens) - 1, window.skip - 1)


def plan_steps(spans: Mapping[int, tuple[int, int]], most: int) -> Iterator[list[Chunk]]:
    """Steps of at most so many tokens.

    Args:
        spans: For each window the number of tokens that run, and the first that gives a row.
        most: Tokens of a step.

    >>> [[(c.window, c.start, c.end, c.num_logits) for c in step] for step in plan_steps({0: (5, 3), 1: (5, 3)}, 4)]
    [[(0, 0, 4, 1)], [(0, 4, 5, 1), (1, 0, 3, 0)], [(1, 3, 5, 2)]]
    """
    step: list[Chunk] = []
    free = most
    for index, (length, first) in spans.items():
        start = 0
        while start < length:
            end = min(length, start + free)
            step.append(Chunk(index, start, end, max(0, end - max(start, first))))
            free, start = free - (end - start), end
            if not free:
                yield step
                step, free = [], most
    if step:
        yield step


@contextmanager
def _sequences(model: Loaded, group: range) -> Iterator[dict[int, int]]:
    """A new sequence for each window."""
    ids: dict[int, int] = {}
    try:
        for index in group:
            ids[index] = model.cache.new()
        yield ids
    finally:
        for sequence in ids.values():
            model.cache.free(sequence)


def _forward(
    model: Loaded, ids: dict[int, int], windows: Sequence[Window], chunks: list[Chunk], output: str
) -> tuple[Floats, float]:
    """The rows of chunks, and the seconds that they took."""
    rows = [Row(ids[c.window], windows[c.window].tokens[c.start : c.end], c.num_logits) for c in chunks]
    started = time.perf_counter()
    values = model.forward(rows, output)
    return values, time.perf_counter() - started
