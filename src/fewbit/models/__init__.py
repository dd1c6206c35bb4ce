"""One file an architecture; its name is the name that GGUF files give it. `load_model` finds the one for a file."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol

from ..errors import FileError
from ..files.gguf import GGUF
from ..ops.base import Ops, Rows
from .checkpoint import Checkpoint, Prepare
from .config import Config

_PARTS = ("checkpoint", "config", "layers", "rotary")  # modules here that are no architecture


class Model(Protocol):
    """Weights, and what is done with them."""

    config: Config
    weight_bytes: int  # that a step reads

    def forward(self, ops: Ops) -> Rows:
        """The logits of the tokens of a step that are wanted."""


def architectures() -> list[str]:
    """Names of the architectures that can be run.

    >>> "llama" in architectures()
    True
    """
    return [module.name for module in iter_modules(__path__) if module.name not in _PARTS]


def load_model(gguf: GGUF, prepare: Prepare | None = None) -> Model:
    """The model of a file. Its weights stay where they are, in the memory map, unless `prepare` copies them."""
    name = gguf.metadata.get("general.architecture")
    if name not in architectures():
        raise FileError(
            f"{gguf.path}: architecture {name!r} is not known; there are: {', '.join(architectures())}"
            if isinstance(name, str)
            else f"{gguf.path}: general.architecture must be a name, it is {name!r}"
        )
    checkpoint = Checkpoint(gguf, prepare)
    model: Any = import_module(f".{name}", __name__).Model(checkpoint)
    checkpoint.refuse_unused()
    return model  # type: ignore[no-any-return]
