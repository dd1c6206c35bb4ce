"""Measures models for a report, and writes it."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from ..errors import PathError, RequestError
from ..evaluation import Evaluation, calibrate, evaluate
from ..evaluation.variants import Source
from ..evaluation.windows import Text, read_tokens
from ..files.imatrix import ImportanceMatrix
from ..llm.progress import Progress, ProgressMeter
from .figures import draw_all
from .page import page
from .weights import WeightFigures, matrix_names, weight_figures

REFERENCE_TOP = 4096  # tokens of the reference that are compared at each position
KV_WINDOW = 2048  # tokens, for KV formats by depth


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What was measured of one model; `evaluation` is None without a text."""

    name: str
    file_bytes: int
    weights: WeightFigures
    evaluation: Evaluation | None


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of several models.

    Args:
        models: The models.
        reference: Name of the reference, if there is one.
        reference_evaluation: The reference over the same text.
        kv: The first model with other formats of the KV cache, beside itself with f16.
        text_tokens: Tokens of the text; 0 without one.
    """

    models: Sequence[ModelReport]
    reference: str | None
    reference_evaluation: Evaluation | None
    kv: Sequence[Evaluation]
    text_tokens: int

    def html(self) -> str:
        """One page that fetches nothing, with a light and a dark theme."""
        return page(self, draw_all(self))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the page. It appears under its name when it is complete.

        Args:
            path: The HTML file.
        """
        _write(Path(path), self.html())

    def save_svgs(self, folder: str | PathLike[str]) -> list[Path]:
        """Write each chart as an SVG file.

        Args:
            folder: Where to; it is made if it is missing.
        """
        place = Path(folder)
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PathError(f"{place}: cannot be written: {error.strerror or error}") from None
        paths = []
        for chart in draw_all(self):
            paths.append(place / f"{chart.name}.svg")
            _write(paths[-1], chart.drawing.standalone())
        return paths


def report(
    models: Sequence[str | PathLike[str]],
    text: Text | None = None,
    *,
    reference: str | PathLike[str] | None = None,
    kv: Sequence[str] = ("q8_0", "q4_0"),
    ctx: int = 512,
    activations: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
    progress: Progress = False,
) -> Report:
    """Measure models: sizes, errors of weights, and with a text perplexity, KL divergence and formats of the KV cache.

    Args:
        models: Models, usually the same one in several formats.
        text: Text, the path of a text file, or token ids. Without one only weights are looked at.
        reference: The model that they were made of, or the one with the most bits.
        kv: Formats of the KV cache to compare with f16, on the first model.
        ctx: Tokens of a window.
        activations: Precision of the inputs of matrix products.
        device: Where models run.
        threads: Number of threads.
        progress: True for lines on standard error, or a function that is called with (done, total).
    """
    if not models:
        raise RequestError("a report needs at least one model")
    imatrix, base, tokens = None, None, 0
    kv_found: list[Evaluation] = []
    measured: list[Evaluation | None] = [None] * len(models)
    if text is not None:
        run = _TextRun(text, ctx, activations, device, threads, progress)
        tokens = run.count_tokens(models[0])
        kv_found = run.kv(models[0], list(kv), tokens) if kv else []
        imatrix = None if reference is None else run.importance(reference)
        base, measured = run.against(reference, models)
    figures = _weights(models, reference, imatrix, progress)
    reports = [ModelReport(*parts, one) for parts, one in zip(figures, measured, strict=True)]
    name = None if reference is None else _name(reference)
    return Report(reports, name, base, kv_found, tokens)


@dataclass(frozen=True, slots=True)
class _TextRun:
    """What is measured by running models over a text."""

    text: Text
    ctx: int
    activations: str | None
    device: str
    threads: int | None
    progress: Progress

    def count_tokens(self, model: str | PathLike[str]) -> int:
        with closing(Source(model)) as source:
            return len(read_tokens(self.text, source.tokenizer))

    def importance(self, reference: str | PathLike[str]) -> ImportanceMatrix:
        options = {"device": self.device, "threads": self.threads, "progress": self.progress}
        return calibrate(reference, self.text, ctx=self.ctx, **options).imatrix  # type: ignore[arg-type]

    def against(
        self, reference: str | PathLike[str] | None, models: Sequence[str | PathLike[str]]
    ) -> tuple[Evaluation | None, list[Evaluation | None]]:
        """The reference, which runs once, and each model beside it."""
        if reference is None:
            return None, [self._evaluate(model)[0] for model in models]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "logits.gguf"
            exact = "int16" if self.device == "cpu" else None
            base = evaluate(
                reference, self.text, save=path, top=REFERENCE_TOP, ctx=self.ctx, activations=exact, device=self.device,
                threads=self.threads, progress=self.progress,
            )  # fmt: skip
            return base[0], [self._evaluate(model, path)[0] for model in models]

    def kv(self, model: str | PathLike[str], formats: list[str], tokens: int) -> list[Evaluation]:
        """A model with other KV caches, beside itself with f16, over windows that are as long as possible."""
        with closing(Source(model)) as source:
            longest = int(source.file.config.get("context_length", KV_WINDOW))
        exact = "int16" if self.device == "cpu" else None
        return evaluate(
            model, self.text, against=model, kv=formats, ctx=min(KV_WINDOW, longest, max(2, tokens)), skip=1,
            activations=exact, device=self.device, threads=self.threads, progress=self.progress,
        )  # fmt: skip

    def _evaluate(self, model: str | PathLike[str], logits: Path | None = None) -> list[Evaluation]:
        return evaluate(
            model, self.text, logits=logits, ctx=self.ctx, activations=self.activations, device=self.device,
            threads=self.threads, progress=self.progress,
        )  # fmt: skip


def _weights(
    models: Sequence[str | PathLike[str]], reference: str | PathLike[str] | None, imatrix: ImportanceMatrix | None,
    progress: Progress,
) -> list[tuple[str, int, WeightFigures]]:  # fmt: skip
    """Name, size and figures of weights of each model."""
    with ExitStack() as stack:
        base = None if reference is None else stack.enter_context(closing(Source(reference))).file
        sources = [stack.enter_context(closing(Source(model))) for model in models]
        total = sum(len(matrix_names(source.file)) for source in sources)
        meter = stack.enter_context(closing(ProgressMeter(progress, total, "matrices")))
        found = []
        for source, model in zip(sources, models, strict=True):
            figures = weight_figures(source.file, base, imatrix, lambda: meter.add(0))
            found.append((_name(model), source.file_bytes, figures))
        return found


def _name(model: str | PathLike[str]) -> str:
    """The name of a model in a report: its file's, without the folder."""
    path = Path(model)
    return path.stem if path.suffix == ".gguf" else path.name


def _write(path: Path, text: str) -> None:
    """Write a file, atomically."""
    hidden = path.parent / f".fewbit-{secrets.token_hex(8)}"
    try:
        hidden.write_text(text, encoding="utf-8")
        os.replace(hidden, path)
    except OSError as error:
        raise PathError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        hidden.unlink(missing_ok=True)
