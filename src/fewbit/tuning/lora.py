"""LoRA adapters in torch: two small matrices beside each chosen product, y + scale * (x A^T) B^T."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import RequestError
from .names import Module
from .operations import Term


@dataclass(eq=False)
class LowRank:
    """The two matrices of a module: `down` (rank, inputs) and `up` (outputs, rank), rows as in transformers."""

    module: Module
    down: Any
    up: Any


class Lora:
    """An adapter that can be trained.

    Args:
        modules: The linear layers that it changes.
        rank: Rank of the change.
        alpha: The change is multiplied by alpha / rank.
        seed: Of the random numbers that A begins with; B begins as zeros.
    """

    def __init__(self, modules: Sequence[Module], rank: int = 16, alpha: float = 32.0, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)
        self.rank, self.alpha = rank, alpha
        self.pairs = [self._pair(module, random) for module in modules]

    def _pair(self, module: Module, random: Any) -> LowRank:
        outputs, inputs = module.shape
        bound = 1 / math.sqrt(inputs)  # as torch and PEFT begin
        down = (2 * torch.rand(self.rank, inputs, generator=random) - 1) * bound
        return LowRank(module, down.requires_grad_(), torch.zeros(outputs, self.rank, requires_grad=True))

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    @property
    def parameters(self) -> list[Any]:
        return [matrix for pair in self.pairs for matrix in (pair.down, pair.up)]

    def terms(self) -> dict[int, Term]:
        """What is added to products, by the `id` of their matrices."""
        return dict(term for pair in self.pairs for term in self._terms_of(pair))

    def _terms_of(self, pair: LowRank) -> Iterator[tuple[int, Term]]:
        order = pair.module.order
        up = pair.up if order is None else pair.up[torch.from_numpy(order)]
        for w, rows in pair.module.parts:

            def term(x: Any, up: Any = up[rows]) -> Any:
                return self.scale * ((x @ pair.down.T) @ up.T)

            yield id(w), term

    def state(self) -> dict[str, Any]:
        """The matrices by their names in PEFT's files."""
        return {
            f"base_model.model.{pair.module.name}.lora_{letter}.weight": matrix.detach()
            for pair in self.pairs
            for letter, matrix in (("A", pair.down), ("B", pair.up))
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take the matrices of another adapter over the same modules."""
        own = self.state()
        if set(own) != set(state) or any(own[name].shape != state[name].shape for name in own):
            raise RequestError("the adapter has other modules or another rank than this one; train with its options")
        for name, matrix in own.items():
            matrix.copy_(torch.as_tensor(state[name]))


def choose_modules(modules: Sequence[Module], kinds: Iterable[str] | None, architecture: str) -> list[Module]:
    """The modules that are trained: those of the given kinds, or all."""
    if not modules:
        raise RequestError(f"{architecture} models have no linear layers that LoRA adapters are named after here")
    known = list(dict.fromkeys(module.kind for module in modules))
    wanted = known if kinds is None else list(kinds)
    unknown = [kind for kind in wanted if kind not in known]
    if unknown:
        raise RequestError(f"there are no modules {', '.join(unknown)}; there are: {', '.join(known)}")
    return [module for module in modules if module.kind in wanted]
