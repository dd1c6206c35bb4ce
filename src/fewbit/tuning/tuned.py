"""`tune`: an adapter from a file of examples."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import torch

from ..errors import PathError, RequestError
from ..files.adapter_versions import CONFIG_NAME
from ..files.hub import find
from ..files.replacing import replace_file
from ..models import open_model
from ..ops.cpu import default_threads
from ..validation import to_path
from .data import ExampleReader
from .lora import Lora, choose_modules
from .model import TrainableModel
from .plot import loss_page
from .samples import Sample, TextSample, token_count
from .saving import save_adapter
from .trainer import CHECKPOINT_NAME, Curve, Progress, Trainer, TrainingOptions

REPORT_NAME, PAGE_NAME = "training.json", "loss.html"
T = TypeVar("T")


@dataclass(frozen=True)
class TunedAdapter:
    """What training has made.

    Args:
        path: The folder of the adapter.
        steps: Steps of the optimizer.
        tokens: Tokens of the examples that it learned from.
        loss: The mean loss of the last ten steps.
        held_out: Losses on held-out examples before and after; None: there were none.
        seconds: How long it took.
        curve: Losses by step.
    """

    path: Path
    steps: int
    tokens: int
    loss: float
    held_out: tuple[float, float] | None
    seconds: float
    curve: Curve


def tune(
    model: str | PathLike[str],
    data: str | PathLike[str],
    out: str | PathLike[str],
    *,
    held_out: float = 0.1,
    max_tokens: int = 1024,
    modules: Sequence[str] | None = None,
    on_prompt: bool = False,
    force: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> TunedAdapter:
    """Train a LoRA adapter on packed weights, and write it as PEFT does.

    If training is stopped, the same call goes on from the last checkpoint in `out`.

    Args:
        model: As for `fb.LLM`: a GGUF file, a folder with safetensors, a URL, hf:org/repo or a name.
        data: JSON lines: {"messages": [...]}, {"prompt": ..., "completion": ...} or {"text": ...}.
        out: The folder to write.
        held_out: Share of the examples that are not learned, and by which the loss is measured.
        max_tokens: Longer examples are cut at their end.
        modules: Linear layers to train, such as "q_proj"; all of them if not given.
        on_prompt: Learn what users say too, not only the answers.
        force: Replace an adapter that is there.
        threads: Number of threads. Defaults to all usable cores.
        progress: Called with (what, steps done, steps in total).
        options: See `TrainingOptions`.

    Returns:
        The adapter's folder and its losses.
    """
    folder, settings = prepared_folder(out, force), TrainingOptions(**options)
    if not 0 <= held_out < 1:
        raise RequestError(f"held_out must be at least 0 and below 1, got {held_out}")
    if max_tokens < 2:
        raise RequestError(f"max_tokens must be at least 2, got {max_tokens}")
    base = open_trainable(model, threads)
    examples = ExampleReader(base.tokenizer, min(max_tokens, base.config.ctx), on_prompt).read(to_path(data))
    learned, kept = divided([TextSample(example) for example in examples], held_out, settings.seed)
    lora = Lora(choose_modules(base.modules, modules, base.file.architecture), settings.rank, settings.alpha,
                settings.seed)  # fmt: skip
    return train_adapter(base, lora, learned, kept, settings, folder, progress)


def open_trainable(model: str | PathLike[str], threads: int | None = None) -> TrainableModel:
    """A model for training; torch takes as many threads as products do."""
    count = default_threads() if threads is None else threads
    torch.set_num_threads(count)
    return TrainableModel(open_model(find(model)), count)


def prepared_folder(out: str | PathLike[str], force: bool) -> Path:
    """The folder of the adapter; one that is finished is only replaced by force."""
    folder = to_path(out)
    if folder.exists() and not folder.is_dir():
        raise PathError(f"{folder} is a file; an adapter is a folder")
    if (folder / CONFIG_NAME).exists():
        if not force:
            raise PathError(f"{folder} has an adapter already; force (--force) replaces it")
        for name in (CONFIG_NAME, CHECKPOINT_NAME):
            (folder / name).unlink(missing_ok=True)
    return folder


def divided(samples: Sequence[T], share: float, seed: int) -> tuple[list[T], list[T]]:
    """Samples to learn from, and those that are held out: a share of them, by chance.

    >>> [len(part) for part in divided(range(10), 0.25, 0)]
    [8, 2]
    """
    count = min(round(len(samples) * share), len(samples) - 1)
    chosen = set(random.Random(seed).sample(range(len(samples)), count))
    learned = [sample for place, sample in enumerate(samples) if place not in chosen]
    return learned, [sample for place, sample in enumerate(samples) if place in chosen]


def train_adapter(
    base: TrainableModel, lora: Lora, learned: Sequence[Sample], held_out: Sequence[Sample],
    options: TrainingOptions, folder: Path, progress: Progress | None = None, anew: bool = False,
) -> TunedAdapter:  # fmt: skip
    """Train an adapter, and write it with its losses. `anew`: a checkpoint of other data is not refused."""
    began = time.perf_counter()
    trainer = Trainer(base, lora, learned, held_out, options, folder)
    curve = trainer.train(progress, anew)
    losses = [loss for _, loss in curve.held_out]
    made = TunedAdapter(
        folder, len(curve.losses), options.epochs * sum(map(token_count, learned)),
        sum(curve.losses[-10:]) / len(curve.losses[-10:]), (losses[0], losses[-1]) if losses else None,
        time.perf_counter() - began, curve,
    )  # fmt: skip
    replace_file(folder / PAGE_NAME, loss_page(f"{folder.name}: training of {base.path.name}", curve).encode())
    report = {"base": str(base.path), "options": asdict(options), **facts(made), "curve": asdict(curve)}
    replace_file(folder / REPORT_NAME, json.dumps(report, indent=2).encode() + b"\n")
    save_adapter(lora, folder, str(base.path))
    (folder / CHECKPOINT_NAME).unlink(missing_ok=True)
    return made


def facts(made: TunedAdapter) -> dict[str, Any]:
    """What a script wants to know."""
    before, after = made.held_out or (None, None)
    return {
        "path": str(made.path),
        "steps": made.steps,
        "tokens": made.tokens,
        "loss": made.loss,
        "held_out_before": before,
        "held_out_after": after,
        "seconds": made.seconds,
    }
