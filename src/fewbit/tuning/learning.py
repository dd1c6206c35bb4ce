"""Learning from feedback: an adapter is trained on votes, and used only if it is better on those held out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from os import PathLike
from typing import Any

from ..errors import RequestError
from ..files.adapter_versions import AdapterVersion, AdapterVersions
from ..files.feedback import MIN_RATED, FeedbackStore, RatedAnswer
from .data import ExampleReader
from .lora import Lora, choose_modules
from .model import TrainableModel
from .preferences import preference_samples
from .samples import Sample
from .saving import saved_adapter
from .trainer import Progress, Trainer, TrainingOptions
from .tuned import open_trainable, train_adapter


def tune_from_feedback(
    model: str | PathLike[str],
    feedback: str | PathLike[str],
    out: str | PathLike[str],
    *,
    held_out: float = 0.2,
    max_tokens: int = 1024,
    modules: Sequence[str] | None = None,
    answers_of: str | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> AdapterVersion:
    """Train the next version of an adapter on rated answers, and use it if it is better than the one in use.

    Each version begins anew, from all votes. Better means: a lower loss on the votes that were held out. If training is
    stopped, the next call goes on from its last checkpoint, or begins again if there are other votes by then.

    Args:
        model: As for `fb.LLM`.
        feedback: The SQLite file of `fewbit serve --feedback`.
        out: The folder of the versions.
        held_out: Share of the conversations whose votes are not learned.
        max_tokens: Longer conversations are cut at their end.
        modules: Linear layers to train; all of them if not given.
        answers_of: The name of a model: only its answers count, and those by its adapters.
        threads: Number of threads. Defaults to all usable cores.
        progress: Called with (what, steps done, steps in total).
        options: See `TrainingOptions`.
    """
    settings = TrainingOptions(**options)
    if not 0 < held_out < 1:
        raise RequestError(f"held_out must be above 0 and below 1 to compare versions, got {held_out}")
    now, store = time.time(), FeedbackStore(feedback)
    rated = store.rated(answers_of)
    store.close()
    if len(rated) < MIN_RATED:
        raise RequestError(f"{feedback} has {len(rated)} rated answers; at least {MIN_RATED} are needed to learn from")
    learned, kept = held_out_by_conversation(rated, held_out)
    versions = AdapterVersions(out)
    with versions.training():
        base = open_trainable(model, threads)
        chosen = choose_modules(base.modules, modules, base.file.architecture)
        lora = Lora(chosen, settings.rank, settings.alpha, settings.seed)
        reader = ExampleReader(base.tokenizer, min(max_tokens, base.config.ctx))
        samples, compared = (_samples(part, reader, base, settings.seed) for part in (learned, kept))
        name = versions.next_name()
        train_adapter(base, lora, samples, compared, settings, versions.folder / name, progress, anew=True)
        version = AdapterVersion(name, len(rated), _loss(base, lora, compared, settings), 0.0, False, now)
        return _added(versions, version, base, compared, settings)


def held_out_by_conversation(rated: Sequence[RatedAnswer], share: float) -> tuple[list[RatedAnswer], list[RatedAnswer]]:
    """Answers to learn from and held-out ones. A conversation that is held out once is so for each version: none of
    them has learned what they are compared by."""
    places = {one.conversation: _place(one.conversation) for one in rated}
    if len(places) < 2:
        raise RequestError("all votes are of one conversation: there is nothing to hold out")
    ordered = sorted(places.values())
    bound = min(max(share, ordered[0]), ordered[-2])  # at least one conversation in each part
    learned = [one for one in rated if places[one.conversation] > bound]
    return learned, [one for one in rated if places[one.conversation] <= bound]


def _place(text: str) -> float:
    """A number from 0 to 1, always the same for a text."""
    return int.from_bytes(blake2b(text.encode(), digest_size=6).digest(), "big") / (1 << 48)


def _samples(rated: Sequence[RatedAnswer], reader: ExampleReader, base: TrainableModel, seed: int) -> list[Sample]:
    return [sample for group in preference_samples(rated, reader, base, seed) for sample in group]


def _added(
    versions: AdapterVersions, version: AdapterVersion, base: TrainableModel, kept: Sequence[Sample],
    options: TrainingOptions,
) -> AdapterVersion:  # fmt: skip
    """A version, compared with the one that is in use now."""
    in_use = AdapterVersions(versions.folder)
    before = _loss_in_use(base, in_use, kept, options)
    version = replace(version, previous_loss=before, is_better=version.loss < before)
    versions.add(version, compared_to=in_use.current)
    return version


def _loss(base: TrainableModel, lora: Lora, samples: Sequence[Sample], options: TrainingOptions) -> float:
    return Trainer(base, lora, samples, [], options).loss(samples)


def _loss_in_use(
    base: TrainableModel, versions: AdapterVersions, samples: Sequence[Sample], options: TrainingOptions
) -> float:
    """The loss of the version in use, or of the model alone."""
    path = versions.current_path
    lora = Lora(base.modules[:1], 1) if path is None else saved_adapter(base.modules, path)  # a new one changes nothing
    return _loss(base, lora, samples, options)
