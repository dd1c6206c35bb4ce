"""Encoders of images: one small file for each kind, named as `clip.projector_type` names it in GGUF files.

An encoder has two graphs. The tower makes hidden rows of patches; `merge` joins neighbouring ones on the host; and the
projector makes rows of them that stand in the place of tokens' embeddings.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from ...errors import FileError
from ...files.model import ModelFile
from ..checkpoint import Checkpoint, Prepare
from .encoder import VisionModel

__all__ = ["ENCODER", "VisionModel", "load_vision", "projector_type", "projectors"]

ENCODER = "clip"  # what files call the architecture of all of them
_PARTS = {"activation", "adapter", "blocks", "encoder", "folder", "qwen", "siglip"}  # no kinds


def projectors() -> list[str]:
    """The kinds of encoders that can be run.

    >>> "gemma3" in projectors()
    True
    """
    return [module.name for module in iter_modules(__path__) if module.name not in _PARTS]


def projector_type(file: ModelFile) -> str:
    """The kind of encoder that a file says it is. Files that hear too say it for images alone."""
    checkpoint = Checkpoint(file)
    return checkpoint.word("projector_type", default=checkpoint.word("vision.projector_type", default=""))


def load_vision(file: ModelFile, prepare: Prepare | None = None) -> VisionModel:
    """The encoder of a file. Its weights stay in the memory map, unless `prepare` copies them."""
    if file.architecture != ENCODER:
        raise FileError(f"{file.path}: this is no image encoder, it is a {file.architecture} model")
    checkpoint, kind = Checkpoint(file, prepare), projector_type(file)
    name = kind.replace(".", "_")
    if name not in projectors():
        known = ", ".join(projectors())
        raise FileError(f"{file.path}: image encoders with the projector {kind!r} are not known; there are: {known}")
    for prefix in ("a.", "mm.a."):  # audio
        checkpoint.skip(prefix)
    model: VisionModel = import_module(f".{name}", __name__).Model(checkpoint)
    checkpoint.refuse_unused()
    return model
