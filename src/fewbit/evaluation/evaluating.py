"""Perplexity of a model, and how much it differs from a reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np

from ..arrays import Floats, Ints
from ..errors import RequestError
from ..llm.progress import Progress, ProgressMeter
from ..load_options import KvFormats
from ..loading import Loaded
from .logprobs import BLOCK_VALUES, TopLogprobs, compare, compare_top, joined, log_softmax, of_targets, top_logprobs
from .results import Evaluation, TokenScores
from .saved import SavedLogits, read_logits, save_logits
from .steps import Chunk, StepValues, run_windows
from .variants import Several, Source, Variant, variants
from .windows import DEFAULT_WINDOW, Text, Window, cut_windows, leading_token, read_tokens

DEFAULT_TOP = 256  # tokens of a row that are saved


def evaluate(
    model: str | PathLike[str],
    text: Text | None = None,
    *,
    against: str | PathLike[str] | None = None,
    logits: str | PathLike[str] | None = None,
    save: str | PathLike[str] | None = None,
    top: int = DEFAULT_TOP,
    ctx: int = DEFAULT_WINDOW,
    stride: int | None = None,
    skip: int | None = None,
    format: Several = None,
    kv: KvFormats | Sequence[KvFormats] = "f16",
    activations: Several = None,
    device: str | Sequence[str] = "cpu",
    threads: int | Sequence[int] | None = None,
    progress: Progress = False,
) -> list[Evaluation]:
    """Perplexity over a text, and KL divergence from a reference: an `Evaluation` for each way to run the model.

    A list for `format`, `kv`, `activations`, `device` or `threads` stands for several choices; every combination is
    evaluated. All combinations with the same weights run side by side, so that the reference runs once for them.

    Args:
        model: The model: whatever `LLM` takes.
        text: Text, the path of a text file, or token ids. Default: the text of `logits`.
        against: A reference model with the same tokenizer, usually the one with the most bits.
        logits: Saved logits of the reference, in its place.
        save: Where to save the logits of the model, so that others can be compared with them.
        top: How many of the likeliest tokens are saved at each position.
        ctx: Tokens of a window.
        stride: Tokens between the starts of two windows, whose last `stride` tokens are scored. Default: windows follow
            each other, and the second half of each is scored, as llama-perplexity does.
        skip: Number of tokens at the start of each window that are not scored. Default: see `stride`.
        format: Format to quantize f32, f16 and bf16 weights to.
        kv: Format of the KV cache.
        activations: Precision of the inputs of matrix products.
        device: Where the model runs.
        threads: Number of threads.
        progress: True for a line on standard error, or a function that is called with (done, total).
    """
    ways = variants(format, kv, activations, device, threads)
    if against is not None and logits is not None:
        raise RequestError("a model is compared with one reference: give against or logits, not both")
    if save is not None and len(ways) > 1:
        raise RequestError(f"logits are saved for one way to run the model, not for {len(ways)}")
    with ExitStack() as stack:
        base = None if against is None else stack.enter_context(closing(Source(against)))
        saved = None if logits is None else read_logits(logits)
        task = _Task(text, ctx, stride, skip, save, top, base, saved)
        found = task.run(model, ways, progress)
    return [found[way] for way in ways]


@dataclass(frozen=True, slots=True)
class _Task:
    """What is run: windows of a text, a reference, and where logits are saved."""

    text: Text | None
    ctx: int
    stride: int | None
    skip: int | None
    save: str | PathLike[str] | None
    top: int
    base: Source | None
    saved: SavedLogits | None

    def run(self, model: str | PathLike[str], ways: list[Variant], progress: Progress) -> dict[Variant, Evaluation]:
        """Run all variants, those with the same weights side by side."""
        formats = dict.fromkeys(way.format for way in ways)
        found: dict[Variant, Evaluation] = {}
        with ExitStack() as stack:
            meter: ProgressMeter | None = None
            for name in formats:
                with closing(Source(model, name)) as source:
                    windows = self.windows(source)
                    if meter is None:
                        total = len(windows) * len(formats)
                        meter = stack.enter_context(closing(ProgressMeter(progress, total, "windows")))
                    run = _Run(self, source, windows, [way for way in ways if way.format == name], meter)
                    self.finish(run)
                    found.update(run.evaluations())
        return found

    def windows(self, source: Source) -> list[Window]:
        """The windows of the text, which the reference must have too."""
        if self.text is not None:
            tokens, first = read_tokens(self.text, source.tokenizer), leading_token(source.tokenizer)
            windows = cut_windows(tokens, self.ctx, stride=self.stride, skip=self.skip, first=first)
        elif self.saved is not None:
            windows = self.saved.windows
        else:
            raise RequestError("there is no text to evaluate the model on")
        self.check(source, windows)
        return windows

    def check(self, source: Source, windows: list[Window]) -> None:
        """Refuse a reference with another tokenizer, or saved logits of another text."""
        name, vocab = self.reference_name, self.reference_vocab
        if vocab not in (None, source.vocab):
            raise RequestError(f"{name} has {vocab} tokens, {source.name} has {source.vocab}: they cannot be compared")
        if self.base is not None and isinstance(self.text, str | PathLike):
            own, other = (read_tokens(self.text, one.tokenizer) for one in (source, self.base))
            if own != other:
                raise RequestError(f"{name} and {source.name} make other tokens of the text: they cannot be compared")
        if self.saved is not None and self.saved.windows != windows:
            raise RequestError(f"{self.saved.path}: its logits are of another text or other windows; leave text out")
        tokens = [token for window in windows for token in window.tokens]
        if min(tokens) < 0 or max(tokens) >= source.vocab:
            raise RequestError(f"the text has tokens that {source.name} does not: it has 0 to {source.vocab - 1}")

    @property
    def reference_name(self) -> str | None:
        return self.base.name if self.base else self.saved.model if self.saved else None

    @property
    def reference_vocab(self) -> int | None:
        return self.base.vocab if self.base else self.saved.vocab if self.saved else None

    def finish(self, run: _Run) -> None:
        """Run all windows, and save what they give."""
        if self.save is not None:
            save_logits(self.save, run.source.name, run.windows, run.source.vocab, self.top, iter(run))
        for _ in run if self.save is None else ():
            pass


class _Collected:
    """The figures of one variant, step by step."""

    def __init__(self, variant: Variant, activations: str | None) -> None:
        self.variant, self.activations, self.seconds = variant, activations, 0.0
        self.parts: list[TokenScores] = []

    def scores(self) -> TokenScores:
        """All figures so far, one after another."""
        columns = {name: [getattr(part, name) for part in self.parts] for name in TokenScores.__slots__}
        found: dict[str, Any] = {name: np.concatenate(parts) for name, parts in columns.items() if parts[0] is not None}
        return TokenScores(**found)


class _Run:
    """Runs variants of one model beside a reference. An iterator over windows: their numbers, and what is saved."""

    def __init__(
        self, task: _Task, source: Source, windows: list[Window], group: Sequence[Variant], meter: ProgressMeter
    ) -> None:
        self.task, self.source, self.windows, self.meter = task, source, windows, meter
        models = len(group) + (task.base is not None)
        self.loaded = [source.load(variant, windows, models) for variant in group]
        used = [source.activations(variant) for variant in group]
        self.collected = [_Collected(*pair) for pair in zip(group, used, strict=True)]
        self.saved_rows: tuple[int, TopLogprobs] | None = None  # of the last window
        self.reference: Loaded | None = None
        if task.base is not None:
            self.reference = task.base.load(reference_variant(group[0]), windows, models)

    def __iter__(self) -> Iterator[tuple[int, TopLogprobs | None]]:
        models = [*self.loaded, self.reference] if self.reference is not None else self.loaded
        rows: list[TopLogprobs] = []
        for step in run_windows(models, self.windows):
            for one, seconds in zip(self.collected, step.seconds, strict=False):
                one.seconds += seconds
            first = 0
            for chunk in step.chunks:
                rows += self._score(step, chunk, first)
                first += chunk.num_logits
                window = self.windows[chunk.window]
                if chunk.end == len(window.tokens) - 1:
                    self.meter.add(len(window.tokens))
                    yield chunk.window, joined(rows) if rows else None
                    rows = []

    def _score(self, step: StepValues, chunk: Chunk, first: int) -> Iterator[TopLogprobs]:
        """Score the tokens of a chunk, whose logits begin at row `first` of the step. Yields what is saved."""
        window = self.windows[chunk.window]
        targets = np.array(window.tokens[chunk.targets], np.int32)
        most = max(1, BLOCK_VALUES // self.source.vocab)
        for begin in range(0, chunk.num_logits, most):
            end = min(begin + most, chunk.num_logits)
            rows = [log_softmax(logits[first + begin : first + end]) for logits in step.values]
            depth = chunk.targets.start + begin
            known = self._reference(rows, chunk.window, depth - window.skip, end - begin)
            depths = np.arange(depth, depth + end - begin, dtype=np.int32)
            for one, logprobs in zip(self.collected, rows, strict=False):
                one.parts.append(scored(logprobs, targets[begin:end], depths, window.start, known))
            if self.task.save is not None:
                yield top_logprobs(rows[0], targets[begin:end], self.task.top)

    def _reference(self, rows: list[Floats], window: int, first: int, count: int) -> Floats | TopLogprobs | None:
        """The rows of the reference beside those of the model."""
        if self.reference is not None:
            return rows[-1]
        if self.task.saved is None:
            return None
        if self.saved_rows is None or self.saved_rows[0] != window:
            self.saved_rows = window, self.task.saved.rows(window)
        return self.saved_rows[1].part(first, first + count)

    def evaluations(self) -> Iterator[tuple[Variant, Evaluation]]:
        name = self.task.reference_name
        for one in self.collected:
            v = one.variant
            yield v, Evaluation(
                model=self.source.name, format=v.format, kv=v.kv_name, activations=one.activations, device=v.device,
                threads=v.threads, file_bytes=self.source.file_bytes, seconds=one.seconds,
                run_tokens=sum(len(window.tokens) - 1 for window in self.windows), reference=name, scores=one.scores(),
            )  # fmt: skip


def reference_variant(variant: Variant) -> Variant:
    """How a reference runs beside a variant: as exactly as is not slow."""
    activations = "int16" if variant.device == "cpu" else None
    return Variant(None, "f16", activations, variant.device, variant.threads)


def scored(
    logprobs: Floats, targets: Ints, depths: Ints, start: int, reference: Floats | TopLogprobs | None
) -> TokenScores:
    """Figures for consecutive tokens of a window that begins at `start` in the text."""
    own = of_targets(logprobs, targets)
    if reference is None:
        return TokenScores(own, depths, depths + np.int32(start))
    if isinstance(reference, TopLogprobs):
        found = compare_top(logprobs, reference)
    else:
        found = compare(logprobs, reference, targets)
    return TokenScores(own, depths, depths + np.int32(start), found.divergence, found.agrees, found.targets)
