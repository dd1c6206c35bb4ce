"""One file an architecture; its name is the name that GGUF files give it. `load_model` finds the one for a file."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol

from ..errors import FileError
from ..files.model import ModelFile
from ..ops.graph import Graph, Ops, Value, record
from .checkpoint import Checkpoint, Prepare
from .config import Config

_PARTS = ("checkpoint", "config", "layers", "rotary")  # modules here that are no architecture


class Model(Protocol):
    """Weights, and what is done with them."""

    config: Config

    def forward(self, ops: Ops) -> Value:
        """The logits of the tokens of a step."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model, and what its steps do and read."""

    model: Model
    graph: Graph
    step_bytes: int  # of weights

    @property
    def config(self) -> Config:
        return self.model.config


def architectures() -> list[str]:
    """Names of the architectures that can be run.

    >>> "llama" in architectures()
    True
    """
    return [module.name for module in iter_modules(__path__) if module.name not in _PARTS]


def load_model(file: ModelFile, prepare: Prepare | None = None) -> LoadedModel:
    """The model of a file. Its weights stay where they are, in the memory map, unless `prepare` copies them."""
    name = file.architecture
    if name not in architectures():
        raise FileError(f"{file.path}: architecture {name!r} is not known; there are: {', '.join(architectures())}")
    checkpoint = Checkpoint(file, prepare)
    model: Model = import_module(f".{name}", __name__).Model(checkpoint)
    checkpoint.refuse_unused()
    return LoadedModel(model, record(model.forward), checkpoint.step_bytes)
