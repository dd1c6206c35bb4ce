"""A model whose log-probabilities have gradients: its graph in torch, over packed weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ..errors import RequestError
from ..files.model import ModelFile
from ..models import load_model
from ..ops.passes import logits_nodes, select_logits
from ..text.tokenizer import Tokenizer
from .names import Module, find_modules
from .operations import Term, TorchStep, refuse_unknown, run

HEAD_ROWS = 64  # whose logits are in memory at a time


class TokenizedExample(NamedTuple):
    """A sequence, and which of its tokens are learned: `learned[i]` is whether tokens[i] is."""

    tokens: list[int]
    learned: list[bool]

    @property
    def targets(self) -> list[int]:
        """Places of the tokens that are learned; the first token of a text follows nothing."""
        return [place for place, is_learned in enumerate(self.learned) if is_learned and place]


class TrainableModel:
    """A decoder for training.

    Args:
        file: The model's file.
        threads: Number of threads of products. Defaults to all usable cores.
    """

    def __init__(self, file: ModelFile, threads: int | None = None) -> None:
        loaded = load_model(file)
        if loaded.is_encoder:
            raise RequestError(f"{file.path.name} is an encoder: only models that write can be tuned")
        graph = select_logits(loaded.graph)
        self._tail = logits_nodes(graph)
        self._body = [node for node in graph.nodes if node not in self._tail]
        self._rows, self._logits = self._tail[0].inputs[0], graph.result
        refuse_unknown([*self._body, *self._tail], file.architecture)
        self.file, self.threads, self.config = file, threads, loaded.config
        self.tokenizer = Tokenizer.from_metadata(file.tokenizer()).fitted(loaded.config.vocab)
        head = {id(node.attributes.get("w")) for node in self._tail}
        shapes = {name: info.shape for name, info in file.infos.items()}
        matrices = [(name, w) for name, w in loaded.matrices if id(w) not in head]
        self.modules: list[Module] = find_modules(file.architecture, file.config, shapes, matrices)

    @property
    def path(self) -> Path:
        return self.file.path

    def logits(self, tokens: Sequence[int], terms: Mapping[int, Term] | None = None) -> Any:
        """The logits of all tokens of one sequence."""
        step = self._step([tokens], np.arange(len(tokens)), terms)
        rows = run(self._body, self._rows, step)
        return run(self._tail, self._logits, step, {self._rows: rows})

    def logprobs(self, examples: Sequence[TokenizedExample], terms: Mapping[int, Term] | None = None) -> list[Any]:
        """The log-probabilities of the learned tokens of each example, which run in one step."""
        starts = np.cumsum([0, *(len(example.tokens) for example in examples)])
        places = [start + np.array(e.targets, np.int64) for start, e in zip(starts, examples, strict=False)]
        tokens = np.concatenate([np.array(example.tokens, np.int64) for example in examples])
        learned = np.concatenate(places)
        step = self._step([example.tokens for example in examples], learned - 1, terms)
        rows = run(self._body, self._rows, step)
        scored = TokenLogprobs.apply(rows, torch.from_numpy(tokens[learned]), self._head(step))
        return list(torch.split(scored, [len(part) for part in places]))

    def _head(self, step: TorchStep) -> Callable[[Any], Any]:
        return lambda rows: run(self._tail, self._logits, step, {self._rows: rows})

    def _step(self, sequences: Sequence[Sequence[int]], rows: Any, terms: Mapping[int, Term] | None) -> TorchStep:
        starts = np.cumsum([0, *map(len, sequences)]).tolist()
        tokens = np.concatenate([np.array(tokens, np.int64) for tokens in sequences])
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < self.config.vocab:
            raise RequestError(f"there is no such token: the model has the tokens 0 to {self.config.vocab - 1}")
        return TorchStep(tokens, starts, torch.from_numpy(np.asarray(rows, np.int64)), terms or {}, self.threads)


class TokenLogprobs(torch.autograd.Function):  # type: ignore[misc]
    """Log-probabilities of tokens from the rows before the head. Logits are made some rows at a time and not kept:
    each row's gradient is computed with it."""

    @staticmethod
    def forward(ctx: Any, rows: Any, tokens: Any, head: Callable[[Any], Any]) -> Any:
        scores, gradients = [], []
        for part, wanted in _chunks(rows, tokens):
            is_needed = ctx.needs_input_grad[0]
            inputs = part.detach().requires_grad_(is_needed)
            with torch.set_grad_enabled(is_needed):
                score = head(inputs).log_softmax(1).gather(1, wanted[:, None])[:, 0]
                if is_needed:
                    gradients += torch.autograd.grad(score.sum(), inputs)
            scores.append(score.detach())
        ctx.save_for_backward(*([torch.cat(gradients)] if gradients else [torch.zeros_like(rows)]))
        return torch.cat(scores) if scores else rows.new_zeros(0)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, None, None]:
        (gradients,) = ctx.saved_tensors
        return grad[:, None] * gradients, None, None


def _chunks(rows: Any, tokens: Any) -> Iterator[tuple[Any, Any]]:
    yield from zip(rows.split(HEAD_ROWS), tokens.split(HEAD_ROWS), strict=True)
