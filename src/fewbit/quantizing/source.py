"""What is quantized: a model of text, or the image encoder of one that sees."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from ..encoding import open_encoder
from ..errors import FewbitError, FileError
from ..files.hub import find
from ..files.hub.folder import Progress
from ..files.model import ModelFile
from ..models import open_model
from ..models.directory import Directory
from ..models.vision import ENCODER
from ..models.vision.folder import has_vision_config, open_vision_folder


def open_source(model: str | os.PathLike[str] | ModelFile, progress: Progress | None, mmproj: bool) -> ModelFile:
    """The model to quantize; with `mmproj` the image encoder."""
    file = _opened(model, progress, mmproj) if isinstance(model, str | os.PathLike) else model
    if mmproj and file.architecture != ENCODER:
        raise FileError(f"{file.path}: this is no image encoder, it is a {file.architecture} model")
    if not mmproj and file.architecture == ENCODER:
        raise FileError(f"{file.path}: this is an image encoder, not a model of text; the option mmproj quantizes it")
    if not mmproj and isinstance(file, Directory) and has_vision_config(file.path):
        hint = "; `mmproj` writes that" if _is_known(file.path) else ""
        warnings.warn(f"{file.path}: only the text model is written, not its image encoder{hint}", stacklevel=5)
    return file


def _opened(model: str | os.PathLike[str], progress: Progress | None, mmproj: bool) -> ModelFile:
    path = find(model, progress=progress)
    if not mmproj:
        return open_model(path)
    return open_encoder(path.parent if path.name == "config.json" or path.suffix == ".safetensors" else path)


def _is_known(folder: Path) -> bool:
    try:
        return open_vision_folder(folder) is not None
    except FewbitError:
        return False
