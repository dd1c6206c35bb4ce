"""Learning from feedback: an adapter is trained on votes, and used only if it is better on those held out."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

from ..errors import RequestError
from ..files.feedback import FeedbackStore, RatedAnswer
from .data import ExampleReader
from .lora import Lora, choose_modules
from .model import TrainableModel
from .preferences import preference_samples
from .samples import Sample
from .saving import saved_adapter
from .trainer import Progress, Trainer, TrainingOptions
from .tuned import divided, open_trainable, train_adapter
from .versions import AdapterVersion, AdapterVersions

MIN_VOTES = 20


def tune_from_feedback(
    model: str | PathLike[str],
    feedback: str | PathLike[str],
    out: str | PathLike[str],
    *,
    held_out: float = 0.2,
    max_tokens: int = 1024,
    modules: Sequence[str] | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> AdapterVersion:
    """Train the next version of an adapter on rated answers, and use it if it is better than the one in use.

    Each version begins anew, from all votes. Better means: a lower loss on the votes that were held out.

    Args:
        model: As for `fb.LLM`.
        feedback: The SQLite file of `fewbit serve --feedback`.
        out: The folder of the versions.
        held_out: Share of the conversations whose votes are not learned.
        max_tokens: Longer conversations are cut at their end.
        modules: Linear layers to train; all of them if not given.
        threads: Number of threads. Defaults to all usable cores.
        progress: Called with (what, steps done, steps in total).
        options: See `TrainingOptions`.
    """
    settings, versions = TrainingOptions(**options), AdapterVersions(out)
    if not 0 < held_out < 1:
        raise RequestError(f"held_out must be above 0 and below 1 to compare versions, got {held_out}")
    store = FeedbackStore(feedback)
    rated = store.rated()
    store.close()
    if len(rated) < MIN_VOTES:
        raise RequestError(f"{feedback} has {len(rated)} rated answers; at least {MIN_VOTES} are needed to learn from")
    base = open_trainable(model, threads)
    learned, kept = _divided(rated, base, max_tokens, held_out, settings.seed)
    chosen = choose_modules(base.modules, modules, base.file.architecture)
    lora = Lora(chosen, settings.rank, settings.alpha, settings.seed)
    name = versions.next_name()
    train_adapter(base, lora, learned, kept, settings, versions.folder / name, progress)
    loss, before = _loss(base, lora, kept, settings), _loss_in_use(base, versions, kept, settings)
    version = AdapterVersion(name, len(rated), loss, before, loss < before)
    versions.add(version)
    return version


def _divided(
    rated: Sequence[RatedAnswer], base: TrainableModel, max_tokens: int, share: float, seed: int
) -> tuple[list[Sample], list[Sample]]:
    """Samples to learn from and held-out ones, by conversation."""
    reader = ExampleReader(base.tokenizer, min(max_tokens, base.config.ctx))
    groups = preference_samples(rated, reader, base, seed)
    if len(groups) < 2:
        raise RequestError("all votes are of one conversation: there is nothing to hold out")
    parts = divided(groups, max(share, 1 / len(groups)), seed)
    learned, kept = ([sample for group in part for sample in group] for part in parts)
    return learned, kept


def _loss(base: TrainableModel, lora: Lora, samples: Sequence[Sample], options: TrainingOptions) -> float:
    return Trainer(base, lora, samples, [], options).loss(samples)


def _loss_in_use(
    base: TrainableModel, versions: AdapterVersions, samples: Sequence[Sample], options: TrainingOptions
) -> float:
    """The loss of the version in use, or of the model alone."""
    path = versions.current_path
    lora = Lora(base.modules[:1], 1) if path is None else saved_adapter(base.modules, path)  # a new one changes nothing
    return _loss(base, lora, samples, options)
