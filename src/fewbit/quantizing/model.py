"""`quantize_model`: a model in other formats, as a GGUF file."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, PathError
from ..files.gguf.resumable import has_journal
from ..files.hub.folder import Progress, silent
from ..files.model import ModelFile
from ..ops.cpu import checked_threads
from ..option_fields import with_options
from ..validation import to_path
from .loss import warn_about_loss
from .mixes import Mix, read_mix
from .moments import Moments, read_moments
from .options import DEFAULT, KEEP, QuantizeOptions
from .output import file_metadata, output_file, write_tensors
from .plan import Overrides, Plan, TensorPlan, bits_per_weight, fallback_text, packed_again, plan_tensors
from .source import open_source
from .target import Target, plan_for_target, read_target, target_metadata


@dataclass(frozen=True)
class QuantizedModel:
    """What `quantize_model` wrote, or would write.

    Args:
        path: The file.
        format: The mix, the format of all matrices, or the size that was asked for.
        tensors: What became of each tensor: `name`, `shape`, `source` and `format`, `source_bytes` and `nbytes`,
            and the `loss` that was predicted if formats were chosen for a size.
        resumed: Number of tensors that an interrupted call had written.
    """

    path: Path
    format: str
    tensors: tuple[TensorPlan, ...]
    resumed: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(item.nbytes for item in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        return bits_per_weight({item.name: item for item in self.tensors})


@with_options(QuantizeOptions)
def quantize_model(options: QuantizeOptions) -> QuantizedModel:
    """Write a model in other formats, as a GGUF file that llama.cpp reads too.

    Tensors are read, packed and written a few rows at a time, so memory stays small. The file gets its name when it is
    complete. A call that was interrupted, even by SIGKILL, goes on where it was when it is made again, and the bytes
    are the same as undisturbed; a call that fails, on a full disk say, leaves nothing behind.

    Returns:
        The path, and what became of each tensor.

    Raises:
        ArgumentError: No choice of formats has the size, or there is no text to choose them by.
        FormatError: The format is unknown, or a pattern is in no name.
        PathError: The file exists, or cannot be written.

    >>> import tempfile
    >>> import numpy as np
    >>> from fewbit.files.gguf import read_gguf, write_gguf
    >>> folder = tempfile.TemporaryDirectory()
    >>> weights = {"blk.0.attn_q.weight": np.ones((8, 256), np.float16)}
    >>> write_gguf(f"{folder.name}/a.gguf", {"general.architecture": "llama", "llama.block_count": 1}, weights)
    >>> made = quantize_model(f"{folder.name}/a.gguf", f"{folder.name}/b.gguf", "q4_k_m")
    >>> made.nbytes, read_gguf(made.path).tensors["blk.0.attn_q.weight"]
    (1152, QuantTensor(q4_k, 8x256, 1152 bytes, 4.5 bits a weight))
    >>> folder.cleanup()
    """
    run = _read(options)
    name, plan, metadata = run.choose()
    made = QuantizedModel(run.path, name, tuple(plan.values()))
    _warn(run.file, made, plan, is_kept=options.format == KEEP)
    if options.dry_run:
        return made
    written = output_file(run.path, run.file, metadata, plan, run.moments)
    if written.was_completed():
        return made
    _check_place(run.path, options.force)
    resumed = write_tensors(
        written, run.file, plan, run.moments, what=f"quantizing to {name}", report=run.report, threads=run.threads
    )
    return replace(made, resumed=resumed)


@dataclass(frozen=True)
class _QuantizeRun:
    """Options that were read and checked, and the open model."""

    options: QuantizeOptions
    file: ModelFile
    path: Path
    mix: Mix | None
    name: str
    target: Target | None
    overrides: Overrides
    moments: Moments
    threads: int
    report: Progress

    def choose(self) -> tuple[str, Plan, dict[str, Any]]:
        """The name of what is made, the plan of each tensor, and the metadata of the file."""
        if self.target is not None:
            return self.target.name, *self._choose_by_loss(self.target)
        has_importance = bool(self.moments.importance or self.moments.hessians)
        plan = plan_tensors(self.file, self.mix, self.overrides, has_importance=has_importance)
        return self.name, plan, file_metadata(self.file, self.mix.file_type if self.mix else None)

    def _choose_by_loss(self, target: Target) -> tuple[Plan, dict[str, Any]]:
        if not (self.options.dry_run or has_journal(self.path)):  # measuring takes long
            _check_place(self.path, self.options.force)
        plan = plan_for_target(self.file, target, self.overrides, self.moments, self.threads, self.report)
        return plan, target_metadata(self.file, target, plan)


def _read(options: QuantizeOptions) -> _QuantizeRun:
    target = read_target(options.bits, options.size, options.text, options.format, options.pure)
    name, mix = (KEEP, None) if options.format == KEEP else read_mix(options.format or DEFAULT, options.pure)
    overrides = Overrides(options.tensors or {})
    moments = read_moments(options.importance, options.error_feedback)
    path, threads = to_path(options.out), checked_threads(options.threads)
    if options.mmproj and (target or moments.importance or moments.hessians):
        raise ArgumentError("an image encoder reads no text: give a format, without bits, size, importance or Hessians")
    report, file = options.progress or silent, open_source(options.model, options.progress, options.mmproj)
    return _QuantizeRun(options, file, path, mix, name, target, overrides, moments, threads, report)


def _warn(file: ModelFile, made: QuantizedModel, plan: Plan, is_kept: bool) -> None:
    """Warn of fallbacks, of weights that are quantized already, and of formats that spoil the model."""
    if text := fallback_text(made.format, plan):
        warnings.warn(text, stacklevel=4)
    if (packed := packed_again(plan)) and not is_kept:
        warnings.warn(
            f"{file.path}: weights are quantized already, mostly to {packed}; their errors stay, and others are added",
            stacklevel=4,
        )
    warn_about_loss(file, plan)


def _check_place(path: Path, force: bool) -> None:
    if path.is_dir():
        raise PathError(f"{path}: this is a folder; name a file in it, such as {path / 'model.gguf'}")
    if path.exists() and not force:
        raise PathError(f"{path}: the file exists; only force replaces it")
    if not path.parent.is_dir():
        raise PathError(f"{path}: there is no folder {path.parent}")
