"""`quantize_model`: a model in other formats, as a GGUF file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import PathError
from ..files.hub import find
from ..files.hub.folder import Progress, silent
from ..files.model import ModelFile
from ..models import open_model
from ..ops.cpu import checked_threads
from ..validation import to_path
from .loss import warn_about_loss
from .mixes import read_mix
from .moments import Source, read_moments
from .output import file_metadata, output_file, write_tensors
from .plan import Overrides, TensorPlan, bits_per_weight, fallback_text, packed_again, plan_tensors

KEEP = "keep"  # in place of a format: each tensor keeps its own, or gets the nearest of GGUF files


@dataclass(frozen=True)
class QuantizedModel:
    """What `quantize_model` wrote, or would write.

    Args:
        path: The file.
        format: The mix, or the format of all matrices.
        tensors: What became of each tensor: `name`, `shape`, `source` and `format`, `source_bytes` and `nbytes`.
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


def quantize_model(
    model: str | os.PathLike[str] | ModelFile,
    out: str | os.PathLike[str],
    format: str = "q4_k_m",
    *,
    tensors: Mapping[str, str] | None = None,
    importance: Source = None,
    error_feedback: Source = None,
    pure: bool = False,
    force: bool = False,
    dry_run: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> QuantizedModel:
    """Write a model in other formats, as a GGUF file that llama.cpp reads too.

    Tensors are read, packed and written a few rows at a time, so memory stays small. The file gets its name when it is
    complete. A call that was interrupted, even by SIGKILL, goes on where it was when it is made again, and the bytes
    are the same as undisturbed; a call that fails, on a full disk say, leaves nothing behind.

    Args:
        model: Path to a GGUF file or a safetensors folder, a URL, `hf:org/repo`, a built-in name, or an open model.
        out: The file to write.
        format: A mix such as "q4_k_m", which chooses the format of each tensor as llama.cpp does, or one format for all
            matrices; "keep" keeps the formats, or takes the nearest where GGUF files have none.
        tensors: Formats of some matrices by regular expressions, such as `{"ffn_down": "q6_k"}`. The first whose
            pattern is found in a matrix's name counts.
        importance: A weight for each column of a matrix, by the tensor's name; (experts, columns) for experts apart. Or
            the path of an importance matrix that `fewbit calibrate` or llama.cpp wrote.
        error_feedback: The sum of x x^T over the inputs x of a matrix, by the tensor's name: (columns, columns), or
            (experts, columns, columns). Or the path of a file that `fewbit calibrate --hessian` wrote. The columns
            of such a matrix are rounded one after another, and later ones make up for the errors of earlier ones. It
            takes longer, and importance is not used there.
        pure: Give all matrices the format that most would have in the mix.
        force: Replace a file that is there.
        dry_run: Only choose formats; write nothing.
        threads: Number of threads. Defaults to all usable cores.
        progress: Called with what is done, bytes done and bytes in all.

    Returns:
        The path, and what became of each tensor.

    Raises:
        FormatError: The format is unknown, or a pattern is in no name.
        PathError: The file exists, or cannot be written.

    >>> import tempfile
    >>> from fewbit.files.gguf import read_gguf, write_gguf
    >>> folder = tempfile.TemporaryDirectory()
    >>> weights = {"blk.0.attn_q.weight": np.ones((8, 256), np.float16)}
    >>> write_gguf(f"{folder.name}/a.gguf", {"general.architecture": "llama", "llama.block_count": 1}, weights)
    >>> made = quantize_model(f"{folder.name}/a.gguf", f"{folder.name}/b.gguf", "q4_k_m")
    >>> made.nbytes, read_gguf(made.path).tensors["blk.0.attn_q.weight"]
    (1152, QuantTensor(q4_k, 8x256, 1152 bytes, 4.5 bits a weight))
    >>> folder.cleanup()
    """
    report = silent if progress is None else progress
    name, mix = (KEEP, None) if format == KEEP else read_mix(format, pure)
    overrides = Overrides(tensors or {})
    moments = read_moments(importance, error_feedback)
    path, count = to_path(out), checked_threads(threads)
    file = open_model(find(model, progress=progress)) if isinstance(model, str | os.PathLike) else model
    plan = plan_tensors(file, mix, overrides, has_importance=bool(moments.importance or moments.hessians))
    made = QuantizedModel(path, name, tuple(plan.values()))
    if text := fallback_text(name, plan):
        warnings.warn(text, stacklevel=2)
    if (packed := packed_again(plan)) and mix is not None:
        warnings.warn(
            f"{file.path}: weights are quantized already, mostly to {packed}; their errors stay, and others are added",
            stacklevel=2,
        )
    warn_about_loss(file, plan)
    if dry_run:
        return made
    target = output_file(path, file, file_metadata(file, mix.file_type if mix else None), plan, moments)
    if target.was_completed():
        return made
    _check_place(path, force)
    resumed = write_tensors(target, file, plan, moments, what=f"quantizing to {name}", report=report, threads=count)
    return QuantizedModel(path, name, made.tensors, resumed)


def _check_place(path: Path, force: bool) -> None:
    if path.is_dir():
        raise PathError(f"{path}: this is a folder; name a file in it, such as {path / 'model.gguf'}")
    if path.exists() and not force:
        raise PathError(f"{path}: the file exists; only force replaces it")
    if not path.parent.is_dir():
        raise PathError(f"{path}: there is no folder {path.parent}")
