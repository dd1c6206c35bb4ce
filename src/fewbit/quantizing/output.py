"""A quantized model as a GGUF file: its metadata, its identity, and its tensors one after another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from ..files.gguf.reader import GGUF, SPLIT_KEYS
from ..files.gguf.resumable import ResumableGGUF
from ..files.gguf.writer import TensorSpec
from ..files.hub.folder import Progress
from ..files.model import ModelFile
from ..loading import model_fingerprint
from ..models.merged import MergedModel
from ..models.vision import ENCODER
from .moments import Moments
from .pieces import packed_pieces
from .plan import Plan

VERSION = "5"  # of what is written; other files are not gone on with
QUANTIZATION_VERSION = np.uint32(2)  # of the block formats, as llama.cpp counts


def file_metadata(file: ModelFile, file_type: int | None = None) -> dict[str, Any]:
    """The metadata of a model for a GGUF file, in the types that it had, or in those that llama.cpp reads."""
    if isinstance(file, MergedModel):
        file = file.base
    if isinstance(file, GGUF):
        metadata = {key: value for key, value in file.typed_metadata.items() if key not in SPLIT_KEYS}
    else:
        config = {f"{file.architecture}.{name}": _narrow(value) for name, value in file.config.items()}
        kind = {"general.type": "mmproj"} if file.architecture == ENCODER else {}
        metadata = {"general.architecture": file.architecture} | kind | config | dict(file.tokenizer())
    if file_type is not None:
        metadata["general.file_type"] = np.uint32(file_type)
    return metadata | {"general.quantization_version": QUANTIZATION_VERSION}


def _narrow(value: Any) -> Any:
    """Numbers of 64 bits in 32, which all readers take."""
    if isinstance(value, np.ndarray) and value.dtype == np.float64:
        return value.astype(np.float32)
    is_wide = isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.dtype.itemsize == 8
    return value.astype(np.int32) if is_wide and abs(value).max(initial=0) < 1 << 31 else value


def metadata_text(metadata: Mapping[str, Any]) -> str:
    return json.dumps(metadata, sort_keys=True, default=lambda value: [str(part) for part in np.ravel(value)])


def output_file(
    path: Path, file: ModelFile, metadata: Mapping[str, Any], plan: Plan, moments: Moments
) -> ResumableGGUF:
    """The file to write. Its identity follows from the source, the formats and the moments."""
    digest = blake2b(digest_size=16)
    formats = [(item.name, item.source.name, item.format.name) for item in plan.values()]
    digest.update(json.dumps([VERSION, model_fingerprint(file), file.file_bytes, formats]).encode())
    digest.update(moments.digest(list(plan)).encode())
    specs = {item.name: TensorSpec(item.shape, item.format) for item in plan.values()}
    return ResumableGGUF(path, metadata, specs, digest.hexdigest())


def write_tensors(
    out: ResumableGGUF,
    file: ModelFile,
    plan: Plan,
    moments: Moments,
    *,
    what: str,
    report: Progress,
    threads: int | None = None,
) -> int:
    """Write all tensors and complete the file; returns how many were there already."""
    total, done = sum(item.source_bytes for item in plan.values()), 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done = min(done + nbytes, total)  # merged tensors are f32
        report(what, done, total)

    report(what, 0, total)
    with out.opened():
        resumed = len(out.finished)
        for name, item in plan.items():
            if name in out.finished:
                advance(item.source_bytes)
            else:
                out.write(name, packed_pieces(file, item, moments, threads, advance))
        out.commit()
    return resumed
