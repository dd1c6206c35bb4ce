"""Training: optimizer steps over samples, with checkpoints from which a killed run goes on with the same numbers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from io import BytesIO
from json import dumps
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import FewbitError, FileError, RequestError
from ..files.replacing import replace_file
from .lora import Lora
from .model import TrainableModel
from .samples import Sample, as_float, packed, token_count

CHECKPOINT_NAME = "checkpoint.pt"
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class TrainingOptions:
    """How an adapter is trained.

    Args:
        rank: Rank of the adapter.
        alpha: Its change is multiplied by alpha / rank.
        learning_rate: Of AdamW, at its highest.
        epochs: How often each example is learned.
        batch: Examples of an optimizer step.
        step_tokens: Tokens that run at once: a batch of more is added up in parts.
        warmup: Share of all steps in which the learning rate rises; then it falls as a cosine.
        clip: Largest norm of a gradient.
        weight_decay: Of AdamW.
        seed: Of the adapter's begin and of the order of examples.
        checkpoint_steps: A checkpoint is written after so many steps.
    """

    rank: int = 16
    alpha: float = 32.0
    learning_rate: float = 2e-4
    epochs: int = 3
    batch: int = 8
    step_tokens: int = 512
    warmup: float = 0.1
    clip: float = 1.0
    weight_decay: float = 0.0
    seed: int = 0
    checkpoint_steps: int = 20

    def __post_init__(self) -> None:
        for name in ("rank", "epochs", "batch", "step_tokens", "checkpoint_steps"):
            if getattr(self, name) < 1:
                raise RequestError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("alpha", "learning_rate", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise RequestError(f"{name} must be a positive number, got {getattr(self, name)}")
        if not 0 <= self.warmup <= 1 or not 0 <= self.weight_decay < math.inf:
            raise RequestError("warmup must be from 0 to 1, and weight_decay at least 0")


@dataclass
class Curve:
    """What training has done so far: the loss of each step, and on held-out examples after some of them."""

    losses: list[float] = field(default_factory=list)
    held_out: list[tuple[int, float]] = field(default_factory=list)


class Trainer:
    """Trains an adapter on samples.

    Args:
        model: The model.
        lora: The adapter.
        samples: What it learns from.
        held_out: What its loss is measured on.
        options: See `TrainingOptions`.
        folder: Where checkpoints are kept; None: nowhere.
    """

    def __init__(
        self, model: TrainableModel, lora: Lora, samples: Sequence[Sample], held_out: Sequence[Sample],
        options: TrainingOptions, folder: Path | None = None,
    ) -> None:  # fmt: skip
        if not samples:
            raise RequestError("there is nothing to learn from")
        self.model, self.lora, self.samples, self.held_out = model, lora, samples, held_out
        self.options, self.curve = options, Curve()
        self._checkpoint = folder / CHECKPOINT_NAME if folder else None
        self._optimizer = torch.optim.AdamW(
            lora.parameters, lr=options.learning_rate, weight_decay=options.weight_decay, foreach=False
        )

    @property
    def num_steps(self) -> int:
        return self.options.epochs * -(-len(self.samples) // self.options.batch)

    def train(self, progress: Progress | None = None, anew: bool = False) -> Curve:
        """All steps that are still to do. `anew`: begin again if the checkpoint is of other data, or damaged."""
        try:
            done = self.resume()
        except FewbitError:
            if not anew:
                raise
            done = 0
        if not done:
            self._measure(0)
        began, tokens = time.perf_counter(), 0
        for number, batch in enumerate(self._batches()):
            if number < done:
                continue
            self.curve.losses.append(self._step(number, batch))
            tokens += sum(map(token_count, batch))
            if (number + 1) % self.options.checkpoint_steps == 0 and number + 1 < self.num_steps:
                self._measure(number + 1)
                self._save()
            if progress:
                rate = tokens / (time.perf_counter() - began)
                progress(f"loss {self.curve.losses[-1]:.4f}, {rate:.0f} tokens/s", number + 1, self.num_steps)
        if not self.curve.held_out or self.curve.held_out[-1][0] != self.num_steps:
            self._measure(self.num_steps)
        self._save()
        return self.curve

    def loss(self, samples: Sequence[Sample]) -> float:
        """The mean loss of samples."""
        total = 0.0
        with torch.no_grad():
            for part in packed(samples, self.options.step_tokens):
                total += as_float(self._sum_of_losses(part))
        return total / sum(sample.weight for sample in samples)

    def learning_rate(self, step: int) -> float:
        """The learning rate of a step: a ramp, then half a cosine."""
        warm = max(1, round(self.options.warmup * self.num_steps))
        if step < warm:
            return self.options.learning_rate * (step + 1) / warm
        share = (step - warm) / max(1, self.num_steps - warm)
        return self.options.learning_rate * 0.5 * (1 + math.cos(math.pi * share))

    def _batches(self) -> Iterator[list[Sample]]:
        for epoch in range(self.options.epochs):
            order = np.random.default_rng([self.options.seed, epoch]).permutation(len(self.samples))
            for first in range(0, len(order), self.options.batch):
                yield [self.samples[place] for place in order[first : first + self.options.batch]]

    def _step(self, number: int, batch: Sequence[Sample]) -> float:
        """One step of the optimizer; gradients of parts of the batch are added up."""
        weight, total = sum(sample.weight for sample in batch), 0.0
        for part in packed(batch, self.options.step_tokens):
            loss = self._sum_of_losses(part) / weight
            loss.backward()
            total += as_float(loss)
        norm = torch.nn.utils.clip_grad_norm_(self.lora.parameters, self.options.clip, foreach=False)
        if not math.isfinite(as_float(norm)):
            raise RequestError(f"the gradient of step {number + 1} is not finite; a lower learning rate may help")
        for group in self._optimizer.param_groups:
            group["lr"] = self.learning_rate(number)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return total

    def _sum_of_losses(self, samples: Sequence[Sample]) -> Any:
        examples = [example for sample in samples for example in sample.examples]
        scores = iter(self.model.logprobs(examples, self.lora.terms()))
        return sum(sample.loss([next(scores) for _ in sample.examples]) for sample in samples)

    def _measure(self, step: int) -> None:
        if self.held_out:
            self.curve.held_out.append((step, self.loss(self.held_out)))

    def fingerprint(self) -> str:
        """A text that is the same for the same options and samples."""
        digest = blake2b(digest_size=16)
        digest.update(dumps([asdict(self.options), sorted(self.lora.state())]).encode())
        for sample in (*self.samples, *self.held_out):
            digest.update(repr(sample).encode())
        return digest.hexdigest()

    def _save(self) -> None:
        if self._checkpoint is None:
            return
        out = BytesIO()
        state = [matrix.detach() for matrix in self.lora.parameters]
        kept = {"curve": asdict(self.curve), "matrices": state, "optimizer": self._optimizer.state_dict()}
        torch.save({"fingerprint": self.fingerprint(), **kept}, out)
        self._checkpoint.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._checkpoint, out.getvalue())

    def resume(self) -> int:
        """Go on from the checkpoint, if there is one. Returns the number of steps that are done."""
        if self._checkpoint is None or not self._checkpoint.exists():
            return 0
        try:
            kept = torch.load(self._checkpoint, weights_only=True)
            is_same = kept["fingerprint"] == self.fingerprint()
        except Exception as error:  # whatever a damaged file makes torch raise
            raise FileError(f"{self._checkpoint}: the checkpoint is damaged; remove it to begin anew") from error
        if not is_same:
            raise RequestError(
                f"{self._checkpoint} was made with other data or options; train with the same to go on, or remove it"
            )
        with torch.no_grad():
            for matrix, known in zip(self.lora.parameters, kept["matrices"], strict=True):
                matrix.copy_(known)
        self._optimizer.load_state_dict(kept["optimizer"])
        self.curve = Curve(kept["curve"]["losses"], [(step, loss) for step, loss in kept["curve"]["held_out"]])
        return len(self.curve.losses)
