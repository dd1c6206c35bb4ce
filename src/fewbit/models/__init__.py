"""One file an architecture; its name is the one that GGUF files give it, with _ for -. `load_model` finds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from os import PathLike
from pkgutil import iter_modules
from typing import Protocol

from ..errors import FileError
from ..files.model import ModelFile
from ..ops.graph import Graph, Value
from ..ops.recorder import Ops, record
from ..ops.specs import LayerSpec
from ..tensor import QuantTensor
from ..validation import to_path
from .checkpoint import Checkpoint, Prepare, Rows
from .classifier import Classifier
from .config import Config
from .drafting import DraftGraphs, mtp_graphs
from .mtp import MtpLayer

_PARTS = {
    "adapter",
    "altup",
    "checkpoint",
    "classifier",
    "config",
    "decoder",
    "directory",
    "drafting",
    "eagle3",
    "experts",
    "gemma4_parts",
    "layers",
    "lora",
    "merged",
    "mtp",
    "recipes",
    "rope_scaling",
    "rotary",
    "transforms",
    "vision",
}  # no architecture
_UNDERSCORED = {"nemotron_h", "nemotron_h_moe"}  # GGUF writes these names as the modules have them


class Model(Protocol):
    """A model: its weights, and the forward pass over them. Encoders set `has_head = False`."""

    config: Config

    def forward(self, ops: Ops) -> Value:
        """The logits of the tokens of a step, or their hidden rows."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its recorded graph."""

    model: Model
    graph: Graph
    step_bytes: int  # of weights
    matrices: Sequence[tuple[str, QuantTensor]] = ()  # that inputs are multiplied by, and their tensors' names
    places: Mapping[int, tuple[str, Rows | None]] = field(default_factory=dict)  # see `Checkpoint.places`
    drafting: DraftGraphs | None = None  # of what guesses further tokens beside it, see drafting.py

    @property
    def config(self) -> Config:
        return self.model.config

    @property
    def specs(self) -> tuple[LayerSpec, ...]:
        """What each layer keeps of a sequence, that which guesses further tokens included."""
        return self.graph.specs if self.drafting is None else self.drafting.specs

    @property
    def classifier(self) -> Classifier | None:
        """Its head, if it is a classifier or a reranker."""
        return getattr(self.model, "classifier", None)

    @property
    def second_text(self) -> int:
        """What is added to the token ids of the second of two texts."""
        return int(getattr(self.model, "second_text", 0))

    @property
    def is_encoder(self) -> bool:
        """Whether it only embeds whole texts: it has no head, or its attention is not causal."""
        return not (self.graph.has_head and self.graph.is_causal)


def architectures() -> list[str]:
    """Names of the architectures that can be run.

    >>> "llama" in architectures()
    True
    """
    names = (module.name for module in iter_modules(__path__) if module.name not in _PARTS)
    return [name if name in _UNDERSCORED else name.replace("_", "-") for name in names]


def open_model(path: str | PathLike[str]) -> ModelFile:
    """Open a model: a GGUF file (any part of a split one), or a folder with config.json and safetensors files."""
    given = to_path(path)
    if given.name == "config.json" or given.suffix == ".safetensors":
        given = given.parent
    if given.is_dir():
        from .directory import Directory

        return Directory(given, architectures())
    from ..files.gguf import read_gguf

    return read_gguf(given)


def open_text_model(path: str | PathLike[str]) -> ModelFile:
    """The same, but an image encoder is refused."""
    from .vision import ENCODER

    file = open_model(path)
    if file.architecture == ENCODER:
        raise FileError(f"{path}: this is an image encoder; load its model, and name this file as mmproj")
    return file


def load_model(
    file: ModelFile, prepare: Prepare | None = None, ctx: int | None = None, mtp: bool = False,
    head: ModelFile | None = None,
) -> LoadedModel:  # fmt: skip
    """Load the model of a file, for sequences of up to `ctx` tokens (default: its training context).

    Its weights stay where they are, in the memory map, unless `prepare` copies them. With `mtp` the layer that predicts
    a further token is loaded too, with `head` an EAGLE head that does.
    """
    name = file.architecture
    if name not in architectures():
        raise FileError(f"{file.path}: {_unknown(name)}")
    checkpoint = Checkpoint(file, prepare, ctx, mtp)
    model: Model = import_module(f".{name.replace('-', '_')}", __name__).Model(checkpoint)
    checkpoint.refuse_unused()
    graph = record(model.forward, getattr(model, "has_head", True))
    if checkpoint.flag("attention.causal", default=graph.is_causal) != graph.is_causal:
        kind = "do not see" if graph.is_causal else "see"
        raise FileError(f"{file.path}: attention.causal does not fit: tokens of {name} models {kind} later ones")
    drafting = _draft_graphs(model, graph, file, head, prepare) if mtp or head else None
    return LoadedModel(model, graph, checkpoint.step_bytes, checkpoint.matrices, checkpoint.places, drafting)


def open_eagle_head(path: str | PathLike[str]) -> ModelFile | None:
    """The EAGLE head in a folder; None if something else is there."""
    from .directory import Directory, read_config
    from .eagle3 import ARCHITECTURE

    folder = to_path(path)
    config = folder / "config.json"
    if not config.is_file() or read_config(config).get("architectures") != [ARCHITECTURE]:
        return None
    return Directory(folder, ["eagle3"])


def _draft_graphs(
    model: Model, graph: Graph, file: ModelFile, head: ModelFile | None, prepare: Prepare | None
) -> DraftGraphs:
    if head is not None:
        from .eagle3 import read_head

        return read_head(head, model, prepare).graphs(graph)
    layer = getattr(model, "mtp", None)
    if not isinstance(layer, MtpLayer):
        raise FileError(f"{file.path}: the model has no layer that predicts a further token (MTP)")
    return mtp_graphs(graph, layer.forward)


def _unknown(name: str) -> str:
    """
    >>> _unknown("qwen4")
    "architecture 'qwen4' is not known, the nearest that is known is 'qwen3'; to add it, see docs/adding-a-model.md"
    """
    near = get_close_matches(name, architectures(), n=1, cutoff=0.5)
    hint = f"the nearest that is known is {near[0]!r}" if near else f"known are: {', '.join(architectures())}"
    return f"architecture {name!r} is not known, {hint}; to add it, see docs/adding-a-model.md"
