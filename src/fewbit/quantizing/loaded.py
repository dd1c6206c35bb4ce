"""Quantizing a model when it is loaded, into a GGUF file that is kept in the cache folder."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import FewbitError, FileError
from ..files.gguf import read_gguf
from ..files.hub.folder import Progress, cache_folder, key, locked, make_folder, need_space, silent
from ..files.hub.names import model_name
from ..files.model import ModelFile
from ..loading import model_fingerprint
from .loss import warn_about_loss
from .mixes import read_mix
from .moments import Moments
from .output import VERSION, file_metadata, metadata_text, output_file, write_tensors
from .plan import fallback_text, packed_format, plan_tensors


def quantized(file: ModelFile, format: str, keep: bool = True, progress: Progress | None = None) -> ModelFile:
    """The model of a file in another format, as a GGUF file in the cache folder: made once, found from then on.

    Without `keep` a new file is deleted as soon as nobody uses it; one that was kept earlier is used and stays.
    It warns of matrices that fall back to another format when it makes the file, and of formats that spoil the model.

    Args:
        file: A model with weights in f32, f16 or bf16; tensors that are packed already stay as they are.
        format: A mix such as "q4_k_m", or a format for all matrices.
        keep: Keep the file for the next time.
        progress: Called with what is done, bytes done and bytes in all.
    """
    name, mix = read_mix(format)
    plan = plan_tensors(file, mix, keeps_packed=True)
    if packed := packed_format(plan):
        raise FileError(
            f"{file.path}: the model is quantized already, mostly to {packed}; format is for models in f32, f16 or "
            "bf16, `fewbit quantize` writes others too"
        )
    report = silent if progress is None else progress
    warn_about_loss(file, plan)
    metadata = file_metadata(file, mix.file_type)  # a folder's chat template may change while its tensors do not
    folder = cache_folder() / "quantized" / key(model_fingerprint(file), name, VERSION, metadata_text(metadata))
    path = folder / f"{model_name(file.path)}-{name}.gguf"
    if known := _known(path):
        return known
    with locked(folder, path.name, report):
        if known := _known(path):
            return known
        need_space(folder, sum(item.nbytes for item in plan.values()), path.name)
        if text := fallback_text(name, plan):
            warnings.warn(text, stacklevel=3)
        with _place(path, keep) as place:
            make_folder(place.parent)
            out = output_file(place, file, metadata, plan, Moments())
            write_tensors(out, file, plan, Moments(), what=f"quantizing to {name}", report=report)
            return read_gguf(place)


@contextmanager
def _place(path: Path, keep: bool) -> Iterator[Path]:
    """The path to write to; without `keep`, one that is deleted when the file is open."""
    if keep:
        yield path
        return
    place = path.with_suffix(".unkept")
    try:
        yield place
    finally:
        place.unlink(missing_ok=True)


def _known(path: Path) -> ModelFile | None:
    with suppress(FewbitError):  # it is written again
        return read_gguf(path)
    return None
